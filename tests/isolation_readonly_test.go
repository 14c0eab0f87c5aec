package tests

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
)

// A database that takes no writes, as an operator or a failover may leave it. What must write says so with the
// database's own code, and what only reads goes on.
func TestIsolation_AReadOnlyDefault(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	receipts := r.enqueue(2, outbox.Message{})
	require.Equal(t, 2, r.processor(r.open(), outbox.ProcessorConfig{}).ProcessOnce(t.Context()).Sent)
	r.enqueue(3, outbox.Message{})
	everything := outbox.PurgeOptions{Before: time.Now().Add(time.Hour)}
	r.makeReadOnly(true)
	db := r.open()

	for name, write := range map[string]func(tx *gorm.DB) error{
		"Enqueue": func(tx *gorm.DB) error {
			_, err := outbox.Enqueue(tx, outbox.Message{Topic: orders})
			return err
		},
		"Cancel": func(tx *gorm.DB) error {
			_, err := outbox.Cancel(tx, outbox.Filter{All: true})
			return err
		},
		"RecordReceipt": func(tx *gorm.DB) error {
			_, err := outbox.RecordReceipt(tx, arrived(receipts[0]))
			return err
		},
		"ConsumeOnce": func(tx *gorm.DB) error {
			_, err := outbox.ConsumeOnce(tx, "credits", "m1", func(*gorm.DB) error { return nil })
			return err
		},
	} {
		require.Equal(t, "25006", stateOf(db.Transaction(write)), name)
	}
	_, err := outbox.Purge(db, everything)
	require.Equal(t, "25006", stateOf(err))
	p := r.processor(db, outbox.ProcessorConfig{})
	require.Equal(t, outbox.Summary{Errors: 1, LastError: "25006"}, counts(p.ProcessOnce(t.Context())))

	stats, err := outbox.Stats(db)
	require.NoError(t, err)
	require.EqualValues(t, 3, stats[0].Due)
	page, err := outbox.List(db, outbox.ListOptions{Filter: outbox.Filter{All: true}})
	require.NoError(t, err)
	require.Len(t, page, 5)
	everything.DryRun = true
	n, err := outbox.Purge(db, everything)
	require.NoError(t, err)
	require.EqualValues(t, 2, n)
	n, err = outbox.Redrive(db, outbox.Filter{All: true, DryRun: true})
	require.NoError(t, err)
	require.Zero(t, n)

	r.makeReadOnly(false)
	require.Equal(t, outbox.Summary{Claimed: 3, Sent: 3}, counts(r.processor(r.open(), outbox.ProcessorConfig{}).ProcessOnce(t.Context())))
	require.Equal(t, 5, r.count("status = 'sent' AND attempts = 1"))
}

// It becomes read-only while messages are with their transports: their outcomes wait until it takes writes again.
func TestIsolation_ReadOnlyInMidFlight(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueue(5, outbox.Message{})
	met := &failures{states: map[string]int{}}
	db := r.open(met.trace)
	pool, err := db.DB()
	require.NoError(t, err)
	pool.SetMaxIdleConns(-1) // each statement has a new session
	g := newGate(t, accept)
	round := r.round(context.Background(), r.processor(db, outbox.ProcessorConfig{Transports: map[string]outbox.Transport{orders: g}}))
	for range 5 {
		wait(r, "a delivery", g.entered)
	}
	r.makeReadOnly(true)
	g.open()
	r.await("refused twice", func() bool { return met.of("25006") >= 2 })
	r.makeReadOnly(false)

	require.Equal(t, outbox.Summary{Claimed: 5, Sent: 5, LastError: "25006"}, counts(wait(r, "the round", round)))
	require.Equal(t, 5, r.count("status = 'sent' AND attempts = 1"))
	require.Empty(t, g.entered, "delivered once")
}

// makeReadOnly is about sessions to come; the rig's own stay as they are.
func (r *rig) makeReadOnly(on bool) {
	r.Helper()
	name := scalar[string](r.test(), r.db, "SELECT current_database()")
	r.exec(fmt.Sprintf("SET default_transaction_read_only = off; ALTER DATABASE %q SET default_transaction_read_only = %t", name, on))
}
