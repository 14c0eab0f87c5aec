package tests

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/gorm-outbox/outbox/transports/webhook"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
)

// What would do harm if it ever became part of a statement, and what would select everything in a filter.
const (
	hostile    = `'); DROP TABLE bait; -- " ? @name $1 :x %s \' $$ {table} /*` + "`"
	everything = `' OR '1'='1`
)

// eachBaited runs the test on every engine and protocol, beside a table that hostile texts aim at.
func eachBaited(t *testing.T, test func(t *testing.T, db *gorm.DB)) {
	for name, dialector := range map[string]func(*testing.T) gorm.Dialector{
		"postgres": freshPostgres, "postgres, simple protocol": freshSimplePostgres, "sqlite": freshSQLite,
	} {
		t.Run(name, func(t *testing.T) {
			db := openGorm(t, dialector(t), gorm.Config{})
			mustExec(t, db, "CREATE TABLE bait (x integer)")
			mustExec(t, db, "INSERT INTO bait VALUES (1)")
			test(t, db)
			require.EqualValues(t, 1, count(t, db, "bait"), "the bait was taken")
		})
	}
}

func hostileMessage(key string) outbox.Message {
	return outbox.Message{
		TenantID: hostile, Topic: hostile, Type: hostile, Recipient: hostile, IdempotencyKey: key,
		Payload: map[string]string{hostile: hostile}, Headers: map[string]string{hostile: hostile},
	}
}

func TestSecurity_ValuesNeverBecomeSQL(t *testing.T) {
	eachBaited(t, func(t *testing.T, db *gorm.DB) {
		require.NoError(t, db.Use(outbox.Plugin{}))
		one := enqueue(t, db, hostileMessage(hostile))[0] // alone, in an array and repeated are different statements
		many := enqueue(t, db, hostileMessage(hostile), hostileMessage(""), hostileMessage(everything))
		require.Equal(t, outbox.Receipt{ID: one.ID, MessageID: one.MessageID}, many[0])

		answers := map[int64]error{
			one.ID:     &policy.Failure{Category: hostile, Code: hostile, Class: policy.Permanent},
			many[1].ID: &policy.Failure{Category: hostile, Code: hostile},
		}
		box := &mailbox{}
		p, err := outbox.NewProcessor(db, outbox.ProcessorConfig{Owner: hostile, Transports: map[string]outbox.Transport{
			hostile: outbox.TransportFunc(func(ctx context.Context, d outbox.Delivery) (string, error) {
				_, _ = box.Send(ctx, d)
				return hostile, answers[d.ID]
			}),
			everything: box,
		}})
		require.NoError(t, err)
		require.Equal(t, outbox.Summary{Claimed: 3, Sent: 1, Retried: 1, Discarded: 1}, p.ProcessOnce(t.Context()))
		for _, d := range box.deliveries() {
			require.Equal(t, []string{hostile, hostile, hostile, hostile}, []string{d.TenantID, d.Topic, d.Type, d.Recipient})
			payload, err := outbox.Decode[map[string]string](d)
			require.NoError(t, err)
			require.Equal(t, map[string]string{hostile: hostile}, payload)
			require.Equal(t, map[string]string{hostile: hostile}, d.Headers)
		}
		requireHostileOperations(t, db, one.ID)
	})
}

// requireHostileOperations asks for records by hostile texts: each finds what bears it, and nothing else.
func requireHostileOperations(t *testing.T, db *gorm.DB, dead int64) {
	t.Helper()
	names := outbox.Filter{TenantID: hostile, Topic: hostile, Type: hostile, IdempotencyKey: hostile, Category: hostile, Code: hostile}
	found, err := outbox.List(db, outbox.ListOptions{Filter: names, Reveal: true})
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.Equal(t, dead, found[0].ID)
	require.Equal(t, hostile, found[0].Recipient)
	stats, err := outbox.Stats(db)
	require.NoError(t, err)
	require.Equal(t, hostile, stats[0].Topic)
	_, err = outbox.Explain(db, dead)
	require.NoError(t, err)

	for _, f := range []outbox.Filter{
		{TenantID: everything}, {Topic: everything}, {Type: everything}, {Category: everything}, {Code: everything},
	} {
		require.Zero(t, mustCount(t)(outbox.Redrive(db, f)), "%+v", f)
		require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
			require.Zero(t, mustCount(t)(outbox.Cancel(tx, f)), "%+v", f)
			return nil
		}))
		require.Zero(t, mustCount(t)(outbox.Purge(db, outbox.PurgeOptions{Before: time.Now().Add(time.Hour), Topic: f.Topic + everything, TenantID: f.TenantID})))
	}
	require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
		report := outbox.ProviderReceipt{ExternalID: hostile, Status: outbox.ReceiptBounced, Code: hostile, At: time.Now()}
		known, err1 := outbox.RecordReceipt(tx, report)
		report.ExternalID, report.Reference = "", everything
		unknown, err2 := outbox.RecordReceipt(tx, report)
		require.True(t, known)
		require.False(t, unknown)
		ran, err3 := outbox.ConsumeOnce(tx, hostile, hostile, func(*gorm.DB) error { return nil })
		again, err4 := outbox.ConsumeOnce(tx, hostile, hostile, func(*gorm.DB) error { return nil })
		require.True(t, ran)
		require.False(t, again)
		return errors.Join(err1, err2, err3, err4)
	}))
	require.EqualValues(t, 1, mustCount(t)(outbox.Redrive(db, names)))
	require.EqualValues(t, 3, count(t, db, "outbox"))
}

// mustCount takes the result of a function that counts records.
func mustCount(t *testing.T) func(int64, error) int64 {
	return func(n int64, err error) int64 {
		t.Helper()
		require.NoError(t, err)
		return n
	}
}

func TestSecurity_NamesThatAreNoNamesAreRefused(t *testing.T) {
	names := []string{
		"outbox; DROP TABLE bait", "outbox; DROP TABLE bait; --", `out"box`, "out`box", "out'box", `"outbox"`, "[outbox]", "outbox ",
		" outbox", "outbox\n", "outbox\x00", "a.b.c", ".outbox", "outbox.", "a..b", "öutbox", "out-box", "1outbox", "outbox/*",
		"outbox)", "out$box", `a"."b`, "pg_temp.x;", strings.Repeat("x", 100), hostile,
	}
	eachBaited(t, func(t *testing.T, db *gorm.DB) {
		for _, name := range names {
			for what, p := range map[string]outbox.Plugin{
				"Table":       {Table: name},
				"Tenant.Name": {Tenant: outbox.TenantColumn{Name: name}},
				"Tenant.Type": {Tenant: outbox.TenantColumn{Type: name}},
			} {
				require.ErrorIs(t, db.Use(p), outbox.ErrInvalid, "%s %q", what, name)
				_, err := outbox.MigrationSQL(db.Dialector.Name(), p)
				require.ErrorIs(t, err, outbox.ErrInvalid, "%s %q", what, name)
				p.SkipMigrate = true
				require.ErrorIs(t, db.Use(p), outbox.ErrInvalid, "%s %q", what, name)
			}
		}
		tables, err := db.Migrator().GetTables()
		require.NoError(t, err)
		require.Equal(t, []string{"bait"}, tables)
	})
}

// sqlBlock is the SQL that the guide gives.
var sqlBlock = regexp.MustCompile("(?s)```sql\n(.*?)```")

// TestSecurity_RolesNeedFewRights gives three roles what docs/guarantees.md says, and no more.
func TestSecurity_RolesNeedFewRights(t *testing.T) {
	r := newRig(t)
	guide, err := os.ReadFile("../docs/guarantees.md")
	require.NoError(t, err)
	blocks := sqlBlock.FindAllSubmatch(guide, -1)
	require.Len(t, blocks, 1)
	for _, role := range []string{"shop_app", "shop_worker", "shop_hooks", "shop_operator"} {
		r.exec("CREATE ROLE " + role + " LOGIN")
		t.Cleanup(func() { r.exec("DROP OWNED BY " + role); r.exec("DROP ROLE " + role) })
	}
	r.exec(string(blocks[0][1]))
	as := func(role string) *gorm.DB { return r.open(func(c *pgx.ConnConfig) { c.User = role }) }
	app, worker, hooks, operator := as("shop_app"), as("shop_worker"), as("shop_hooks"), as("shop_operator")

	message := outbox.Message{Topic: orders, Recipient: address, IdempotencyKey: "k"}
	require.True(t, enqueue(t, app, message)[0].New)
	require.False(t, enqueue(t, app, message, outbox.Message{Topic: orders})[0].New)
	failing := r.processor(worker, outbox.ProcessorConfig{Transports: only(func(_ context.Context, d outbox.Delivery) (string, error) {
		return "id", map[bool]error{true: &policy.Failure{Category: policy.CategoryRejected}}[d.Recipient == address]
	})})
	require.Equal(t, outbox.Summary{Claimed: 2, Sent: 1, Discarded: 1}, failing.ProcessOnce(t.Context()))
	require.NoError(t, hooks.Transaction(func(tx *gorm.DB) error {
		_, err := outbox.ConsumeOnce(tx, "hooks", "1", func(tx *gorm.DB) error {
			found, err := outbox.RecordReceipt(tx, outbox.ProviderReceipt{ExternalID: "id", Status: outbox.ReceiptBounced, At: time.Now()})
			require.True(t, found)
			return err
		})
		return err
	}))
	listed, err := outbox.List(operator, outbox.ListOptions{Filter: outbox.Filter{All: true}})
	require.NoError(t, err)
	require.Len(t, listed, 2)
	_, err = outbox.Stats(operator)
	require.NoError(t, err)
	require.Zero(t, mustCount(t)(outbox.PurgeConsumed(operator, time.Hour)))
	require.EqualValues(t, 1, mustCount(t)(outbox.Redrive(operator, outbox.Filter{Topic: orders})))
	require.EqualValues(t, 1, mustCount(t)(outbox.Purge(operator, outbox.PurgeOptions{Before: time.Now().Add(time.Hour)})))

	const insert = "INSERT INTO outbox SELECT * FROM outbox"
	for statement, roles := range map[string][]*gorm.DB{
		"SELECT payload FROM outbox":           {app, hooks, operator},
		"SELECT recipient FROM outbox":         {app, hooks, operator},
		"UPDATE outbox SET recipient = 'x'":    {app, worker, hooks, operator},
		"UPDATE outbox SET payload = '1'":      {app, worker, hooks, operator},
		"UPDATE outbox SET topic = 'x'":        {app, worker, hooks, operator},
		"UPDATE outbox SET status = 'pending'": {app, hooks},
		"DELETE FROM outbox":                   {app, worker, hooks},
		insert:                                 {worker, hooks, operator},
		"ALTER TABLE outbox ADD COLUMN x int":  {app, worker, hooks, operator},
	} {
		for _, role := range roles {
			require.ErrorContains(t, role.Exec(statement).Error, "42501", statement)
		}
	}
	_, err = outbox.List(operator, outbox.ListOptions{Filter: outbox.Filter{All: true}, Reveal: true})
	require.ErrorContains(t, err, "42501")
}

// TestSecurity_WhoCanWriteTheTableCanSend is why that right is worth guarding: nothing tells such a row from another.
func TestSecurity_WhoCanWriteTheTableCanSend(t *testing.T) {
	r := newRig(t)
	r.exec(`INSERT INTO outbox (topic, type, recipient, payload, message_id, status, attempts, max_attempts, due_at, created_at, updated_at)
		VALUES ('orders', 'x', ?, '"by hand"', gen_random_uuid(), 'pending', 0, 1, now(), now(), now())`, address)
	box := &mailbox{}
	p := r.processor(r.open(), outbox.ProcessorConfig{Transports: map[string]outbox.Transport{orders: box}})
	require.Equal(t, 1, p.ProcessOnce(t.Context()).Sent)
	require.Equal(t, address, box.deliveries()[0].Recipient)
}

func TestSecurity_AnAnswerOfAnySizeIsCut(t *testing.T) {
	r := newRig(t)
	r.enqueue(1, outbox.Message{Type: "accepted"})
	r.enqueue(1, outbox.Message{Type: "refused"})
	flood := strings.Repeat("\x1b[2Jé\n", 4<<20)
	var log bytes.Buffer
	p := r.processor(r.open(), outbox.ProcessorConfig{
		Transports: only(func(_ context.Context, d outbox.Delivery) (string, error) {
			if d.Type == "accepted" {
				return flood, nil
			}
			return flood, &policy.Failure{
				Category: policy.Category(flood), Code: flood, Class: policy.Permanent, Err: errors.New(flood),
			}
		}),
		Concurrency: 1, Logger: slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	summary := p.ProcessOnce(t.Context())
	require.Equal(t, outbox.Summary{Claimed: 2, Sent: 1, Discarded: 1}, counts(summary))
	records := r.records()
	for text, limit := range map[string]int{*records[0].ExternalID: 255, *records[1].LastErrorCategory: 64, *records[1].LastErrorCode: 64} {
		require.Len(t, []rune(text), limit)
		require.NotRegexp(t, `[\x00-\x1f]`, text, "nothing that steers a terminal")
	}
	require.Less(t, log.Len(), 4096)
	require.NotContains(t, log.String(), `\u001b`)
}

// TestSecurity_HeadersOfAMessageStayInside: what an app has put beside a message, a session's token perhaps, is no
// business of an endpoint's.
func TestSecurity_HeadersOfAMessageStayInside(t *testing.T) {
	r, h := newRig(t), newHooks(t)
	app := openGorm(t, postgres.Open(r.dsn), gorm.Config{})
	require.NoError(t, app.Use(outbox.Plugin{Headers: func(context.Context) map[string]string {
		return map[string]string{"X-Session": secret}
	}}))
	enqueue(t, app, outbox.Message{
		Topic: orders, Type: "order.created", Recipient: h.URL + "/200", Headers: map[string]string{"Authorization": secret, "Cookie": secret},
	})
	transport, err := webhook.New(h.config())
	require.NoError(t, err)
	p := r.processor(r.open(), outbox.ProcessorConfig{Transports: map[string]outbox.Transport{orders: transport}})
	require.Equal(t, 1, p.ProcessOnce(t.Context()).Sent)

	got := h.received()
	require.Len(t, got, 1)
	require.NotContains(t, string(got[0].body), secret)
	for name, values := range got[0].header {
		require.NotContains(t, strings.Join(values, " "), secret, name)
	}
}
