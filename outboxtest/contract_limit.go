package outboxtest

import (
	"context"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
)

var limitChecks = []check{
	{"spaces the sends", checkLimitSpaces},
	{"gives back what would wait too long, uncounted", checkLimitGivesBack},
	{"obeys the provider for all messages", checkLimitObeys},
	{"does not hold others back for one recipient's limit", checkLimitAlone},
	{"that is no rate is refused", checkLimitInvalid},
}

// checkLimitSpaces is about time itself: no send may begin sooner after another than the rate allows.
func checkLimitSpaces(t *testing.T, db *gorm.DB) {
	install(t, db)
	enqueue(t, db, mails(6)...)
	var mu sync.Mutex
	var begun []time.Time
	sends := outbox.TransportFunc(func(context.Context, outbox.Delivery) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		begun = append(begun, time.Now())
		return "", nil
	})
	requireSummary(t, outbox.Summary{Claimed: 6, Sent: 6}, once(t, db, configure(outbox.Limit(sends, 20))))
	require.GreaterOrEqual(t, begun[5].Sub(begun[0]), 5*time.Second/20-5*time.Millisecond)
}

// checkLimitGivesBack sends one, after which the next turn is in minutes.
func checkLimitGivesBack(t *testing.T, db *gorm.DB) {
	install(t, db)
	enqueue(t, db, mails(5)...)
	rec := NewRecorder()
	cfg := configure(outbox.Limit(rec, 0.01))
	var attempts []outbox.Attempt
	cfg.Concurrency, cfg.OnAttempt = 1, func(_ context.Context, a outbox.Attempt) { attempts = append(attempts, a) }
	requireSummary(t, outbox.Summary{Claimed: 5, Sent: 1, Released: 4}, once(t, db, cfg))
	require.Len(t, attempts, 1, "what was not attempted is not reported as an attempt")
	for _, r := range records(t, db)[1:] {
		requireSound(t, r)
		require.Equal(t, outbox.StatusPending, r.Status)
		require.Zero(t, r.Attempts)
		require.InDelta(t, 110*time.Second, r.DueAt.Sub(r.CreatedAt), float64(20*time.Second))
	}
}

func checkLimitObeys(t *testing.T, db *gorm.DB) {
	install(t, db)
	enqueue(t, db, mails(5)...)
	rec := NewRecorder(Fail(policy.Failure{Category: policy.CategoryRateLimited, Code: "429", RetryAfter: time.Minute}))
	cfg := configure(outbox.Limit(rec, 1e6))
	cfg.Concurrency = 1
	requireSummary(t, outbox.Summary{Claimed: 5, Retried: 1, Released: 4}, once(t, db, cfg))
	require.Equal(t, 1, rec.Count(), "the provider is left alone")
	for i, r := range records(t, db) {
		require.Equal(t, i == 0, r.Attempts == 1)
		require.GreaterOrEqual(t, r.DueAt.Sub(r.CreatedAt), 55*time.Second)
	}
}

func checkLimitAlone(t *testing.T, db *gorm.DB) {
	install(t, db)
	enqueue(t, db, mails(5)...)
	full := outbox.TransportFunc(func(context.Context, outbox.Delivery) (string, error) {
		return "", policy.Failure{Category: policy.CategoryRateLimited, RetryAfter: time.Minute, RetryAlone: true}
	})
	cfg := configure(outbox.Limit(full, 1e6))
	cfg.Concurrency = 1
	requireSummary(t, outbox.Summary{Claimed: 5, Retried: 5}, once(t, db, cfg))
}

func checkLimitInvalid(t *testing.T, db *gorm.DB) {
	install(t, db)
	for _, rate := range []float64{0, -1, math.NaN(), math.Inf(1), 1e9} {
		limited := outbox.Limit(NewRecorder(), rate)
		_, err := outbox.NewProcessor(db, configure(limited))
		require.ErrorIs(t, err, outbox.ErrInvalid, rate)
		_, err = limited.Send(context.Background(), outbox.Delivery{})
		require.ErrorIs(t, err, outbox.ErrInvalid, rate)
	}
	_, err := outbox.NewProcessor(db, configure(outbox.Limit(nil, 1)))
	require.ErrorIs(t, err, outbox.ErrInvalid)
	cfg := configure(NewRecorder())
	cfg.AtMostOnce = map[string]bool{"another": true}
	_, err = outbox.NewProcessor(db, cfg)
	require.ErrorIs(t, err, outbox.ErrInvalid)
}
