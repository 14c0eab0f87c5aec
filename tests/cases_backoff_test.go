package tests

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/stretchr/testify/require"
)

func TestC13_TheWaitGrowsToItsCeilingAndStays(t *testing.T) {
	t.Parallel()
	b := policy.Backoff{Base: 30 * time.Second, Max: time.Hour, Factor: 2, Jitter: 0.2}
	attempts := []int{math.MaxInt32, math.MaxInt}
	for n := range 2001 {
		attempts = append(attempts, n)
	}
	for _, n := range attempts {
		middle := min(time.Hour, 30*time.Second<<min(n, 20))
		for _, random := range []float64{0, 0.5, math.Nextafter(1, 0)} {
			wait := b.Delay(n, random)
			require.InDelta(t, middle.Seconds(), wait.Seconds(), 0.2*middle.Seconds(), "attempt %d", n)
			require.GreaterOrEqual(t, wait, 24*time.Second, "attempt %d: below the first wait", n)
		}
	}
}

// TestC13_AThousandthAttemptWaitsLikeATenth is about the way from the wait to the column.
func TestC13_AThousandthAttemptWaitsLikeATenth(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueue(2, outbox.Message{MaxAttempts: 1000})
	r.exec("UPDATE outbox SET attempts = CASE WHEN id = (SELECT min(id) FROM outbox) THEN 9 ELSE 998 END")
	p := r.processor(r.open(), outbox.ProcessorConfig{
		Transports: only(func(context.Context, outbox.Delivery) (string, error) { return "", errors.New("busy") }),
	})

	require.Equal(t, outbox.Summary{Claimed: 2, Retried: 2}, counts(p.ProcessOnce(t.Context())))
	for _, record := range r.records() {
		require.InDelta(t, time.Hour.Seconds(), record.DueAt.Sub(record.UpdatedAt).Seconds(), 0.2*time.Hour.Seconds()+1)
	}
	require.Zero(t, p.ProcessOnce(t.Context()).Claimed, "a loop without a wait")
}

func TestC13_ABackoffThatCannotBeIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for name, b := range map[string]policy.Backoff{
		"shrinks":         {Factor: 0.9},
		"ceiling too low": {Base: time.Minute, Max: time.Second},
		"jitter above 1":  {Jitter: 1.1},
		"jitter below 0":  {Jitter: -0.1},
		"factor NaN":      {Factor: math.NaN()},
		"factor infinite": {Factor: math.Inf(1)},
		"jitter NaN":      {Jitter: math.NaN()},
		"base below 0":    {Base: -time.Second},
	} {
		_, err := outbox.NewProcessor(r.db, outbox.ProcessorConfig{Transports: only(accept), Backoff: b})
		require.ErrorIs(t, err, outbox.ErrInvalid, name)
		require.ErrorContains(t, err, "Backoff", name)
	}
}
