package tests

import (
	"slices"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/stretchr/testify/require"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/schema"
)

// TestC30_EveryStatementUsesTheTableItIsTold hides every schema from the sessions: a statement that forgot one fails.
func TestC30_EveryStatementUsesTheTableItIsTold(t *testing.T) {
	namings := map[string]gorm.Config{
		"default naming": {},
		"hostile naming": {NamingStrategy: schema.NamingStrategy{TablePrefix: "pre_", SingularTable: true, NoLowerCase: true}},
	}
	for name, cfg := range namings {
		t.Run(name, func(t *testing.T) {
			setUp := withSchema(t, "App_X", gorm.Config{})
			dsn := withSettings(t, setUp, map[string]string{"search_path": "nowhere"})
			db := openGorm(t, postgres.Open(dsn), cfg)
			p := outbox.Plugin{Table: "App_X.avisos", Tenant: outbox.TenantColumn{Name: "Club"}}
			require.NoError(t, db.Use(p))
			forbidDDL(t, setUp)
			require.NoError(t, outbox.Migrate(db))
			require.NoError(t, p.Migrate(db))

			wholeLife(t, db, p)
			require.EqualValues(t, 4, scalar[int](t, db, `SELECT count(*) FROM "App_X"."avisos"`))
			afterLife(t, db, p)
			require.Zero(t, scalar[int](t, db, `SELECT count(*) FROM "App_X"."avisos"`))
			require.EqualValues(t, 2, scalar[int](t, setUp, "SELECT count(*) FROM pg_class WHERE relkind = 'r' AND relnamespace = '\"App_X\"'::regnamespace"))
		})
	}
}

// wholeLife takes messages of the plugin's table through everything that can happen to them. The table has four then.
func wholeLife(t *testing.T, db *gorm.DB, p outbox.Plugin) {
	t.Helper()
	last := mail("failed")
	last.MaxAttempts = 1
	var rs []outbox.Receipt
	require.NoError(t, db.Transaction(func(tx *gorm.DB) (err error) {
		rs, err = p.EnqueueAll(tx, []outbox.Message{keyed("sent", "t", "k"), mail("retried"), mail("discarded"), last})
		require.NoError(t, err)
		again, err := p.Enqueue(tx, keyed("again", "t", "k"))
		require.Equal(t, outbox.Receipt{ID: rs[0].ID, MessageID: rs[0].MessageID}, again)
		return err
	}))
	work := func(transport outbox.Transport) outbox.Summary {
		processor, err := p.NewProcessor(db, outbox.ProcessorConfig{Transports: andIdle(transport)})
		require.NoError(t, err)
		return processor.ProcessOnce(t.Context())
	}
	require.Equal(t, outbox.Summary{Claimed: 4, Sent: 1, Retried: 1, Failed: 1, Discarded: 1}, work(outcomes))
	mustExec(t, db, "UPDATE ? SET due_at = ? WHERE status = 'pending'", tableExpr(db, p), gorm.Expr(map[string]string{
		"postgres": "now()", "sqlite": "'2020-01-01 00:00:00.000+00:00'",
	}[db.Dialector.Name()]))
	box := &mailbox{}
	require.Equal(t, outbox.Summary{Claimed: 1, Sent: 1}, work(box))
	require.Equal(t, []string{"retried"}, box.types())
	require.Equal(t, outbox.Summary{}, work(box))
}

// afterLife looks at what wholeLife has left, revives the dead, and deletes it all, with all else there is to an outbox.
func afterLife(t *testing.T, db *gorm.DB, p outbox.Plugin) {
	t.Helper()
	stats, err := p.Stats(db)
	require.NoError(t, err)
	require.Equal(t, []outbox.TopicStats{{Topic: "email", Sent: 2, Discarded: 1, Failed: 1}}, stats)
	all := outbox.Filter{All: true}
	list, err := p.List(db, outbox.ListOptions{Filter: all})
	require.NoError(t, err)
	slices.Reverse(list)
	require.Equal(t, []string{"sent", "retried", "discarded", "failed"}, typesOf(list))
	one, err := p.Get(db, list[0].ID, true)
	require.NoError(t, err)
	require.Equal(t, "t", one.TenantID)
	require.Equal(t, "k", *one.IdempotencyKey)
	why, err := p.Explain(db, list[3].ID)
	require.NoError(t, err)
	require.Contains(t, why, "failed")

	for _, dryRun := range []bool{true, false} {
		revived, err := p.Redrive(db, outbox.Filter{All: true, DryRun: dryRun})
		require.NoError(t, err)
		require.EqualValues(t, 2, revived)
	}
	box := &mailbox{}
	processor, err := p.NewProcessor(db, outbox.ProcessorConfig{Transports: andIdle(box)})
	require.NoError(t, err)
	require.Equal(t, outbox.Summary{Claimed: 2, Sent: 2}, processor.ProcessOnce(t.Context()))
	require.Equal(t, []string{"discarded", "failed"}, box.types())

	require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
		unwanted, err := p.Enqueue(tx, keyed("unwanted", "t", "k2"))
		require.NoError(t, err)
		cancelled, err := p.Cancel(tx, outbox.Filter{IDs: []int64{unwanted.ID}, TenantID: "t", IdempotencyKey: "k2"})
		require.EqualValues(t, 1, cancelled)
		return err
	}))
	for _, first := range []bool{true, false} {
		require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
			ran, err := p.ConsumeOnce(tx, "consumer", one.MessageID, func(*gorm.DB) error { return nil })
			require.Equal(t, first, ran)
			return err
		}))
	}
	purged, err := p.Purge(db, outbox.PurgeOptions{Before: time.Now().Add(time.Hour)})
	require.NoError(t, err)
	require.EqualValues(t, 5, purged)
	require.Eventually(t, func() bool { // older than a millisecond, that is
		purged, err := p.PurgeConsumed(db, time.Millisecond)
		return err == nil && purged == 1
	}, patience, glance)
	require.Equal(t, outbox.Summary{}, processor.ProcessOnce(t.Context()))
}

// tableExpr quotes a plugin's table.
func tableExpr(db *gorm.DB, p outbox.Plugin) any {
	table := p.Table
	if table == "" {
		table = outbox.DefaultTable
	}
	return gorm.Expr(db.Statement.Quote(table))
}

func TestC30_OutboxesInOneDatabaseKeepApart(t *testing.T) {
	db := withSchema(t, "app", gorm.Config{})
	outboxes := []outbox.Plugin{
		{}, {Table: "outbox2"}, {Table: "app.outbox"}, {Table: "Outbox"}, {Table: "audit", Tenant: outbox.TenantColumn{Name: "who"}},
	}
	for _, p := range outboxes {
		require.NoError(t, db.Use(p))
	}
	for _, p := range outboxes {
		require.EqualValues(t, 0, scalar[int](t, db, "SELECT count(*) FROM ?", tableExpr(db, p)))
		wholeLife(t, db, p) // with the keys of all the others
		schema, table := "public", p.Table
		switch p.Table {
		case "":
			table = "outbox"
		case "app.outbox":
			schema, table = "app", "outbox"
		}
		require.EqualValues(t, 5, scalar[int](t, db, `SELECT count(*) FROM pg_index WHERE indrelid = format('%I.%I', ?::text, ?::text)::regclass`,
			schema, table), "indexes of %s", p.Table)
	}
	forbidDDL(t, db)
	for _, p := range outboxes {
		require.EqualValues(t, 4, scalar[int](t, db, "SELECT count(*) FROM ?", tableExpr(db, p)))
		require.NoError(t, p.Migrate(db))
		afterLife(t, db, p)
	}
}

func TestC30_OutboxesInOneSQLiteFileKeepApart(t *testing.T) {
	db := openSQLite(t, gorm.Config{NamingStrategy: schema.NamingStrategy{TablePrefix: "pre_", SingularTable: true, NoLowerCase: true}})
	outboxes := []outbox.Plugin{{}, {Table: "outbox2"}, {Table: "Audit", Tenant: outbox.TenantColumn{Name: "who", Type: "text"}}}
	for _, p := range outboxes {
		require.NoError(t, db.Use(p))
	}
	for _, p := range outboxes {
		wholeLife(t, db, p)
	}
	for _, p := range outboxes {
		afterLife(t, db, p)
	}
	require.EqualValues(t, 12, scalar[int](t, db, "SELECT count(*) FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"))
}
