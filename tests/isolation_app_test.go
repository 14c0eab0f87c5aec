package tests

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
)

// eachAppLevel runs a test with an app whose transactions are as strict as can be.
func eachAppLevel(t *testing.T, test func(r *rig, level *sql.TxOptions)) {
	for _, level := range strictLevels {
		t.Run(level.String(), func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			require.NoError(t, r.db.AutoMigrate(&purchase{}, &credit{}))
			test(r, &sql.TxOptions{Isolation: level})
		})
	}
}

// test is the rig's test, for what wants no less.
func (r *rig) test() *testing.T { return r.TB.(*testing.T) }

// stateOf is the SQLSTATE of an error, however it is wrapped: what an app decides by whether to run its transaction
// again.
func stateOf(err error) string {
	var state interface{ SQLState() string }
	if errors.As(err, &state) {
		return state.SQLState()
	}
	return ""
}

// transient are the SQLSTATEs for which the database asks that the transaction be run again.
var transient = []string{"40001", "40P01"}

// untilItCommits is the loop that an app has around its transaction under a strict level. It gives how often the
// transaction was run in vain.
func untilItCommits(db *gorm.DB, level *sql.TxOptions, f func(tx *gorm.DB) error) (failures int, err error) {
	for {
		if err = db.Transaction(f, level); !slices.Contains(transient, stateOf(err)) {
			return failures, err
		}
		failures++
	}
}

// rivals run a transaction each, at the same moment: none goes on before all have a snapshot. A transaction that fails
// is run again. It gives how many did in vain.
func rivals(r *rig, n int, level *sql.TxOptions, f func(tx *gorm.DB, rival int) error) int {
	r.Helper()
	var snapshots, all sync.WaitGroup
	var failures atomic.Int64
	snapshots.Add(n)
	errs := make([]error, n)
	for i := range n {
		all.Go(func() {
			first := sync.OnceFunc(func() { snapshots.Done(); snapshots.Wait() })
			failed, err := untilItCommits(r.db, level, func(tx *gorm.DB) error {
				if err := tx.Create(&purchase{ID: int64(i)}).Error; err != nil { // takes the snapshot
					return err
				}
				first()
				return f(tx, i)
			})
			failures.Add(int64(failed))
			errs[i] = err
		})
	}
	all.Wait()
	require.NoError(r, errors.Join(errs...))
	require.EqualValues(r, n, count(r.test(), r.db, "purchases"), "each fact is there")
	return int(failures.Load())
}

// Transactions that enqueue one key at once under a strict level fail with the database's serialization failure, all but
// one. Run again, each has its business fact in the database, and all have one message.
func TestIsolation_RivalsForAKeyRunAgain(t *testing.T) {
	t.Parallel()
	eachAppLevel(t, func(r *rig, level *sql.TxOptions) {
		const n = 8
		receipts := make([]outbox.Receipt, n)
		failures := rivals(r, n, level, func(tx *gorm.DB, i int) (err error) {
			receipts[i], err = outbox.Enqueue(tx, outbox.Message{Topic: orders, IdempotencyKey: "order-7"})
			return err
		})

		require.GreaterOrEqual(r, failures, n-1, "the level was as strict as it was to be")
		record := r.record()
		fresh := 0
		for _, receipt := range receipts {
			require.Equal(r, record.ID, receipt.ID)
			require.Equal(r, record.MessageID, receipt.MessageID)
			if receipt.New {
				fresh++
			}
		}
		require.Equal(r, 1, fresh)
		require.Equal(r, 1, r.processor(r.open(), outbox.ProcessorConfig{}).ProcessOnce(r.Context()).Sent)
	})
}

// Messages without a key have nothing to be in conflict about, whatever the level.
func TestIsolation_MessagesWithoutAKeyNeverConflict(t *testing.T) {
	t.Parallel()
	eachAppLevel(t, func(r *rig, level *sql.TxOptions) {
		const n = 8
		failures := rivals(r, n, level, func(tx *gorm.DB, _ int) error {
			_, err := outbox.EnqueueAll(tx, []outbox.Message{{Topic: orders}, {Topic: orders}})
			return err
		})

		require.Zero(r, failures)
		require.Len(r, r.records(), 2*n)
	})
}

// Consumers that race for a message: one has the effect, the others are told to run again, and then find it consumed.
func TestIsolation_RivalConsumersHaveOneEffect(t *testing.T) {
	t.Parallel()
	eachAppLevel(t, func(r *rig, level *sql.TxOptions) {
		const n = 6
		var ran atomic.Int64
		failures := rivals(r, n, level, func(tx *gorm.DB, _ int) error {
			did, err := outbox.ConsumeOnce(tx, "credits", "m1", func(tx *gorm.DB) error {
				return tx.Create(&credit{Message: "m1"}).Error
			})
			if err == nil && did {
				ran.Add(1)
			}
			return err
		})

		require.GreaterOrEqual(r, failures, n-1)
		require.EqualValues(r, 1, ran.Load())
		require.EqualValues(r, 1, count(r.test(), r.db, "credits"))
		require.EqualValues(r, 1, count(r.test(), r.db, "outbox_processed"))
	})
}

// credit is the effect of a message.
type credit struct {
	ID      int64
	Message string
}

// snapshot begins a transaction that sees the database as it is now. It reads nothing of the outbox, which by itself
// could be a reason for a serialization failure.
func snapshot(r *rig, level *sql.TxOptions) *gorm.DB {
	r.Helper()
	tx := r.db.Begin(level)
	require.NoError(r, tx.Error)
	r.Cleanup(func() { tx.Rollback() })
	require.NoError(r, tx.Exec("SELECT 1").Error)
	return tx
}

// What a worker has done since the transaction began is a serialization failure for it: Cancel neither withdraws what
// has been sent nor says that there was nothing. Run again, the transaction sees that it came too late.
func TestIsolation_CancelOfWhatAWorkerTookMeanwhile(t *testing.T) {
	t.Parallel()
	eachAppLevel(t, func(r *rig, level *sql.TxOptions) {
		r.enqueue(1, outbox.Message{})
		late := outbox.Message{ScheduledFor: time.Now().Add(time.Hour)}
		waiting := r.enqueue(1, late)[0]
		tx := snapshot(r, level)
		require.Equal(r, 1, r.processor(r.open(), outbox.ProcessorConfig{}).ProcessOnce(r.Context()).Sent)

		_, err := outbox.Cancel(tx, outbox.Filter{Topic: orders})
		require.Equal(r, "40001", stateOf(err), "%v", err)
		require.NoError(r, tx.Rollback().Error)
		require.Equal(r, 1, r.count("status = 'pending'"))

		failures, err := untilItCommits(r.db, level, func(tx *gorm.DB) error {
			n, err := outbox.Cancel(tx, outbox.Filter{Topic: orders})
			require.EqualValues(r, 1, n)
			return err
		})
		require.NoError(r, err)
		require.Zero(r, failures)
		require.Equal(r, 1, r.count("status = 'cancelled' AND id = ?", waiting.ID))
		require.Equal(r, 1, r.count("status = 'sent'"))
	})
}

// A worker neither waits for a Cancel that is under way nor delivers what it withdraws.
func TestIsolation_AWorkerBesideACancel(t *testing.T) {
	t.Parallel()
	eachAppLevel(t, func(r *rig, level *sql.TxOptions) {
		for _, commits := range []bool{true, false} {
			r.exec("DELETE FROM outbox")
			receipts := r.enqueue(3, outbox.Message{})
			tx := snapshot(r, level)
			n, err := outbox.Cancel(tx, outbox.Filter{IDs: []int64{receipts[1].ID}})
			require.NoError(r, err)
			require.EqualValues(r, 1, n)
			p := r.processor(r.open(), outbox.ProcessorConfig{})
			require.Equal(r, outbox.Summary{Claimed: 2, Sent: 2}, counts(p.ProcessOnce(r.Context())))

			if commits {
				require.NoError(r, tx.Commit().Error)
				require.Equal(r, outbox.Summary{}, counts(p.ProcessOnce(r.Context())))
			} else {
				require.NoError(r, tx.Rollback().Error)
				require.Equal(r, outbox.Summary{Claimed: 1, Sent: 1}, counts(p.ProcessOnce(r.Context())))
			}
		}
	})
}

// A provider's receipt meets the worker's own write. The one that began first goes through; the other is told so, or,
// if it is the worker's, tried again.
func TestIsolation_AReceiptBesideTheWorkersWrite(t *testing.T) {
	t.Parallel()
	eachAppLevel(t, func(r *rig, level *sql.TxOptions) {
		receipts := r.enqueue(2, outbox.Message{})
		g := newGate(r, accept)
		strict := r.open(setting("default_transaction_isolation", "repeatable read"))
		p := r.processor(strict, outbox.ProcessorConfig{Transports: map[string]outbox.Transport{orders: g}})
		round := r.round(context.Background(), p)
		wait(r, "a delivery", g.entered)
		wait(r, "a delivery", g.entered)
		early, tx := snapshot(r, level), snapshot(r, level)
		found, err := outbox.RecordReceipt(tx, arrived(receipts[0]))
		require.NoError(r, err)
		require.True(r, found)

		g.open()
		waitsForLock(r.test(), r.db) // the worker, for the record with the receipt
		require.NoError(r, tx.Commit().Error)

		s := wait(r, "the round", round)
		require.Equal(r, outbox.Summary{Claimed: 2, Sent: 2, LastError: "40001"}, counts(s))
		require.Equal(r, 2, r.count("status = 'sent' AND attempts = 1"))
		require.Equal(r, 1, r.count("receipt_status = 'delivered'"))

		_, err = outbox.RecordReceipt(early, arrived(receipts[1]))
		require.Equal(r, "40001", stateOf(err), "%v", err)
		require.NoError(r, early.Rollback().Error)
		_, err = untilItCommits(r.db, level, func(tx *gorm.DB) error {
			_, err := outbox.RecordReceipt(tx, arrived(receipts[1]))
			return err
		})
		require.NoError(r, err)
		require.Equal(r, 2, r.count("status = 'sent' AND receipt_status = 'delivered'"))
	})
}

// arrived is a provider's word that a message has arrived.
func arrived(receipt outbox.Receipt) outbox.ProviderReceipt {
	return outbox.ProviderReceipt{
		Reference: outbox.Delivery{ID: receipt.ID, MessageID: receipt.MessageID}.Reference(),
		Status:    outbox.ReceiptDelivered, At: time.Now(),
	}
}

// Transactions that enqueue the same keys in different orders deadlock, as any inserts do. The one that the database ends
// learns it by its SQLSTATE, and has both messages when it is run again.
func TestIsolation_KeysInDifferentOrdersDeadlock(t *testing.T) {
	t.Parallel()
	levels := append([]sql.IsolationLevel{sql.LevelReadCommitted}, strictLevels...)
	for _, level := range levels {
		t.Run(level.String(), func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			var both, all sync.WaitGroup
			both.Add(2)
			states := make(chan string, 100)
			errs := make([]error, 2)
			for i := range errs {
				all.Go(func() {
					first := sync.OnceFunc(func() { both.Done(); both.Wait() })
					_, errs[i] = untilItCommits(r.db, &sql.TxOptions{Isolation: level}, func(tx *gorm.DB) error {
						err := enqueueKey(tx, i)
						if err == nil {
							first()
							err = enqueueKey(tx, 1-i)
						}
						if err != nil {
							states <- stateOf(err)
						}
						return err
					})
				})
			}
			all.Wait()

			require.NoError(t, errors.Join(errs...))
			require.Equal(t, "40P01", <-states)
			require.Len(t, r.records(), 2)
		})
	}
}

func enqueueKey(tx *gorm.DB, i int) error {
	_, err := outbox.Enqueue(tx, outbox.Message{Topic: orders, IdempotencyKey: fmt.Sprint("key-", i)})
	return err
}
