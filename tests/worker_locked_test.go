package tests

import (
	"testing"

	"github.com/gorm-outbox/outbox"
	"github.com/stretchr/testify/require"
)

// Somebody holds one record locked, as a console or a long transaction may. The outcomes of the others are recorded
// while their leases last, and its own when the lock is gone.
func TestALockedRecordHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	for name, plugin := range map[string]outbox.Plugin{"kept": {}, "deleted": {DeleteSent: true}} {
		t.Run(name, func(t *testing.T) {
			r := newRigOn(t, cluster, plugin)
			r.enqueue(20, outbox.Message{})
			g := newGate(t, accept)
			p := r.processor(r.open(), outbox.ProcessorConfig{
				Transports: map[string]outbox.Transport{orders: g}, Lease: 3 * shortLease, Timeout: shortLease,
			})
			round := r.round(t.Context(), p)
			for range 20 {
				wait(r, "a delivery", g.entered)
			}
			lock := r.db.Begin()
			require.NoError(t, lock.Exec("SELECT id FROM outbox WHERE id = 3 FOR UPDATE").Error)
			g.open()
			r.await("the others recorded", func() bool { return r.count("status = 'processing'") == 1 })
			require.NoError(t, lock.Rollback().Error)

			s := wait(r, "the round", round)
			require.Equal(t, 20, s.Sent)
			require.Zero(t, s.Lost+s.Errors)
			require.Zero(t, r.count("status <> 'sent'"))
		})
	}
}

// Cancel meets a record that a claim is just taking, and its transaction then goes on for long. The worker must be
// able to record what came of it.
func TestCancelLeavesAClaimItsRecords(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueue(2, outbox.Message{})
	claim := r.db.Begin() // stands for a claim that is under way
	require.NoError(t, claim.Exec("UPDATE outbox SET status = 'processing' WHERE id = 1").Error)
	business := r.open().Begin()
	withdrawn, err := outbox.Plugin{}.Cancel(business, outbox.Filter{Topic: orders})
	require.NoError(t, err, "it does not wait for the claim")
	require.EqualValues(t, 1, withdrawn)
	require.NoError(t, claim.Commit().Error)
	r.exec("SET lock_timeout = '2s'; UPDATE outbox SET status = 'sent', sent_at = now() WHERE id = 1")
	require.NoError(t, business.Commit().Error)
	require.Equal(t, 1, r.count("status = 'cancelled' AND id = 2"))
}
