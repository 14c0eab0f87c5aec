package tests

import (
	"context"
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/stretchr/testify/require"
)

// strictly has a pool's transactions, and every statement outside one, at a strict level.
func strictly(level sql.IsolationLevel) option {
	return setting("default_transaction_isolation", strings.ToLower(level.String()))
}

// eachWorkerLevel runs a test with workers whose sessions have a strict level by default.
func eachWorkerLevel(t *testing.T, test func(r *rig, level option)) {
	for _, level := range strictLevels {
		t.Run(level.String(), func(t *testing.T) {
			t.Parallel()
			test(newRig(t), strictly(level))
		})
	}
}

// A claim whose records another transaction has written since its snapshot is refused. That is a round in which nothing
// was claimed: no attempt is charged and nothing delivered.
func TestIsolation_AClaimThatIsRefusedTakesNothing(t *testing.T) {
	t.Parallel()
	eachWorkerLevel(t, func(r *rig, level option) {
		calls := newJournal(r)
		db := r.open(level)
		pool, err := db.DB()
		require.NoError(r, err)
		pool.SetMaxOpenConns(1)
		p := r.processor(db, outbox.ProcessorConfig{Transports: map[string]outbox.Transport{orders: calls.transport("worker", accept)}})
		require.Zero(r, p.ProcessOnce(context.Background()).Claimed) // prepares the statement
		r.enqueue(5, outbox.Message{})
		other := r.db.Begin()
		require.NoError(r, other.Exec("LOCK TABLE outbox").Error)
		round := r.round(context.Background(), p)
		waitsForLock(r.test(), r.db) // with its snapshot taken
		require.NoError(r, other.Exec("UPDATE outbox SET receipt_code = 'x'").Error)
		require.NoError(r, other.Commit().Error)

		require.Equal(r, outbox.Summary{Errors: 1, LastError: "40001"}, counts(wait(r, "the round", round)))
		require.Equal(r, 5, r.count("status = 'pending' AND attempts = 0"))
		require.Empty(r, calls.begun(r))

		require.Equal(r, outbox.Summary{Claimed: 5, Sent: 5}, counts(p.ProcessOnce(context.Background())))
		require.Equal(r, 5, r.count("status = 'sent' AND attempts = 1"))
	})
}

// Purge meets a record that the app is writing. The operator learns what the database says, and runs it again.
func TestIsolation_PurgeSaysThatItWasRefused(t *testing.T) {
	t.Parallel()
	eachWorkerLevel(t, func(r *rig, level option) {
		receipts := r.enqueue(3, outbox.Message{})
		require.Equal(r, 3, r.processor(r.open(), outbox.ProcessorConfig{}).ProcessOnce(r.Context()).Sent)
		everything := outbox.PurgeOptions{Before: time.Now().Add(time.Hour)}
		app := r.db.Begin()
		found, err := outbox.RecordReceipt(app, arrived(receipts[1]))
		require.NoError(r, err)
		require.True(r, found)
		strict := r.open(level)
		result := make(chan error, 1)
		go func() {
			_, err := outbox.Purge(strict, everything)
			result <- err
		}()
		waitsForLock(r.test(), r.db)
		require.NoError(r, app.Commit().Error)

		require.Equal(r, "40001", stateOf(wait(r, "the purge", result)))
		n, err := outbox.Purge(strict, everything)
		require.NoError(r, err)
		require.EqualValues(r, 3, n)
	})
}

// A worker that has stalled writes while another claim of its record is just being committed. The database refuses the
// write; tried again, it finds its lease gone and leaves the record alone.
func TestIsolation_AWriteThatMeetsAnotherClaim(t *testing.T) {
	t.Parallel()
	eachWorkerLevel(t, func(r *rig, level option) {
		r.enqueue(1, outbox.Message{})
		g := newGate(r, accept)
		round := r.round(context.Background(), r.processor(r.open(level), outbox.ProcessorConfig{Transports: map[string]outbox.Transport{orders: g}}))
		wait(r, "a delivery", g.entered)
		other := r.db.Begin()
		require.NoError(r, other.Exec(`UPDATE outbox SET lease_token = 'another', lease_owner = 'another', attempts = 2`).Error)
		g.open()
		waitsForLock(r.test(), r.db)
		require.NoError(r, other.Commit().Error)

		require.Equal(r, outbox.Summary{Claimed: 1, Lost: 1, LastError: "40001"}, counts(wait(r, "the round", round)))
		require.Equal(r, 1, r.count("status = 'processing' AND lease_token = 'another' AND attempts = 2 AND external_id IS NULL"))
	})
}
