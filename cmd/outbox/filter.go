package main

import (
	"reflect"

	"github.com/gorm-outbox/outbox"
)

// filterFlags adds what every command selects by.
func (c *call) filterFlags(f *outbox.Filter) {
	c.ids(&f.IDs, "id", "these records: `ID`s, by commas or repeated")
	c.text(&f.Topic, "topic", "of this `TOPIC`")
	c.text(&f.Type, "type", "of this `TYPE`")
	c.text(&f.TenantID, "tenant", "of this `TENANT`")
	c.text(&f.Category, "category", "whose last failure was of this `CATEGORY`: network, credentials, …")
	c.text(&f.Code, "code", "whose last failure had this `CODE`")
}

// checkFilter refuses what the library would, in the words of the command line.
func checkFilter(f outbox.Filter) error {
	switch selects := selects(f); {
	case f.All && selects:
		return usageError("--all is for every record, and something else selects some")
	case !f.All && !selects:
		return usageError("nothing says which records; --all is for every one")
	}
	return nil
}

// selects tells whether f has anything that selects, other than All.
func selects(f outbox.Filter) bool {
	f.All, f.Limit, f.Rate, f.DryRun = false, 0, 0, false
	return !reflect.ValueOf(f).IsZero()
}
