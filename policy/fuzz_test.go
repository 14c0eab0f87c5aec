package policy_test

import (
	"math"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/gorm-outbox/outbox/policy"
	"github.com/stretchr/testify/require"
)

// FuzzSettle: whatever a transport says of a failure, its record gets a state and a wait that the table can hold, and
// nothing that says "I do not know" is repeated where that could double a message.
func FuzzSettle(f *testing.F) {
	f.Add("network", "503", "", int64(time.Minute), false, false, 1, 3, 0.5)
	f.Add("", "\xff\x00", "ok", int64(math.MinInt64), true, true, math.MaxInt, 0, 0.0)
	f.Add("rejected", "", "transient", int64(math.MaxInt64), true, false, 3, 3, 0.999)
	f.Fuzz(func(t *testing.T, category, code, class string, retryAfter int64, unknown, unattempted bool, attempt, most int, random float64) {
		if !(random >= 0 && random < 1) {
			return
		}
		failure := policy.Failure{
			Category: policy.Category(category), Code: code, Class: policy.Class(class),
			RetryAfter: time.Duration(retryAfter), OutcomeUnknown: unknown, Unattempted: unattempted,
		}
		out := policy.Settle(failure, attempt, most, policy.Backoff{}, random)
		requireStorable(t, out)
		switch {
		case policy.Classify(failure) == policy.Permanent:
			require.Equal(t, policy.StatusDiscarded, out.Status)
		case attempt < most || unattempted:
			require.Equal(t, policy.StatusPending, out.Status)
			require.GreaterOrEqual(t, out.Delay, min(failure.RetryAfter, longestWait))
		default:
			require.Equal(t, policy.StatusFailed, out.Status)
		}

		once := policy.SettleAtMostOnce(failure, attempt, most, policy.Backoff{}, random)
		requireStorable(t, once)
		if unknown && !unattempted {
			require.NotEqual(t, policy.StatusPending, once.Status)
		} else {
			require.Equal(t, out, once)
		}
	})
}

// longestWait is the most that a provider's wish is obeyed.
const longestWait = 365 * 24 * time.Hour

func requireStorable(t *testing.T, out policy.Outcome) {
	t.Helper()
	for _, text := range []string{string(out.Category), out.Code} {
		require.True(t, utf8.ValidString(text))
		require.NotContains(t, text, "\x00")
		require.LessOrEqual(t, utf8.RuneCountInString(text), 64)
	}
	require.NotEmpty(t, out.Category, "an operator has to find it by something")
	if out.Status == policy.StatusPending {
		require.Positive(t, out.Delay, "it would go round at once")
		require.LessOrEqual(t, out.Delay, longestWait)
	} else {
		require.Zero(t, out.Delay)
	}
}
