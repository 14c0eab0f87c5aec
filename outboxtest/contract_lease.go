package outboxtest

import (
	"context"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
)

var leaseChecks = []check{
	{"is held during the delivery", checkLeaseHeld},
	{"that ended is taken over", checkReclaim},
	{"that is live is respected", checkLiveLease},
	{"ended on the last attempt", checkSpent},
	{"of spent records hides nobody", checkPileOfSpent},
	{"is given back when the context ends", checkReleasedAtEnd},
	{"is given back when too little is left", checkReleasedLate},
	{"too short for the batch is reported", checkLeaseWarning},
}

// checkLeaseHeld looks at the record from inside its transport.
func checkLeaseHeld(t *testing.T, db *gorm.DB) {
	install(t, db)
	enqueue(t, db, mail("one"))
	before := records(t, db)[0]
	var during []outbox.Record
	var err error
	rec := NewRecorder(Do(func(context.Context, outbox.Delivery) (string, error) {
		during, err = readRecords(db, outbox.Plugin{})
		return "", nil
	}))
	cfg := configure(rec)
	cfg.Lease, cfg.Owner = time.Hour, "worker 7"
	once(t, db, cfg)
	require.NoError(t, err)
	r := during[0]
	require.Equal(t, outbox.StatusProcessing, r.Status)
	require.Equal(t, 1, r.Attempts, "the claim counts the attempt")
	require.NotEmpty(t, text(r.LeaseToken))
	require.NotEqual(t, "worker 7", text(r.LeaseToken))
	require.Equal(t, "worker 7", text(r.LeaseOwner))
	require.InDelta(t, time.Hour, r.LeasedUntil.Sub(r.UpdatedAt), float64(2*time.Millisecond))
	require.True(t, r.DueAt.Equal(before.DueAt), "a lease never moves the due time")
	require.Nil(t, r.SentAt)
	require.Nil(t, r.DeadAt)
}

func checkReclaim(t *testing.T, db *gorm.DB) {
	install(t, db)
	receipts := enqueue(t, db, mail("one"))
	change(t, db, leased(1, "created_at"))
	rec := NewRecorder()
	requireSummary(t, outbox.Summary{Claimed: 1, Sent: 1}, once(t, db, configure(rec)))
	d := rec.Deliveries()[0]
	require.Equal(t, 2, d.Attempt)
	require.Equal(t, receipts[0].MessageID, d.MessageID)
	r := records(t, db)[0]
	requireSound(t, r)
	require.Equal(t, outbox.StatusSent, r.Status)
	require.Equal(t, 2, r.Attempts)
}

// checkLiveLease has a second worker look while the first delivers.
func checkLiveLease(t *testing.T, db *gorm.DB) {
	install(t, db)
	enqueue(t, db, mail("one"))
	var other outbox.Summary
	second := newProcessor(t, db, configure(NewRecorder()))
	rec := NewRecorder(Do(func(ctx context.Context, _ outbox.Delivery) (string, error) {
		other = second.ProcessOnce(ctx)
		return "", errContract
	}))
	requireSummary(t, outbox.Summary{Claimed: 1, Retried: 1}, once(t, db, configure(rec)))
	requireSummary(t, outbox.Summary{}, other)
}

func checkSpent(t *testing.T, db *gorm.DB) {
	install(t, db)
	m := mail("one")
	m.MaxAttempts = 3
	receipts := enqueue(t, db, m, m, m)
	change(t, db, leased(3, "created_at"), receipts[0].ID)
	change(t, db, values{"attempts": 3, "last_error_category": "network", "last_error_code": "502"}, receipts[1].ID)
	change(t, db, leased(7, "created_at"), receipts[2].ID)
	rec := NewRecorder()
	requireSummary(t, outbox.Summary{Claimed: 3, Failed: 3}, once(t, db, configure(rec)))
	require.Zero(t, rec.Count())
	for i, want := range []struct {
		attempts int
		why      policy.Category
	}{{3, policy.CategoryLeaseExpired}, {3, policy.CategoryAttemptsExhausted}, {7, policy.CategoryLeaseExpired}} {
		r := record(t, db, receipts[i].ID)
		requireSound(t, r)
		require.Equal(t, outbox.StatusFailed, r.Status)
		require.Equal(t, want.attempts, r.Attempts)
		require.Equal(t, string(want.why), text(r.LastErrorCategory))
		require.Equal(t, string(want.why), text(r.LastErrorCode))
	}
	requireSummary(t, outbox.Summary{}, once(t, db, configure(rec)))
}

func checkPileOfSpent(t *testing.T, db *gorm.DB) {
	install(t, db)
	pile := ids(enqueue(t, db, mails(50)...))
	change(t, db, values{"attempts": 8}, pile[:25]...)
	change(t, db, leased(8, "created_at"), pile[25:]...)
	enqueue(t, db, mail("good"), mail("good"), mail("good"))
	rec := NewRecorder()
	cfg := configure(rec)
	cfg.BatchSize = 5
	s := once(t, db, cfg)
	require.Equal(t, 50, s.Failed)
	require.NotZero(t, s.Sent, "what comes behind the pile is reached in the same round")
	for i := 0; i < 3 && s.Claimed > 0; i++ {
		s = once(t, db, cfg)
	}
	require.Equal(t, []string{"good", "good", "good"}, kinds(rec.Deliveries()))
}

// endOnFirst ends the context of a round as soon as the first delivery is under way.
func endOnFirst(end func(), then Result) *Recorder {
	return NewRecorder(Do(func(ctx context.Context, d outbox.Delivery) (string, error) {
		end()
		if err := ctx.Err(); err != nil {
			return "", err // what has started may finish
		}
		return then.play(ctx, d)
	}))
}

func checkReleasedAtEnd(t *testing.T, db *gorm.DB) {
	install(t, db)
	enqueue(t, db, mails(5)...)
	change(t, db, values{"attempts": 2, "last_error_category": "network", "last_error_code": "502"}, records(t, db)[3].ID)
	before := records(t, db)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	rec := endOnFirst(cancel, Accept("in flight"))
	cfg := configure(rec)
	cfg.Concurrency = 1
	s := newProcessor(t, db, cfg).ProcessOnce(ctx)
	requireClean(t, s)
	requireSummary(t, outbox.Summary{Claimed: 5, Sent: 1, Released: 4}, s)
	require.Equal(t, 1, rec.Count())

	after := records(t, db)
	requireSound(t, after[0])
	require.Equal(t, "in flight", text(after[0].ExternalID))
	for i := range after[1:] {
		after[i+1].UpdatedAt = before[i+1].UpdatedAt
	}
	require.Equal(t, before[1:], after[1:], "as if they had never been claimed")
	once(t, db, cfg)
	require.Equal(t, kinds(rec.Deliveries())[1:], []string{before[1].Type, before[2].Type, before[3].Type, before[4].Type})
	require.Equal(t, 1, rec.Deliveries()[1].Attempt)
	require.Equal(t, 3, rec.Deliveries()[3].Attempt)
}

// checkReleasedLate: what a slow transport leaves no time for is given back, and never inside two transports.
func checkReleasedLate(t *testing.T, db *gorm.DB) {
	install(t, db)
	enqueue(t, db, mails(4)...)
	rec := NewRecorder(Hang())
	cfg := configure(rec)
	cfg.Concurrency, cfg.Lease, cfg.Timeout = 1, 5*time.Second, 2500*time.Millisecond
	// When the first times out, 2.5 s of the lease are left: not enough for another attempt of 2.5 s and its margin.
	requireSummary(t, outbox.Summary{Claimed: 4, Retried: 1, Released: 3}, once(t, db, cfg))
	require.Equal(t, 1, rec.Count())
	for _, r := range records(t, db)[1:] {
		requireSound(t, r)
		require.Zero(t, r.Attempts)
		require.True(t, r.DueAt.Equal(r.CreatedAt))
	}
	requireSummary(t, outbox.Summary{Claimed: 3, Sent: 3}, once(t, db, cfg))
	require.Equal(t, []string{"mail-00001", "mail-00002", "mail-00003"}, kinds(rec.Deliveries())[1:])
}

func checkLeaseWarning(t *testing.T, db *gorm.DB) {
	install(t, db)
	cfg := configure(NewRecorder())
	cfg.BatchSize, cfg.Concurrency, cfg.Lease, cfg.Timeout = 100, 10, time.Minute, 10*time.Second
	require.NotEmpty(t, once(t, db, cfg).Warnings)
	cfg.BatchSize = 10
	require.Empty(t, once(t, db, cfg).Warnings)
	defaults := outbox.ProcessorConfig{Transports: cfg.Transports}
	require.Empty(t, once(t, db, defaults).Warnings, "the defaults suit each other")
}
