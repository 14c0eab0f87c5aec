package outboxtest_test

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/glebarez/sqlite"
	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/outboxtest"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
)

func openSQLite(t *testing.T, plugins ...gorm.Plugin) *gorm.DB {
	t.Helper()
	db, err := gorm.Open(sqlite.Open(filepath.Join(t.TempDir(), "test.db")), &gorm.Config{})
	require.NoError(t, err)
	t.Cleanup(func() {
		pool, err := db.DB()
		require.NoError(t, err)
		require.NoError(t, pool.Close())
	})
	for _, p := range plugins {
		require.NoError(t, db.Use(p))
	}
	return db
}

func enqueue(t *testing.T, db *gorm.DB, ms ...outbox.Message) {
	t.Helper()
	require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
		_, err := outbox.EnqueueAll(tx, ms)
		return err
	}))
}

var confirmation = outbox.Message{
	Topic: "email", Type: "order_confirmation", Recipient: "ana@example.test", TenantID: "t1", IdempotencyKey: "order-7",
	Payload: map[string]any{"order": 7, "card": "4111"},
}

// card is the confirmation's payload in another form.
type card struct {
	Order int    `json:"order"`
	Card  string `json:"card"`
}

func TestRequireEnqueuedMatches(t *testing.T) {
	db := openSQLite(t, outbox.Plugin{})
	enqueue(t, db, confirmation, outbox.Message{Topic: "orders"})
	for name, m := range map[string]outboxtest.Match{
		"topic": {Topic: "email"}, "type": {Type: "order_confirmation"}, "recipient": {Recipient: "ana@example.test"},
		"tenant": {TenantID: "t1"}, "key": {IdempotencyKey: "order-7"},
		"payload as map":    {Payload: map[string]any{"card": "4111", "order": 7}},
		"payload as JSON":   {Payload: json.RawMessage(` {"order":7.0, "card":"4111"}`)},
		"payload as struct": {Payload: card{7, "4111"}},
		"null":              {Payload: json.RawMessage("null"), Topic: "orders"},
	} {
		text := failure(func(ft outboxtest.TB) { outboxtest.RequireEnqueued(ft, db, m) })
		require.Empty(t, text, name)
	}
	r := outboxtest.RequireEnqueued(t, db, outboxtest.Match{Topic: "email", Type: "order_confirmation", TenantID: "t1"})
	require.Equal(t, "order-7", *r.IdempotencyKey)
	outboxtest.RequireNotEnqueued(t, db, outboxtest.Match{Topic: "email", TenantID: "t2"})
	outboxtest.RequireNotEnqueued(t, db, outboxtest.Match{Payload: "7"})
	require.Len(t, outboxtest.RequireCount(t, db, 2, outboxtest.Match{}), 2)
}

func TestFailuresNameWhatIsEnqueuedAndNothingPrivate(t *testing.T) {
	db := openSQLite(t, outbox.Plugin{})
	wanted := outboxtest.Match{Topic: "sms", Type: "x", Recipient: "ana@example.test", IdempotencyKey: "k", Payload: "4111"}
	require.Equal(t, "0 enqueued with topic \"sms\", type \"x\", key \"k\", the recipient, the payload; must be 1\n"+
		"nothing is enqueued\n", failure(func(t outboxtest.TB) { outboxtest.RequireEnqueued(t, db, wanted) }))

	enqueue(t, db, confirmation, outbox.Message{Topic: "orders"})
	require.Equal(t, "2 enqueued; must be 0\nenqueued:\n"+
		"\ttopic \"email\", type \"order_confirmation\", key \"order-7\" (pending)\n"+
		"\ttopic \"orders\", type \"\" (pending)\n", failure(func(t outboxtest.TB) { outboxtest.RequireNotEnqueued(t, db, outboxtest.Match{}) }))

	enqueue(t, db, make25()...)
	text := failure(func(t outboxtest.TB) { outboxtest.RequireCount(t, db, 1, wanted) })
	require.Contains(t, text, "and 7 more")
	require.NotContains(t, text, "ana@")
	require.NotContains(t, text, "4111")
}

func make25() []outbox.Message {
	ms := make([]outbox.Message, 25)
	for i := range ms {
		ms[i] = outbox.Message{Topic: "many", Recipient: "ana@example.test", Payload: "4111"}
	}
	return ms
}

func TestAssertionsFindTheOutbox(t *testing.T) {
	renamed := outbox.Plugin{Table: "avisos", Tenant: outbox.TenantColumn{Name: "club_id", Type: "bigint"}}
	only := openSQLite(t, renamed)
	enqueue(t, only, outbox.Message{Topic: "email", TenantID: "42"})
	outboxtest.RequireEnqueued(t, only, outboxtest.Match{TenantID: "42"})
	outboxtest.RequireEnqueued(t, only, outboxtest.Match{Plugin: outbox.Plugin{Table: "avisos"}, TenantID: "42"})

	both := openSQLite(t, &renamed, outbox.Plugin{})
	enqueue(t, both, outbox.Message{Topic: "orders"})
	outboxtest.RequireEnqueued(t, both, outboxtest.Match{Topic: "orders"})
	outboxtest.RequireNotEnqueued(t, both, outboxtest.Match{Plugin: renamed})

	none := openSQLite(t)
	require.NotEmpty(t, failure(func(t outboxtest.TB) { outboxtest.RequireNotEnqueued(t, none, outboxtest.Match{}) }))
}

func TestAssertionsIgnoreTheHandlesClauses(t *testing.T) {
	db := openSQLite(t, outbox.Plugin{})
	require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
		_, err := outbox.Enqueue(tx, confirmation)
		require.NoError(t, err)
		outboxtest.RequireEnqueued(t, tx.Table("nowhere").Where("1 = 0").Select("x"), outboxtest.Match{})
		return nil
	}))
	unmarshalable := outboxtest.Match{Payload: make(chan int)}
	require.NotEmpty(t, failure(func(t outboxtest.TB) { outboxtest.RequireEnqueued(t, db, unmarshalable) }))
}
