package outboxtest

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"github.com/gorm-outbox/outbox"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/logger"
)

// Match says which records are meant. A zero field matches anything.
type Match struct {
	// Plugin is the outbox, where there are several. Zero: the one on the default table, or the only one installed.
	Plugin outbox.Plugin
	// Topic, Type, Recipient, TenantID and IdempotencyKey are those of the message, as the database gives them back.
	Topic, Type, Recipient, TenantID, IdempotencyKey string
	// Payload is compared as JSON: a struct matches the map or the json.RawMessage that says the same.
	Payload any
}

// RequireEnqueued requires that exactly one record matches, and gives it. On a transaction's handle it sees what that
// has enqueued and not yet committed. A record stays enqueued when it has been sent, until it is purged.
func RequireEnqueued(t TB, db *gorm.DB, m Match) outbox.Record {
	t.Helper()
	return RequireCount(t, db, 1, m)[0]
}

// RequireNotEnqueued requires that no record matches.
func RequireNotEnqueued(t TB, db *gorm.DB, m Match) {
	t.Helper()
	RequireCount(t, db, 0, m)
}

// RequireCount requires that exactly n records match, and gives them in the order of enqueue.
func RequireCount(t TB, db *gorm.DB, n int, m Match) []outbox.Record {
	t.Helper()
	all, err := readRecords(db, m.Plugin)
	require.NoError(t, err, "read the outbox")
	same, err := m.payload()
	require.NoError(t, err, "marshal the Payload to match")
	var found []outbox.Record
	for _, r := range all {
		if m.texts(r) && same(r.Payload) {
			found = append(found, r)
		}
	}
	if len(found) != n {
		t.Errorf("%d enqueued%s; must be %d\n%s", len(found), m, n, list(all))
		t.FailNow()
	}
	return found
}

// String says what is looked for without quoting what may be private.
func (m Match) String() string {
	var parts []string
	for _, f := range []struct{ name, text string }{{"topic", m.Topic}, {"type", m.Type}, {"key", m.IdempotencyKey}} {
		if f.text != "" {
			parts = append(parts, fmt.Sprintf("%s %q", f.name, f.text))
		}
	}
	for _, f := range []struct {
		name  string
		given bool
	}{{"recipient", m.Recipient != ""}, {"tenant", m.TenantID != ""}, {"payload", m.Payload != nil}} {
		if f.given {
			parts = append(parts, "the "+f.name)
		}
	}
	if parts == nil {
		return ""
	}
	return " with " + strings.Join(parts, ", ")
}

func (m Match) texts(r outbox.Record) bool {
	key := ""
	if r.IdempotencyKey != nil {
		key = *r.IdempotencyKey
	}
	for _, f := range []struct{ want, have string }{
		{m.Topic, r.Topic}, {m.Type, r.Type}, {m.Recipient, r.Recipient}, {m.TenantID, r.TenantID}, {m.IdempotencyKey, key},
	} {
		if f.want != "" && f.want != f.have {
			return false
		}
	}
	return true
}

// payload gives the comparison with m.Payload.
func (m Match) payload() (same func(text []byte) bool, err error) {
	if m.Payload == nil {
		return func([]byte) bool { return true }, nil
	}
	text, err := json.Marshal(m.Payload)
	if err != nil {
		return nil, err
	}
	var want any
	if err := json.Unmarshal(text, &want); err != nil {
		return nil, err
	}
	return func(text []byte) bool {
		var have any
		return json.Unmarshal(text, &have) == nil && reflect.DeepEqual(want, have)
	}, nil
}

// listed is how many records a failure lists at most.
const listed = 20

// list names what is enqueued, without recipients and payloads.
func list(records []outbox.Record) string {
	if len(records) == 0 {
		return "nothing is enqueued"
	}
	lines := []string{"enqueued:"}
	for i, r := range records {
		if i == listed {
			lines = append(lines, fmt.Sprintf("\tand %d more", len(records)-listed))
			break
		}
		line := fmt.Sprintf("\ttopic %q, type %q", r.Topic, r.Type)
		if r.IdempotencyKey != nil {
			line += fmt.Sprintf(", key %q", *r.IdempotencyKey)
		}
		lines = append(lines, line+" ("+string(r.Status)+")")
	}
	return strings.Join(lines, "\n")
}

// readRecords reads the whole table in the order of enqueue.
func readRecords(db *gorm.DB, p outbox.Plugin) ([]outbox.Record, error) {
	p = locate(db, p)
	var records []outbox.Record
	q := plain(db).Table(p.Table)
	columns, err := recordColumns(q, p.Tenant.Name)
	if err != nil {
		return nil, err
	}
	err = q.Clauses(clause.Select{Columns: columns}).Order("id").Find(&records).Error
	return records, err
}

// plain is a handle on the same pool or transaction, with none of the caller's clauses and none of its logging, which
// would show payloads and recipients.
func plain(db *gorm.DB) *gorm.DB {
	return db.Session(&gorm.Session{NewDB: true, Context: db.Statement.Context, Logger: logger.Discard})
}

// recordColumns are the columns of a record, the tenant's under the name that Record knows it by.
func recordColumns(db *gorm.DB, tenant string) ([]clause.Column, error) {
	parsed := &gorm.Statement{DB: db}
	if err := parsed.Parse(&outbox.Record{}); err != nil {
		return nil, err
	}
	columns := make([]clause.Column, len(parsed.Schema.DBNames))
	for i, name := range parsed.Schema.DBNames {
		columns[i] = clause.Column{Name: name}
		if name == "tenant_id" {
			columns[i] = clause.Column{Name: tenant, Alias: name}
		}
	}
	return columns, nil
}

// locate gives the options under which p is installed, and without p the outbox that the package's functions mean.
func locate(db *gorm.DB, p outbox.Plugin) outbox.Plugin {
	var installed []outbox.Plugin
	for _, plugin := range db.Plugins {
		switch plugin := plugin.(type) {
		case outbox.Plugin:
			installed = append(installed, plugin)
		case *outbox.Plugin:
			installed = append(installed, *plugin)
		}
	}
	for _, candidate := range installed {
		if candidate.Name() == p.Name() || p.Table == "" && len(installed) == 1 {
			p = candidate
			break
		}
	}
	if p.Table == "" {
		p.Table = outbox.DefaultTable
	}
	if p.Tenant.Name == "" {
		p.Tenant.Name = "tenant_id"
	}
	return p
}
