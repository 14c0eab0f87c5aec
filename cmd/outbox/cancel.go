package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/gorm-outbox/outbox"
	"gorm.io/gorm"
)

var cancelCommand = command{
	name: "cancel",
	does: "withdraw messages that no worker has yet",
	body: `
Messages that are pending end as cancelled: by their record ids, or by the idempotency key that the application gave.
What is being sent, or has ended, stays as it is. It is all or nothing, in one transaction, which --dry-run rolls back.
A key without --tenant is for applications without tenants, and refused where it finds several messages.
JSON is {cancelled, dry_run, complete}.`,
	example: "outbox cancel --id 4711,4712\noutbox cancel --tenant acme --key reminder:invoice-17",
	setup: func(c *call) func(ctx context.Context) error {
		var f outbox.Filter
		var dryRun bool
		c.ids(&f.IDs, "id", "these records: `ID`s, by commas or repeated")
		c.text(&f.IdempotencyKey, "key", "instead: the message with this idempotency `KEY`")
		c.text(&f.TenantID, "tenant", "of this `TENANT`")
		c.flags.BoolVar(&dryRun, "dry-run", false, "only count")
		return func(ctx context.Context) error { return c.cancel(ctx, f, dryRun) }
	},
}

// errRollback ends a transaction that was a trial.
var errRollback = errors.New("trial")

func (c *call) cancel(ctx context.Context, f outbox.Filter, dryRun bool) error {
	if (f.IDs == nil) == (f.IdempotencyKey == "") {
		return usageError("give one of --id and --key")
	}
	return c.database(ctx, func(db *gorm.DB) error {
		var n int64
		err := db.Transaction(func(tx *gorm.DB) (err error) {
			n, err = c.plugin.Cancel(tx, f)
			switch {
			case err != nil:
				return err
			case f.IdempotencyKey != "" && n > 1:
				return usageError(fmt.Sprintf("the key is of messages of %d tenants; give --tenant", n))
			case dryRun:
				return errRollback
			}
			return nil
		})
		switch {
		case errors.Is(err, errRollback):
			err = nil
		case err != nil:
			n = 0
		}
		if err == nil && n == 0 {
			err = nothingError(`nothing was withdrawn: it is not there, is being sent, or has ended; "outbox explain ID" tells`)
		}
		return c.report(tally{done: "cancelled", count: n, dryRun: dryRun, err: err})
	})
}
