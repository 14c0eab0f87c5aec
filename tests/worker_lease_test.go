package tests

import (
	"context"
	"errors"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/stretchr/testify/require"
)

// shortLease is the shortest there may be.
const shortLease = 5 * time.Second

func TestC09_ALateWriteIsFencedOff(t *testing.T) {
	t.Parallel()
	late := map[string]struct {
		answer      error
		maxAttempts int
	}{
		"success":           {nil, 8},
		"failure":           {errors.New("no route"), 8},
		"permanent refusal": {&policy.Failure{Category: policy.CategoryRejected, Code: "late"}, 8},
		"last failure":      {errors.New("no route"), 2},
	}
	for name, tt := range late {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.enqueue(1, outbox.Message{MaxAttempts: tt.maxAttempts})
			g := newGate(t, func(context.Context, outbox.Delivery) (string, error) { return "of the first", tt.answer })
			first := r.round(t.Context(), r.processor(r.open(), outbox.ProcessorConfig{Transports: map[string]outbox.Transport{orders: g}}))
			wait(r, "the first delivery", g.entered)

			r.endLeases()
			second := r.processor(r.open(), outbox.ProcessorConfig{Transports: only(
				func(context.Context, outbox.Delivery) (string, error) { return "of the second", nil },
			)})
			require.Equal(t, outbox.Summary{Claimed: 1, Sent: 1}, second.ProcessOnce(t.Context()))
			recorded := r.record()
			require.Equal(t, 2, recorded.Attempts)
			require.Equal(t, "of the second", *recorded.ExternalID)

			g.open()
			require.Equal(t, outbox.Summary{Claimed: 1, Lost: 1}, wait(r, "the first round", first))
			require.Equal(t, recorded, r.record(), "the late write changed nothing")
		})
	}
}

func TestC09_ALateReleaseIsFencedOff(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueue(3, outbox.Message{})
	g := newGate(t, accept)
	ctx, cancel := context.WithCancel(t.Context())
	first := r.round(ctx, r.processor(r.open(), outbox.ProcessorConfig{
		Transports: map[string]outbox.Transport{orders: g}, Concurrency: 1,
	}))
	wait(r, "the first delivery", g.entered)
	cancel() // the two that wait in the queue will be released

	r.endLeases()
	second := r.processor(r.open(), outbox.ProcessorConfig{})
	require.Equal(t, outbox.Summary{Claimed: 3, Sent: 3}, second.ProcessOnce(t.Context()))
	recorded := r.records()

	g.open()
	require.Equal(t, outbox.Summary{Claimed: 3, Lost: 3}, counts(wait(r, "the first round", first)))
	require.Equal(t, recorded, r.records())
}

// Where sent records are deleted, a late success must not delete what another claim decided about.
func TestC09_ALateDeletionIsFencedOff(t *testing.T) {
	t.Parallel()
	r := newRigOn(t, cluster, outbox.Plugin{DeleteSent: true})
	r.enqueue(1, outbox.Message{})
	g := newGate(t, accept)
	first := r.round(t.Context(), r.processor(r.open(), outbox.ProcessorConfig{Transports: map[string]outbox.Transport{orders: g}}))
	wait(r, "the first delivery", g.entered)
	r.endLeases()
	second := r.processor(r.open(), outbox.ProcessorConfig{Transports: only(
		func(context.Context, outbox.Delivery) (string, error) { return "", errors.New("down") },
	)})
	require.Equal(t, outbox.Summary{Claimed: 1, Retried: 1}, second.ProcessOnce(t.Context()))
	recorded := r.record()

	g.open()
	require.Equal(t, outbox.Summary{Claimed: 1, Lost: 1}, wait(r, "the first round", first))
	require.Equal(t, recorded, r.record())
}

// A late write while the second claim is still under way must not end that claim either.
func TestC09_ALateWriteLeavesALiveLeaseAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueue(1, outbox.Message{})
	first, second := newGate(t, accept), newGate(t, accept)
	firstRound := r.round(t.Context(), r.processor(r.open(), outbox.ProcessorConfig{
		Transports: map[string]outbox.Transport{orders: first}, Owner: "same",
	}))
	wait(r, "the first delivery", first.entered)
	r.endLeases()
	secondRound := r.round(t.Context(), r.processor(r.open(), outbox.ProcessorConfig{
		Transports: map[string]outbox.Transport{orders: second}, Owner: "same", // the owner is no fence
	}))
	wait(r, "the second delivery", second.entered)
	leased := r.record()

	first.open()
	require.Equal(t, 1, wait(r, "the first round", firstRound).Lost)
	require.Equal(t, leased, r.record())

	second.open()
	require.Equal(t, 1, wait(r, "the second round", secondRound).Sent)
	require.Equal(t, 2, r.record().Attempts)
}

// The real thing, without the test's hand on the lease: a process that is stopped for longer than its lease.
func TestC09_AStalledProcessComesBackTooLate(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueue(1, outbox.Message{})
	j := newJournal(t)
	stalled := r.startWorker(workerConfig{
		Journal: j.path(), Owner: "stalled", Lease: shortLease, Timeout: 2 * time.Second, Once: true, Work: 500 * time.Millisecond,
	})
	r.await("the delivery has begun", func() bool { return len(j.events(t)) == 1 })
	require.NoError(t, stalled.cmd.Process.Signal(syscall.SIGSTOP))
	r.start(r.processor(r.open(), outbox.ProcessorConfig{
		Transports: map[string]outbox.Transport{orders: j.transport("second", accept)}, PollInterval: 50 * time.Millisecond,
	}))
	r.await("the second worker has it sent", func() bool { return r.record().Status == outbox.StatusSent })
	recorded := r.record()

	require.NoError(t, stalled.cmd.Process.Signal(syscall.SIGCONT))

	require.Equal(t, outbox.Summary{Claimed: 1, Lost: 1}, counts(stalled.summary()))
	require.Equal(t, recorded, r.record())
	require.Equal(t, 2, recorded.Attempts)
	require.Equal(t, "accepted", *recorded.ExternalID)
}

func TestC10_AMessageOfAKilledProcessIsReclaimed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	receipts := r.enqueue(1, outbox.Message{})
	j := newJournal(t)
	doomed := r.startWorker(workerConfig{Journal: j.path(), Owner: "doomed", Lease: shortLease, Hang: true})
	r.await("the delivery has begun", func() bool { return len(j.events(t)) == 1 })
	leasedUntil := *r.record().LeasedUntil

	doomed.kill()
	r.start(r.processor(r.open(), outbox.ProcessorConfig{
		Transports: map[string]outbox.Transport{orders: j.transport("second", accept)}, PollInterval: 50 * time.Millisecond,
	}))
	r.await("another worker has it sent", func() bool { return r.record().Status == outbox.StatusSent })

	require.Equal(t, 2, r.record().Attempts)
	require.Equal(t, map[int64]int{receipts[0].ID: 2}, j.begun(t))
	require.False(t, r.record().SentAt.Before(leasedUntil), "not before the lease ended")
}

func TestC10_AMessageThatKillsItsWorkersFails(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	receipts := r.enqueue(1, outbox.Message{MaxAttempts: 3})
	j := newJournal(t)
	for n := 1; n <= 3; n++ {
		doomed := r.startWorker(workerConfig{Journal: j.path(), Owner: "doomed", Hang: true})
		r.await("the delivery has begun", func() bool { return j.begun(t)[receipts[0].ID] == n })
		require.Equal(t, n, r.record().Attempts)
		doomed.kill()
		r.endLeases()
	}

	p := r.processor(r.open(), outbox.ProcessorConfig{Transports: map[string]outbox.Transport{orders: j.transport("last", accept)}})
	require.Equal(t, outbox.Summary{Claimed: 1, Failed: 1}, p.ProcessOnce(t.Context()))

	record := r.record()
	require.Equal(t, 3, j.begun(t)[receipts[0].ID], "no fourth call")
	require.Equal(t, outbox.StatusFailed, record.Status)
	require.Equal(t, "lease_expired", *record.LastErrorCategory)
	require.Equal(t, "lease_expired", *record.LastErrorCode)
	require.Equal(t, 3, record.Attempts)
	require.NotNil(t, record.DeadAt)
	require.Nil(t, record.SentAt)
	require.Nil(t, record.LeaseToken)
	require.Nil(t, record.LeaseOwner)
	require.Nil(t, record.LeasedUntil)
	require.Equal(t, outbox.Summary{}, p.ProcessOnce(t.Context()), "it is never seen again")
}

// With a lease of 5 s and a timeout of 2.5 s, a delivery may begin only in the first 1.5 s of the lease.
func TestC11_WhatComesTooLateIsReleased(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	receipts := r.enqueue(10, outbox.Message{})
	before := r.records()
	j := newJournal(t)
	cfg := outbox.ProcessorConfig{
		Transports:  map[string]outbox.Transport{orders: j.transport("first", slow(400*time.Millisecond))},
		Concurrency: 1, BatchSize: 10, Lease: shortLease, Timeout: shortLease / 2,
	}
	p := r.processor(r.open(), cfg)

	s := p.ProcessOnce(t.Context())

	require.Equal(t, 10, s.Claimed)
	require.Equal(t, 10, s.Sent+s.Released)
	require.Positive(t, s.Sent)
	require.Positive(t, s.Released)
	require.Len(t, s.Warnings, 1, "the lease is too short for the queue, and it says so")
	begun := j.begun(t)
	require.Len(t, begun, s.Sent)
	for i, after := range r.records() {
		if begun[after.ID] > 0 {
			require.Equal(t, outbox.StatusSent, after.Status)
			continue
		}
		before[i].UpdatedAt = after.UpdatedAt
		require.Equal(t, before[i], after, "released: pending, due as before, attempts and lease as if never claimed")
	}

	r.enqueue(10, outbox.Message{}) // a released record keeps its place before these
	j2 := newJournal(t)
	cfg.Transports, cfg.BatchSize = map[string]outbox.Transport{orders: j2.transport("next", accept)}, s.Released
	r.processor(r.open(), cfg).ProcessOnce(t.Context())
	j2.requireOnceEach(t, receipts[s.Sent:])
}

func TestC11_NoMessageIsEverInsideTwoHandlers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	receipts := r.enqueue(16, outbox.Message{})
	j := newJournal(t)
	var released atomic.Int64
	ended := make(chan struct{}, 2)
	ctx, cancel := context.WithTimeout(t.Context(), workerPatience)
	defer cancel()
	for _, who := range []string{"first", "second"} {
		p := r.processor(r.open(), outbox.ProcessorConfig{
			Transports:  map[string]outbox.Transport{orders: j.transport(who, slow(400*time.Millisecond))},
			Concurrency: 1, BatchSize: 10, Lease: shortLease, Timeout: shortLease / 2,
		})
		go func() {
			defer func() { ended <- struct{}{} }()
			for ctx.Err() == nil && len(j.events(t)) < 2*len(receipts) {
				released.Add(int64(p.ProcessOnce(ctx).Released))
			}
		}()
	}
	for range 2 {
		wait(r, "a worker", ended)
	}

	require.Positive(t, released.Load())
	j.requireNeverTwoAtATime(t)
	j.requireOnceEach(t, receipts)
	require.Equal(t, len(receipts), r.count("status = 'sent' AND attempts = 1"))
}

// slow accepts after a while, unless its context ends first.
func slow(d time.Duration) outbox.TransportFunc {
	return func(ctx context.Context, _ outbox.Delivery) (string, error) {
		select {
		case <-time.After(d):
			return "", nil
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

func TestC12_AMessageForAnotherProcessIsLeftAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueue(5, outbox.Message{Topic: "sms"})
	r.enqueue(2, outbox.Message{Topic: "email"})
	var email, sms atomic.Int64
	older := r.processor(r.open(), outbox.ProcessorConfig{Transports: map[string]outbox.Transport{"email": counting(&email)}})
	before := r.records()
	for range 10 {
		older.ProcessOnce(t.Context())
	}
	require.EqualValues(t, 2, email.Load())
	require.Equal(t, before[:5], r.records()[:5])

	// A worker that knew the topic has died with a claim; neither that nor spent attempts are the older one's business.
	r.exec("UPDATE outbox SET status = 'processing', attempts = 1, lease_token = 'gone', lease_owner = 'gone', leased_until = now() WHERE id = ?", before[0].ID)
	r.exec("UPDATE outbox SET attempts = max_attempts WHERE id = ?", before[1].ID)
	before = r.records()
	for range 10 {
		require.Equal(t, outbox.Summary{}, older.ProcessOnce(t.Context()))
	}
	require.Equal(t, before, r.records())
	r.exec("UPDATE outbox SET attempts = 0 WHERE id = ?", before[1].ID)

	newer := r.processor(r.open(), outbox.ProcessorConfig{Transports: map[string]outbox.Transport{
		"email": counting(&email), "sms": counting(&sms),
	}})
	require.Equal(t, outbox.Summary{Claimed: 5, Sent: 5}, newer.ProcessOnce(t.Context()))
	require.EqualValues(t, 5, sms.Load())
	require.Zero(t, r.count("dead_at IS NOT NULL"))
	require.Equal(t, 2, r.records()[0].Attempts)
}
