package tests

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
)

// fillSent adds n records that were sent an age ago, in one statement.
func (r *rig) fillSent(n int, age string) {
	r.Helper()
	r.exec(`INSERT INTO outbox (topic, type, recipient, payload, message_id, status, attempts, max_attempts, due_at, sent_at, created_at, updated_at)
		SELECT 'history', '', '', '{}', gen_random_uuid(), 'sent', 1, 8, now() - CAST(? AS interval), now() - CAST(? AS interval),
			now() - CAST(? AS interval), now()
		FROM generate_series(1, ?)`, age, age, age, n)
}

// stopAfter is a handle whose context ends after that many deletions, told by a callback of the app's.
func stopAfter(r *rig, deletions int) *gorm.DB {
	db := r.open()
	ctx, cancel := context.WithCancel(context.Background())
	r.Cleanup(cancel)
	require.NoError(r, db.Callback().Delete().After("gorm:delete").Register("stop", func(*gorm.DB) {
		if deletions--; deletions == 0 {
			cancel()
		}
	}))
	return db.WithContext(ctx)
}

func TestC31_PurgeWorksInChunksAndKeepsWhatItHasDone(t *testing.T) {
	r := newRig(t)
	r.fillSent(100_000, "40 days")
	r.enqueue(3, outbox.Message{})
	r.exec("UPDATE outbox SET due_at = now() - interval '40 days', created_at = now() - interval '40 days' WHERE topic = ?", orders)
	r.exec("UPDATE outbox SET status = 'sent', sent_at = now() WHERE id = (SELECT max(id) FROM outbox)") // long scheduled, sent today
	month := outbox.PurgeOptions{OlderThan: 30 * 24 * time.Hour}

	n, err := outbox.Purge(stopAfter(r, 3), month)
	require.ErrorIs(t, err, context.Canceled)
	require.EqualValues(t, 3000, n, "three chunks were done")
	require.Equal(t, 97_000, r.count("topic = 'history'"), "and stay so")

	n, err = outbox.Purge(r.db, month)
	require.NoError(t, err)
	require.EqualValues(t, 97_000, n)
	require.Equal(t, 3, r.count("topic = ?", orders), "what lives, and what was sent today however long ago it was due")
	for _, status := range []outbox.Status{outbox.StatusPending, outbox.StatusProcessing} {
		_, err := outbox.Purge(r.db, outbox.PurgeOptions{OlderThan: time.Second, Statuses: []outbox.Status{status}})
		require.ErrorIs(t, err, outbox.ErrInvalid)
	}
}

func TestC32_TheMarkerAndTheEffectAreOne(t *testing.T) {
	r := newRig(t)
	r.exec("CREATE TABLE balances (account text PRIMARY KEY, amount integer NOT NULL)")
	r.exec("INSERT INTO balances VALUES ('a', 0)")
	lost := errors.New("lost")
	consume := func(effect, outer error) (ran bool, err error) {
		err = r.db.Transaction(func(tx *gorm.DB) error {
			ran, err = outbox.ConsumeOnce(tx, "credits", "m1", func(tx *gorm.DB) error {
				return errors.Join(tx.Exec("UPDATE balances SET amount = amount + 10").Error, effect)
			})
			return errors.Join(err, outer)
		})
		return ran, err
	}
	balance := func() (amount int) {
		require.NoError(t, r.db.Raw("SELECT amount FROM balances").Scan(&amount).Error)
		return amount
	}
	_, err := consume(lost, nil)
	require.ErrorIs(t, err, lost)
	require.Zero(t, balance(), "fn failed")
	_, err = consume(nil, lost)
	require.ErrorIs(t, err, lost)
	require.Zero(t, balance(), "the transaction rolled back")
	ran, err := consume(nil, nil)
	require.NoError(t, err)
	require.True(t, ran)
	ran, err = consume(nil, nil)
	require.NoError(t, err)
	require.False(t, ran, "a redelivery")
	require.Equal(t, 10, balance())
	_, err = outbox.ConsumeOnce(r.db, "credits", "m2", func(*gorm.DB) error { return nil })
	require.ErrorIs(t, err, outbox.ErrNoTransaction)
}
