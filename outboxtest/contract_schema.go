package outboxtest

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/gorm-outbox/outbox"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
)

var schemaChecks = []check{
	{"is made once", checkMigrateTwice},
	{"is made inside a transaction", checkMigrateInTransaction},
	{"is made by many at once", checkMigrateRace},
	{"can be made by hand", checkMigrationSQL},
	{"keeps what is there", checkMigrateKeeps},
	{"has two outboxes side by side", checkTwoOutboxes},
	{"has one outbox under any name", checkOnlyOutbox},
}

// indexes are the endings of the outbox's indexes.
var indexes = []string{"_key", "_claim", "_dead", "_external"}

func requireSchema(t *testing.T, db *gorm.DB, table string) {
	t.Helper()
	migrator := plain(db).Migrator()
	require.True(t, migrator.HasTable(table))
	require.True(t, migrator.HasTable(table+"_processed"))
	for _, ending := range indexes {
		require.True(t, migrator.HasIndex(table, table+ending), "index %s%s", table, ending)
	}
}

// columns describes the columns of a table.
func columns(t *testing.T, db *gorm.DB, table string) map[string]string {
	t.Helper()
	types, err := plain(db).Table(table).Migrator().ColumnTypes(table)
	require.NoError(t, err)
	found := map[string]string{}
	for _, c := range types {
		nullable, _ := c.Nullable()
		found[c.Name()] = c.DatabaseTypeName() + map[bool]string{true: " null"}[nullable]
	}
	return found
}

func checkMigrateTwice(t *testing.T, db *gorm.DB) {
	install(t, db)
	requireSchema(t, db, outbox.DefaultTable)
	receipts := enqueue(t, db, keyed("k", "one"))
	for i := 0; i < 2; i++ {
		require.NoError(t, outbox.Migrate(db))
		require.NoError(t, outbox.Plugin{}.Migrate(db))
	}
	requireSchema(t, db, outbox.DefaultTable)
	require.Equal(t, receipts[0].ID, record(t, db, receipts[0].ID).ID)
	require.Equal(t, repeat(receipts[0]), enqueue(t, db, keyed("k", "again"))[0])
}

func checkMigrateInTransaction(t *testing.T, db *gorm.DB) {
	p := outbox.Plugin{SkipMigrate: true}
	require.NoError(t, db.Use(p))
	require.False(t, db.Migrator().HasTable(outbox.DefaultTable), "SkipMigrate")
	require.ErrorIs(t, db.Transaction(func(tx *gorm.DB) error {
		require.NoError(t, outbox.Migrate(tx))
		enqueueIn(t, tx, mail("undone"))
		return errContract
	}), errContract)
	require.False(t, db.Migrator().HasTable(outbox.DefaultTable), "rolled back with the rest")

	require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
		require.NoError(t, p.Migrate(tx))
		require.NoError(t, p.Migrate(tx))
		enqueueIn(t, tx, mail("kept"))
		return nil
	}))
	requireSchema(t, db, outbox.DefaultTable)
	require.Equal(t, 1, once(t, db, configure(NewRecorder())).Sent)
}

func checkMigrateRace(t *testing.T, db *gorm.DB) {
	const n = 8
	errs := make([]error, n)
	var all sync.WaitGroup
	start := make(chan struct{})
	for i := 0; i < n; i++ {
		all.Add(1)
		go func() {
			defer all.Done()
			<-start
			errs[i] = outbox.Plugin{}.Migrate(db)
		}()
	}
	close(start)
	all.Wait()
	require.NoError(t, errors.Join(errs...))
	requireSchema(t, db, outbox.DefaultTable)
}

func checkMigrationSQL(t *testing.T, db *gorm.DB) {
	byHand := outbox.Plugin{Table: "by_hand", SkipMigrate: true, Tenant: outbox.TenantColumn{Name: "club_id", Type: "uuid"}}
	script, err := outbox.MigrationSQL(db.Dialector.Name(), byHand)
	require.NoError(t, err)
	for i := 0; i < 2; i++ { // every statement is idempotent
		for _, statement := range strings.Split(script, ";\n") {
			if statement = strings.TrimSpace(statement); statement != "" {
				require.NoError(t, db.Exec(statement).Error)
			}
		}
	}
	requireSchema(t, db, "by_hand")
	migrated := byHand
	migrated.Table = "migrated"
	require.NoError(t, migrated.Migrate(db))
	for _, table := range []string{"", "_processed"} {
		want := columns(t, db, "migrated"+table)
		require.NotEmpty(t, want)
		require.Equal(t, want, columns(t, db, "by_hand"+table))
	}
	before := columns(t, db, "by_hand")
	require.NoError(t, byHand.Migrate(db))
	require.Equal(t, before, columns(t, db, "by_hand"))

	install(t, db, byHand)
	m := mail("one")
	m.TenantID = "00000000-0000-0000-0000-00000000000a"
	enqueue(t, db, m)
	require.Equal(t, 1, once(t, db, configure(NewRecorder())).Sent)
	for _, want := range []bool{true, false} {
		ran, err := consume(db, "credits", "m1", 1, fine)
		require.NoError(t, err)
		require.Equal(t, want, ran)
	}
	_, err = outbox.MigrationSQL("no such engine", byHand)
	require.ErrorIs(t, err, outbox.ErrInvalid)
}

// checkMigrateKeeps: the app's own columns and rows stay.
func checkMigrateKeeps(t *testing.T, db *gorm.DB) {
	install(t, db)
	enqueue(t, db, mail("one"))
	require.NoError(t, db.Exec("ALTER TABLE outbox ADD COLUMN note text").Error)
	change(t, db, values{"note": "the app's own"})
	require.NoError(t, outbox.Migrate(db))
	enqueue(t, db, mail("two"))
	require.Equal(t, 2, once(t, db, configure(NewRecorder())).Sent)
	var notes []string
	require.NoError(t, db.Table("outbox").Where("note IS NOT NULL").Pluck("note", &notes).Error)
	require.Equal(t, []string{"the app's own"}, notes)
}

func checkTwoOutboxes(t *testing.T, db *gorm.DB) {
	first := outbox.Plugin{}
	second := outbox.Plugin{Table: "Avisos_2", Tenant: outbox.TenantColumn{Name: "club_id", Type: "bigint"}, MaxAttempts: 3}
	install(t, db, first, second)
	requireSchema(t, db, "outbox")
	requireSchema(t, db, "Avisos_2")

	m := keyed("k", "first")
	require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
		r1 := enqueueIn(t, tx, m)
		m.TenantID, m.Type = "42", "second"
		r2, err := second.Enqueue(tx, m)
		require.NoError(t, err)
		require.True(t, r1.New && r2.New, "the key of one is nothing to the other")
		require.NotEqual(t, r1.MessageID, r2.MessageID)
		return nil
	}))
	require.Equal(t, 8, RequireEnqueued(t, db, Match{}).MaxAttempts)
	RequireEnqueued(t, db, Match{Plugin: first, Type: "first"})
	require.Equal(t, 3, RequireEnqueued(t, db, Match{Plugin: second, Type: "second", TenantID: "42"}).MaxAttempts)

	rec := NewRecorder()
	requireSummary(t, outbox.Summary{Claimed: 1, Sent: 1}, once(t, db, configure(rec)))
	require.Equal(t, outbox.StatusPending, RequireEnqueued(t, db, Match{Plugin: second}).Status)
	p, err := second.NewProcessor(db, configure(rec))
	require.NoError(t, err)
	requireSummary(t, outbox.Summary{Claimed: 1, Sent: 1}, p.ProcessOnce(context.Background()))
	require.Equal(t, []string{"first", "second"}, kinds(rec.Deliveries()))
	require.Equal(t, "42", rec.Deliveries()[1].TenantID)
}

func checkOnlyOutbox(t *testing.T, db *gorm.DB) {
	only := outbox.Plugin{Table: "avisos"}
	install(t, db, only)
	enqueue(t, db, mail("one"))
	RequireEnqueued(t, db, Match{Plugin: only})
	require.Equal(t, 1, once(t, db, configure(NewRecorder())).Sent)
	require.False(t, db.Migrator().HasTable(outbox.DefaultTable))

	require.NoError(t, db.Use(outbox.Plugin{Table: "otros"}))
	require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
		_, err := outbox.Enqueue(tx, mail("two"))
		require.ErrorIs(t, err, outbox.ErrNotInstalled, "which of the two is meant?")
		return nil
	}))
}
