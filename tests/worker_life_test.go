package tests

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/stretchr/testify/require"
)

func TestC25_WorkDoneAtShutdownIsRecorded(t *testing.T) { // not parallel: it counts goroutines
	r := newRig(t)
	r.enqueue(100, outbox.Message{Type: "quick"})
	j := newJournal(t)
	g := newGate(t, func(ctx context.Context, _ outbox.Delivery) (string, error) {
		return "done", ctx.Err() // the end of Run's context is not the attempt's
	})
	transport := func(ctx context.Context, d outbox.Delivery) (string, error) {
		if d.Type == "quick" {
			return "", nil
		}
		return g.Send(ctx, d)
	}
	db := r.open()
	p := r.processor(db, outbox.ProcessorConfig{
		Transports:  map[string]outbox.Transport{orders: j.transport("first", transport)},
		Concurrency: 2, BatchSize: 10, PollInterval: 20 * time.Millisecond, Lease: shortLease, Timeout: shortLease / 2,
	})
	p.ProcessOnce(t.Context()) // opens the pool's connections
	before := runtime.NumGoroutine()

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	r.await("the quick ones sent: Run claims ahead now", func() bool { return r.count("status = 'sent'") == 100 })
	receipts := r.enqueue(10, outbox.Message{Type: "slow"})
	wait(r, "the first", g.entered)
	wait(r, "the second", g.entered)
	cancel()
	pass(200 * time.Millisecond)
	g.open()

	require.NoError(t, wait(r, "the end of Run", ended))
	r.await("the goroutines are gone", func() bool { return runtime.NumGoroutine() <= before })
	require.Equal(t, 2, r.count("type = 'slow' AND status = 'sent' AND attempts = 1 AND external_id = 'done'"))
	require.Equal(t, 8, r.count("type = 'slow' AND status = 'pending' AND attempts = 0 AND due_at = created_at AND lease_token IS NULL"))

	again := r.processor(db, outbox.ProcessorConfig{Transports: map[string]outbox.Transport{orders: j.transport("second", accept)}})
	require.Equal(t, outbox.Summary{Claimed: 8, Sent: 8}, again.ProcessOnce(t.Context()))
	begun := j.begun(t)
	for _, receipt := range receipts {
		require.Equal(t, 1, begun[receipt.ID], "no second delivery after the restart")
	}
}

func TestC25_ARoundWhoseContextEndsReleasesTheRest(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueue(10, outbox.Message{})
	before := r.records()
	g := newGate(t, accept)
	ctx, cancel := context.WithCancel(t.Context())
	p := r.processor(r.open(), outbox.ProcessorConfig{Transports: map[string]outbox.Transport{orders: g}, Concurrency: 3})
	round := r.round(ctx, p)
	for range 3 {
		wait(r, "a delivery", g.entered)
	}
	cancel()
	g.open()

	require.Equal(t, outbox.Summary{Claimed: 10, Sent: 3, Released: 7}, counts(wait(r, "the round", round)))
	require.Equal(t, 3, r.count("status = 'sent'"))
	for i, after := range r.records() {
		if after.Status == outbox.StatusPending {
			before[i].UpdatedAt = after.UpdatedAt
			require.Equal(t, before[i], after)
		}
	}
	require.Equal(t, outbox.Summary{}, counts(p.ProcessOnce(ctx)), "with a context that has ended, nothing is claimed")
}

func TestC25_AShutdownLastsNoLongerThanTheTimeout(t *testing.T) {
	t.Parallel()
	for name, transport := range map[string]outbox.TransportFunc{
		"a transport that waits for its context": func(ctx context.Context, _ outbox.Delivery) (string, error) {
			<-ctx.Done()
			return "", ctx.Err()
		},
		"a transport that is deaf": func(context.Context, outbox.Delivery) (string, error) {
			<-t.Context().Done() // the end of the test
			return "", nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.enqueue(4, outbox.Message{})
			entered := make(chan struct{}, 4)
			p := r.processor(r.open(), outbox.ProcessorConfig{
				Concurrency: 4, Timeout: time.Second,
				Transports: only(func(ctx context.Context, d outbox.Delivery) (string, error) {
					entered <- struct{}{}
					return transport(ctx, d)
				}),
			})
			stop := r.start(p)
			for range 4 {
				wait(r, "a delivery", entered)
			}
			began := time.Now()

			stop()

			require.Less(t, time.Since(began), 2500*time.Millisecond)
			require.Equal(t, 4, r.count("status = 'pending' AND attempts = 1 AND last_error_category = 'timeout' AND lease_token IS NULL"))
		})
	}
}

func TestADeafTransportCostsItsAttemptAndNothingElse(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	deaf := r.enqueue(1, outbox.Message{Type: "deaf", MaxAttempts: 1000})[0]
	g := newGate(t, accept)
	var calls atomic.Int64
	p := r.processor(r.open(), outbox.ProcessorConfig{
		Concurrency: 2, Timeout: time.Second, PollInterval: 20 * time.Millisecond,
		Backoff: policy.Backoff{Base: 50 * time.Millisecond, Max: 100 * time.Millisecond},
		Transports: only(func(ctx context.Context, d outbox.Delivery) (string, error) {
			if d.ID == deaf.ID {
				calls.Add(1)
				return g.Send(ctx, d)
			}
			return "", nil
		}),
	})
	r.start(p)
	wait(r, "the deaf delivery", g.entered)
	began := time.Now()

	r.await("its attempt has ended", func() bool { return r.count("id = ? AND last_error_category = 'timeout'", deaf.ID) == 1 })
	require.InDelta(t, 1.25, time.Since(began).Seconds(), 1, "at the timeout")
	r.enqueue(200, outbox.Message{})
	r.await("the others are sent", func() bool { return r.count("status = 'sent'") == 200 })
	r.await("it was due several times since", func() bool { return r.count("id = ? AND attempts >= 4", deaf.ID) == 1 })
	require.EqualValues(t, 1, calls.Load(), "it is not sent again while the first call is inside")
	require.Equal(t, 1, r.count("id = ? AND status IN ('pending', 'processing') AND last_error_code = 'still_running'", deaf.ID))

	g.open()
	r.await("it is sent once the call is over", func() bool { return r.count("status = 'sent'") == 201 })
	require.EqualValues(t, 2, calls.Load())
}

// Deaf calls pile up in the transports; the slots that they were given do not stay taken.
func TestDeafTransportsDoNotUseUpTheSlots(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueue(4, outbox.Message{Type: "deaf"})
	g := newGate(t, accept)
	p := r.processor(r.open(), outbox.ProcessorConfig{
		Concurrency: 4, Timeout: time.Second, PollInterval: 20 * time.Millisecond,
		Transports: only(func(ctx context.Context, d outbox.Delivery) (string, error) {
			if d.Type == "deaf" {
				return g.Send(ctx, d)
			}
			return "", nil
		}),
	})
	r.start(p)
	for range 4 {
		wait(r, "a deaf delivery", g.entered)
	}
	r.enqueue(1, outbox.Message{Type: "good"})

	r.await("the good one is sent after the timeout of the others", func() bool { return r.count("type = 'good' AND status = 'sent'") == 1 })
	r.await("so are the outcomes of the others", func() bool { return r.count("type = 'deaf' AND last_error_category = 'timeout'") == 4 })
}

// What waits in a worker's queue is lost to idle workers elsewhere: Run claims what it can begin soon, no whole batch.
func TestRunClaimsNoMoreThanItCanBeginSoon(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueue(100, outbox.Message{})
	j := newJournal(t)
	stop := r.start(r.processor(r.open(), outbox.ProcessorConfig{
		Concurrency: 2, BatchSize: 100, Transports: map[string]outbox.Transport{orders: j.transport("worker", slow(200*time.Millisecond))},
	}))
	most := 0
	for len(j.events(t)) < 40 {
		most = max(most, r.count("status = 'processing'"))
		pass(10 * time.Millisecond)
	}
	stop()

	require.LessOrEqual(t, most, 2+12, "two inside, and what two can begin in a second")
	require.Equal(t, 100, r.count("status = 'sent' AND attempts = 1 OR status = 'pending' AND attempts = 0 AND due_at = created_at"))
}

func TestRunOfAContextThatHasEndedClaimsNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueue(3, outbox.Message{})
	before := r.records()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	require.NoError(t, r.processor(r.open(), outbox.ProcessorConfig{}).Run(ctx))

	require.Equal(t, before, r.records())
}
