package outboxtest

import (
	"context"
	"math/rand"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
)

var scheduleChecks = []check{
	{"is kept", checkSchedule},
	{"of a moment passes", checkShortDelay},
	{"sets the order", checkOrder},
	{"keeps its place through a retry", checkOrderAfterRetry},
	{"may end", checkExpiry},
	{"may end while a message waits for a worker", checkExpiryInQueue},
}

func checkSchedule(t *testing.T, db *gorm.DB) {
	install(t, db)
	at := time.Now().Add(time.Hour).Round(time.Millisecond)
	scheduled := func(kind string, at time.Time, delay time.Duration) outbox.Message {
		m := mail(kind)
		m.ScheduledFor, m.Delay = at, delay
		return m
	}
	tokyo, newYork := time.FixedZone("Tokyo", 9*3600), time.FixedZone("New York", -4*3600)
	receipts := enqueue(t, db,
		scheduled("delayed", time.Time{}, time.Hour),
		scheduled("future", at, 0),
		scheduled("future in Tokyo", at.In(tokyo), 0),
		scheduled("future in New York", at.In(newYork), 0),
		scheduled("just passed, in Tokyo", at.Add(-2*time.Hour).In(tokyo), 0),
		scheduled("just passed, in New York", at.Add(-2*time.Hour).In(newYork), 0),
		scheduled("long passed", time.Unix(1, 0), 0),
		scheduled("now", time.Time{}, 0),
	)
	rec := NewRecorder()
	cfg := configure(rec)
	cfg.Concurrency = 1
	requireSummary(t, outbox.Summary{Claimed: 4, Sent: 4}, once(t, db, cfg))
	require.Equal(t, []string{"long passed", "just passed, in Tokyo", "just passed, in New York", "now"}, kinds(rec.Deliveries()))

	delayed := record(t, db, receipts[0].ID)
	require.InDelta(t, time.Hour, delayed.DueAt.Sub(delayed.CreatedAt), float64(2*time.Millisecond))
	for _, r := range receipts[1:4] {
		require.WithinDuration(t, at, record(t, db, r.ID).DueAt, time.Millisecond)
	}
	change(t, db, dueNow)
	requireSummary(t, outbox.Summary{Claimed: 4, Sent: 4}, once(t, db, cfg))
}

func checkShortDelay(t *testing.T, db *gorm.DB) {
	install(t, db)
	m := mail("soon")
	m.Delay = 50 * time.Millisecond
	enqueue(t, db, m)
	rec := NewRecorder()
	p := newProcessor(t, db, configure(rec))
	require.Eventually(t, func() bool {
		return p.ProcessOnce(context.Background()).Sent == 1
	}, waitLimit, 10*time.Millisecond)
	r := records(t, db)[0]
	require.False(t, r.SentAt.Before(r.DueAt))
}

// checkOrder: one worker starts messages by their due time, and those due together in the order of enqueue.
func checkOrder(t *testing.T, db *gorm.DB) {
	install(t, db)
	const n = 60
	base := time.Now().Add(-time.Hour)
	shuffled := rand.New(rand.NewSource(1)).Perm(n)
	ms := make([]outbox.Message, n)
	for i, place := range shuffled {
		ms[i] = mail(pad(place))
		ms[i].ScheduledFor = base.Add(time.Duration(place) * time.Second)
	}
	enqueue(t, db, ms...)
	var want []string
	for i := 0; i < n; i++ {
		want = append(want, pad(i))
	}
	for i := 0; i < 10; i++ { // and as many that are due together, after all of them
		m := mail("together " + pad(i))
		m.ScheduledFor = base.Add(n * time.Second)
		enqueue(t, db, m)
		want = append(want, m.Type)
	}
	rec := NewRecorder()
	cfg := configure(rec)
	cfg.Concurrency, cfg.BatchSize = 1, 7
	for i := 0; i < 10; i++ {
		require.Equal(t, 7, once(t, db, cfg).Claimed)
	}
	require.Equal(t, want, kinds(rec.Deliveries()))
}

func checkOrderAfterRetry(t *testing.T, db *gorm.DB) {
	install(t, db)
	base := time.Now().Add(-time.Hour)
	for i, kind := range []string{"first", "second", "third"} {
		m := mail(kind)
		m.ScheduledFor = base.Add(time.Duration(i) * time.Minute)
		enqueue(t, db, m)
	}
	rec := NewRecorder(Fail(errContract))
	cfg := configure(rec)
	cfg.Concurrency, cfg.BatchSize = 1, 1
	for i := 0; i < 3; i++ {
		once(t, db, cfg)
	}
	require.Equal(t, []string{"first", "second", "third"}, kinds(rec.Deliveries()), "a retry waits and holds nobody up")
	change(t, db, dueNow)
	once(t, db, cfg)
	require.Equal(t, "first", rec.Deliveries()[3].Type)
}

// expiring is a message that must not be sent from then on.
func expiring(kind string, in time.Duration) outbox.Message {
	m := mail(kind)
	m.ExpiresAt = time.Now().Add(in)
	return m
}

func checkExpiry(t *testing.T, db *gorm.DB) {
	install(t, db)
	late := expiring("late for its schedule", 10*time.Minute)
	late.Delay = time.Hour
	receipts := enqueue(t, db,
		expiring("long over", -time.Hour), expiring("in time", time.Hour), expiring("fails", time.Hour), late, mail("no end"))
	rec := NewRecorder().For(OfType("fails"), Fail(policy.Failure{Category: policy.CategoryNetwork, Code: "502"}))
	requireSummary(t, outbox.Summary{Claimed: 4, Sent: 2, Retried: 1, Expired: 1}, once(t, db, configure(rec)))
	require.WithinDuration(t, late.ExpiresAt, *record(t, db, receipts[3].ID).ExpiresAt, time.Millisecond)

	over := values{"due_at": gorm.Expr("created_at"), "expires_at": gorm.Expr("created_at")} // the time has come, and passed
	change(t, db, over, receipts[2].ID, receipts[3].ID)
	requireSummary(t, outbox.Summary{Claimed: 2, Expired: 2}, once(t, db, configure(rec)))
	requireSummary(t, outbox.Summary{}, once(t, db, configure(rec)))
	require.ElementsMatch(t, []string{"in time", "fails", "no end"}, kinds(rec.Deliveries()))
	for i, attempts := range map[int]int{0: 0, 2: 1, 3: 0} {
		r := record(t, db, receipts[i].ID)
		requireSound(t, r)
		require.Equal(t, outbox.StatusExpired, r.Status)
		require.Equal(t, attempts, r.Attempts)
		require.Equal(t, map[bool]string{true: "network"}[i == 2], text(r.LastErrorCategory), "only what has failed says so")
	}
}

func checkExpiryInQueue(t *testing.T, db *gorm.DB) {
	install(t, db)
	enqueue(t, db, mail("slow"), expiring("late", 500*time.Millisecond), mail("next"))
	rec := NewRecorder(Hang())
	cfg := configure(rec)
	cfg.Concurrency, cfg.Timeout = 1, time.Second
	requireSummary(t, outbox.Summary{Claimed: 3, Retried: 1, Expired: 1, Sent: 1}, once(t, db, cfg))
	require.Equal(t, []string{"slow", "next"}, kinds(rec.Deliveries()))
	r := records(t, db)[1]
	requireSound(t, r)
	require.Equal(t, outbox.StatusExpired, r.Status)
	require.Zero(t, r.Attempts)
}
