package outboxtest

import (
	"strings"
	"sync"
	"testing"

	"github.com/gorm-outbox/outbox"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
)

var keyChecks = []check{
	{"is one message in a transaction and across them", checkKeyRepeated},
	{"is one message per tenant", checkKeyPerTenant},
	{"is compared exactly", checkKeyExact},
	{"is free again after a rollback", checkKeyRolledBack},
	{"repeats in a batch", checkKeyInBatch},
	{"outlives the delivery", checkKeyAfterDelivery},
	{"races", checkKeyRace},
	{"waits for a transaction that commits", func(t *testing.T, db *gorm.DB) { checkKeyWaits(t, db, true) }},
	{"waits for a transaction that rolls back", func(t *testing.T, db *gorm.DB) { checkKeyWaits(t, db, false) }},
}

// keyed is a message under a key.
func keyed(key, kind string) outbox.Message {
	m := mail(kind)
	m.IdempotencyKey = key
	return m
}

// repeat is the receipt of a repeated message.
func repeat(first outbox.Receipt) outbox.Receipt {
	first.New = false
	return first
}

func checkKeyRepeated(t *testing.T, db *gorm.DB) {
	install(t, db)
	var first outbox.Receipt
	require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
		first = enqueueIn(t, tx, keyed("order-7", "first"))
		require.True(t, first.New)
		require.Equal(t, repeat(first), enqueueIn(t, tx, keyed("order-7", "same transaction")))
		return nil
	}))
	before := record(t, db, first.ID)
	require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
		require.NoError(t, tx.Create(&contractOrder{ID: 7}).Error)
		second := keyed("order-7", "later transaction")
		second.Topic, second.Payload, second.Delay, second.MaxAttempts = "other", "other", 1000, 99
		require.Equal(t, repeat(first), enqueueIn(t, tx, second))
		return tx.Create(&contractOrder{ID: 8}).Error // the transaction has survived it
	}))
	requireOrders(t, db, 7, 8)
	require.Equal(t, []outbox.Record{before}, records(t, db), "the first message stays as it was")

	unkeyed := enqueue(t, db, mail("same"), mail("same"))
	require.True(t, unkeyed[0].New && unkeyed[1].New, "without a key every call is a message")
}

func checkKeyPerTenant(t *testing.T, db *gorm.DB) {
	install(t, db)
	var ms []outbox.Message
	for _, tenant := range []string{"", "t1", "t2"} {
		for _, key := range []string{"k1", "k2"} {
			m := keyed(key, tenant)
			m.TenantID = tenant
			ms = append(ms, m)
		}
	}
	receipts := enqueue(t, db, ms...)
	for i, again := range enqueue(t, db, ms...) {
		require.True(t, receipts[i].New)
		require.Equal(t, repeat(receipts[i]), again)
	}
	RequireCount(t, db, len(ms), Match{})
}

func checkKeyExact(t *testing.T, db *gorm.DB) {
	install(t, db)
	keys := []string{
		"order-7", "Order-7", "order-7 ", " order-7", "order_7", "order%", "é", "e\u0301", "\t", "'", `"`, "?", "$1", "null",
		strings.Repeat("k", 200), strings.Repeat("ñ", 200), strings.Repeat("😀", 200), "😀",
	}
	for _, key := range keys {
		require.True(t, enqueue(t, db, keyed(key, "first"))[0].New, "%q", key)
	}
	for _, key := range keys {
		require.False(t, enqueue(t, db, keyed(key, "again"))[0].New, "%q", key)
		RequireEnqueued(t, db, Match{IdempotencyKey: key, Type: "first"})
	}
}

func checkKeyRolledBack(t *testing.T, db *gorm.DB) {
	install(t, db)
	require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
		require.ErrorIs(t, tx.Transaction(func(inner *gorm.DB) error {
			enqueueIn(t, inner, keyed("k", "undone"))
			return errContract
		}), errContract)
		require.True(t, enqueueIn(t, tx, keyed("k", "kept")).New)
		return nil
	}))
	RequireEnqueued(t, db, Match{IdempotencyKey: "k", Type: "kept"})
}

func checkKeyInBatch(t *testing.T, db *gorm.DB) {
	install(t, db)
	old := enqueue(t, db, keyed("old", "old"))[0]
	ms := []outbox.Message{
		keyed("a", "first"), keyed("old", "again"), keyed("b", "first"), keyed("a", "again"), mail("bare"), mail("bare"),
		keyed("old", "again"), keyed("a", "again"),
	}
	const many = 1100 // more than one statement takes, with repeats across them
	for i := 0; i < many; i++ {
		ms = append(ms, keyed("many-"+pad(i), "first"))
	}
	ms = append(ms, keyed("b", "again"), keyed("many-"+pad(0), "again"))
	rs := enqueue(t, db, ms...)

	var at []int
	for i, r := range rs {
		if !r.New {
			at = append(at, i)
		}
	}
	require.Equal(t, []int{1, 3, 6, 7, len(rs) - 2, len(rs) - 1}, at)
	require.Equal(t, repeat(old), rs[1])
	require.Equal(t, repeat(rs[0]), rs[3])
	require.Equal(t, repeat(old), rs[6])
	require.Equal(t, repeat(rs[0]), rs[7])
	require.Equal(t, repeat(rs[2]), rs[len(rs)-2])
	require.Equal(t, repeat(rs[8]), rs[len(rs)-1])
	RequireNotEnqueued(t, db, Match{Type: "again"})
	RequireCount(t, db, 1+4+many, Match{})

	for i, r := range enqueue(t, db, ms...) {
		require.Equal(t, ms[i].IdempotencyKey == "", r.New)
		if !r.New {
			require.Equal(t, repeat(rs[i]), r)
		}
	}
}

func checkKeyAfterDelivery(t *testing.T, db *gorm.DB) {
	install(t, db)
	first := enqueue(t, db, keyed("sent", "sent"), keyed("dead", "dead"))
	once(t, db, configure(NewRecorder().For(OfType("dead"), Refuse("rejected", "no"))))
	again := enqueue(t, db, keyed("sent", "again"), keyed("dead", "again"))
	require.Equal(t, []outbox.Receipt{repeat(first[0]), repeat(first[1])}, again)
}

func checkKeyRace(t *testing.T, db *gorm.DB) {
	install(t, db)
	const n = 50
	receipts, errs := make([]outbox.Receipt, n), make([]error, n)
	var all sync.WaitGroup
	start := make(chan struct{})
	for i := 0; i < n; i++ {
		all.Add(1)
		go func() {
			defer all.Done()
			<-start
			errs[i] = db.Transaction(func(tx *gorm.DB) (err error) {
				receipts[i], err = outbox.Enqueue(tx, keyed("k", "one"))
				return err
			})
		}()
	}
	close(start)
	all.Wait()
	r := RequireEnqueued(t, db, Match{})
	fresh := 0
	for i := range receipts {
		require.NoError(t, errs[i])
		require.Equal(t, r.ID, receipts[i].ID)
		require.Equal(t, r.MessageID, receipts[i].MessageID)
		if receipts[i].New {
			fresh++
		}
	}
	require.Equal(t, 1, fresh)
}

// checkKeyWaits has a second transaction enqueue a key while the first, which has just enqueued it, is open.
func checkKeyWaits(t *testing.T, db *gorm.DB, commit bool) {
	install(t, db)
	first := db.Begin()
	require.NoError(t, first.Error)
	held := enqueueIn(t, first, keyed("k", "first"))

	var second outbox.Receipt
	begun, done := make(chan struct{}), make(chan error, 1)
	go func() {
		close(begun)
		done <- db.Transaction(func(tx *gorm.DB) (err error) {
			second, err = outbox.Enqueue(tx, keyed("k", "second"))
			return err
		})
	}()
	<-begun
	if commit {
		require.NoError(t, first.Commit().Error)
		require.NoError(t, <-done)
		require.Equal(t, repeat(held), second)
		return
	}
	require.NoError(t, first.Rollback().Error)
	require.NoError(t, <-done)
	require.True(t, second.New)
	RequireEnqueued(t, db, Match{Type: "second"})
}
