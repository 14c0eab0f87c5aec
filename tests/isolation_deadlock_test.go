package tests

import (
	"context"
	"testing"

	"github.com/gorm-outbox/outbox"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
)

// A worker's write and the app's lock the same records in opposite orders, and the database ends one of them. It is the
// one that closes the circle, here, since only its session looks for deadlocks in time. The worker's write is tried
// again, and no message is delivered twice; the app is told.
func TestIsolation_AWriteThatDeadlocks(t *testing.T) {
	t.Parallel()
	t.Run("the worker's", func(t *testing.T) {
		t.Parallel()
		d := newDeadlock(t, "10ms", "1min")
		d.appAsks()
		d.await("the app waits for the worker", func() bool { return d.waiting("app") })
		d.workerGoesOn()

		require.NoError(t, wait(d.rig, "the app's write", d.answer))
		require.NoError(t, d.app.Commit().Error)
		d.requireSent("40P01")
		require.Equal(t, 2, d.count("receipt_status = 'delivered'"))
	})
	t.Run("the app's", func(t *testing.T) {
		t.Parallel()
		d := newDeadlock(t, "1min", "10ms")
		d.workerGoesOn()
		d.await("the worker waits for the app", func() bool { return d.waiting("worker") })
		d.appAsks()

		require.Equal(t, "40P01", stateOf(wait(d.rig, "the app's write", d.answer)))
		require.NoError(t, d.app.Rollback().Error)
		d.requireSent("")
		require.Zero(t, d.count("receipt_status = 'delivered'"))
	})
}

// deadlock is a worker that has locked the second of three records and will want the third, and an app that has locked
// the third.
type deadlock struct {
	*rig
	receipts     []outbox.Receipt
	round        <-chan outbox.Summary
	attempts     chan int64
	app          *gorm.DB
	answer       chan error // to the app
	workerGoesOn func()
}

// newDeadlock has each side's session look for a deadlock when it has waited for so long, and not again.
func newDeadlock(t *testing.T, workerLooks, appLooks string) *deadlock {
	r := newRig(t)
	r.exec(stopTrigger)
	d := &deadlock{rig: r, receipts: r.enqueue(3, outbox.Message{}), attempts: make(chan int64, 10), answer: make(chan error, 1)}
	firstGoesOn := r.stopWriteOf(d.receipts[0])
	d.workerGoesOn = r.stopWriteOf(d.receipts[1])
	turns := map[int64]chan struct{}{}
	for _, receipt := range d.receipts {
		turns[receipt.ID] = make(chan struct{})
	}
	worker := r.open(setting("deadlock_timeout", workerLooks), setting("application_name", "worker"))
	d.round = r.round(context.Background(), r.processor(worker, outbox.ProcessorConfig{
		Transports: only(func(_ context.Context, d outbox.Delivery) (string, error) { <-turns[d.ID]; return "accepted", nil }),
		OnAttempt:  func(_ context.Context, a outbox.Attempt) { d.attempts <- a.Delivery.ID },
	}))
	for i, receipt := range d.receipts { // the last two while the first is being written: they are the next write
		close(turns[receipt.ID])
		require.Equal(t, receipt.ID, wait(r, "an attempt", d.attempts))
		if i == 0 {
			d.awaitStop()
		}
	}
	d.app = r.open(setting("deadlock_timeout", appLooks), setting("application_name", "app")).Begin()
	require.NoError(t, d.app.Error)
	found, err := outbox.RecordReceipt(d.app, arrived(d.receipts[2]))
	require.NoError(t, err)
	require.True(t, found)
	firstGoesOn()
	d.await("the first is written", func() bool { return r.count("status = 'sent'") == 1 })
	d.awaitStop()
	return d
}

// appAsks has the app want the worker's record.
func (d *deadlock) appAsks() {
	go func() {
		_, err := outbox.RecordReceipt(d.app, arrived(d.receipts[1]))
		d.answer <- err
	}()
}

// requireSent holds that everything was delivered, once.
func (d *deadlock) requireSent(lastError string) {
	d.Helper()
	require.Equal(d, outbox.Summary{Claimed: 3, Sent: 3, LastError: lastError}, counts(wait(d.rig, "the round", d.round)))
	require.Equal(d, 3, d.count("status = 'sent' AND attempts = 1"))
	require.Empty(d, d.attempts)
}

// waiting reports whether a side waits for the other's record.
func (d *deadlock) waiting(side string) bool {
	d.Helper()
	return scalar[int](d.test(), d.db, `SELECT count(*) FROM pg_stat_activity
		WHERE datname = current_database() AND wait_event IN ('transactionid', 'tuple') AND application_name = ?`, side) > 0
}

const stopTrigger = `
CREATE FUNCTION stop() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
	IF NEW.status = 'sent' AND OLD.status <> 'sent' THEN PERFORM pg_advisory_xact_lock_shared(NEW.id); END IF;
	RETURN NEW;
END $$;
CREATE TRIGGER stop BEFORE UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION stop()`

// stopWriteOf has whoever records a record as sent stop there, with what is locked by then, until it may go on.
func (r *rig) stopWriteOf(receipt outbox.Receipt) (goOn func()) {
	r.Helper()
	lock := r.db.Begin()
	r.Cleanup(func() { lock.Rollback() })
	require.NoError(r, lock.Exec("SELECT pg_advisory_xact_lock(?)", receipt.ID).Error)
	return func() { require.NoError(r, lock.Commit().Error) }
}

// awaitStop waits until a write has stopped.
func (r *rig) awaitStop() {
	r.Helper()
	r.await("a write stops", func() bool {
		return scalar[int](r.test(), r.db, `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event = 'advisory'`) > 0
	})
}
