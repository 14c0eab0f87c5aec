package policy_test

import (
	"math"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox/policy"
	"github.com/stretchr/testify/require"
)

// requireWithin checks the one property of a delay: min(max, base × factor^n), give or take the jitter, and above 0.
func requireWithin(t *testing.T, b policy.Backoff, attempt int, random float64) {
	t.Helper()
	d := b.Delay(attempt, random)
	full := b.WithDefaults()
	middle := math.Min(float64(full.Max), float64(full.Base)*math.Pow(full.Factor, float64(max(attempt, 0))))
	require.Positive(t, d, "attempt %d random %v of %+v", attempt, random, b)
	// One nanosecond of rounding either way, and float64's precision on long waits.
	slack := 1 + middle*1e-12
	require.GreaterOrEqual(t, float64(d), middle*(1-full.Jitter)-slack, "attempt %d random %v of %+v", attempt, random, b)
	require.LessOrEqual(t, float64(d), middle*(1+full.Jitter)+slack, "attempt %d random %v of %+v", attempt, random, b)
}

func TestDelayStaysWithinItsJitter(t *testing.T) {
	backoffs := map[string]policy.Backoff{
		"zero value":    {},
		"flat":          {Base: time.Second, Max: time.Second, Factor: 1, Jitter: 0.01},
		"steep":         {Base: time.Nanosecond, Max: 365 * 24 * time.Hour, Factor: 1000, Jitter: 1},
		"base is max":   {Base: time.Hour, Max: time.Hour},
		"barely grows":  {Base: time.Millisecond, Max: time.Minute, Factor: 1.0001},
		"largest ratio": {Base: time.Nanosecond, Max: time.Hour, Factor: math.MaxFloat64, Jitter: 0.5},
	}
	for name, b := range backoffs {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, b.Validate())
			for _, random := range []float64{0, 0.25, 0.5, math.Nextafter(1, 0)} {
				for attempt := 0; attempt <= 2000; attempt++ {
					requireWithin(t, b, attempt, random)
				}
				for _, attempt := range []int{math.MinInt, -1, 1 << 20, math.MaxInt32, math.MaxInt} {
					requireWithin(t, b, attempt, random)
				}
			}
		})
	}
}

func FuzzDelay(f *testing.F) {
	f.Add(int64(30*time.Second), int64(time.Hour), 2.0, 0.2, 5, 0.5)
	f.Add(int64(1), int64(math.MaxInt64), 1e300, 1.0, math.MaxInt, 0.999)
	f.Fuzz(func(t *testing.T, base, most int64, factor, jitter float64, attempt int, random float64) {
		b := policy.Backoff{Base: time.Duration(base), Max: time.Duration(most), Factor: factor, Jitter: jitter}
		if b.Validate() != nil || !(random >= 0 && random < 1) {
			return
		}
		requireWithin(t, b, attempt, random)
	})
}

func TestDelayOfTheDefaults(t *testing.T) {
	var b policy.Backoff
	require.Equal(t, 30*time.Second, b.Delay(0, 0.5))
	require.Equal(t, time.Minute, b.Delay(1, 0.5))
	require.Equal(t, time.Hour, b.Delay(10, 0.5))
	require.Equal(t, 24*time.Second, b.Delay(0, 0))
	require.InDelta(t, float64(36*time.Second), float64(b.Delay(0, 0.999999)), float64(time.Millisecond))
	exact := policy.Backoff{Base: time.Second, Factor: 3, Max: 10 * time.Second, Jitter: 1e-12}
	require.Equal(t, 9*time.Second, exact.Delay(2, 0.5))
	require.Equal(t, 10*time.Second, exact.Delay(3, 0.5))
}

func TestBackoffValidate(t *testing.T) {
	tests := []struct {
		name    string
		backoff policy.Backoff
		want    []string
	}{
		{"zero value", policy.Backoff{}, nil},
		{"negative base", policy.Backoff{Base: -1}, []string{"base is -1ns"}},
		{"max below base", policy.Backoff{Base: time.Minute, Max: time.Second}, []string{"max is 1s"}},
		{"base above the default max", policy.Backoff{Base: 2 * time.Hour}, []string{"max is 1h0m0s"}},
		{"endless max", policy.Backoff{Max: math.MaxInt64}, []string{"at most 8760h"}},
		{"shrinking", policy.Backoff{Factor: 0.5}, []string{"factor is 0.5"}},
		{"factor no number", policy.Backoff{Factor: math.NaN()}, []string{"factor is NaN"}},
		{"factor infinite", policy.Backoff{Factor: math.Inf(1)}, []string{"factor is +Inf"}},
		{"jitter negative", policy.Backoff{Jitter: -0.1}, []string{"jitter is -0.1"}},
		{"jitter above one", policy.Backoff{Jitter: 1.1}, []string{"jitter is 1.1"}},
		{"jitter no number", policy.Backoff{Jitter: math.NaN()}, []string{"jitter is NaN"}},
		{"everything wrong at once", policy.Backoff{Base: -1, Max: -2, Factor: -3, Jitter: -4}, []string{"base", "max", "factor", "jitter"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.backoff.Validate()
			if tt.want == nil {
				require.NoError(t, err)
				return
			}
			require.Error(t, err)
			for _, text := range tt.want {
				require.ErrorContains(t, err, text)
			}
		})
	}
}

func BenchmarkDelay(b *testing.B) {
	var backoff policy.Backoff
	b.ReportAllocs()
	for i := 0; i < b.N; i++ {
		if backoff.Delay(i&15, 0.3) <= 0 {
			b.Fatal("no delay")
		}
	}
}
