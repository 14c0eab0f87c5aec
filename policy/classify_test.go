package policy_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/gorm-outbox/outbox/policy"
	"github.com/stretchr/testify/require"
)

func TestClassify(t *testing.T) {
	refusal := policy.Failure{Category: policy.CategoryRejected, Code: "550"}
	tests := []struct {
		name string
		err  error
		want policy.Class
	}{
		{"nil", nil, policy.OK},
		{"plain error", errors.New("boom"), policy.Transient},
		{"by value", refusal, policy.Permanent},
		{"by pointer", &refusal, policy.Permanent},
		{"wrapped", fmt.Errorf("send: %w", &refusal), policy.Permanent},
		{"wrapped value", fmt.Errorf("send: %w", refusal), policy.Permanent},
		{"joined", errors.Join(errors.New("close"), &refusal), policy.Permanent},
		{"no category", policy.Failure{}, policy.Transient},
		{"unheard-of category", policy.Failure{Category: "moon_phase"}, policy.Transient},
		{"class over category, permanent", policy.Failure{Category: policy.CategoryNetwork, Class: policy.Permanent}, policy.Permanent},
		{"class over category, transient", policy.Failure{Category: policy.CategoryCredentials, Class: policy.Transient}, policy.Transient},
		{"an error is no success", policy.Failure{Class: policy.OK}, policy.Transient},
		{"nil pointer in the tree", (*policy.Failure)(nil), policy.Transient},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { require.Equal(t, tt.want, policy.Classify(tt.err)) })
	}
}

func TestCategoriesAreListedWithTheirClass(t *testing.T) {
	seen := map[policy.Category]bool{}
	for _, c := range policy.TransientCategories() {
		require.Equal(t, policy.Transient, c.Class(), c)
		seen[c] = true
	}
	for _, c := range policy.PermanentCategories() {
		require.Equal(t, policy.Permanent, c.Class(), c)
		require.False(t, seen[c], c)
	}
	require.Equal(t, policy.Transient, policy.Category("anything else").Class())
}

func TestFailureShowsNoCause(t *testing.T) {
	cause := errors.New("550 no such user ana@example.test")
	f := &policy.Failure{Category: policy.CategoryNumber, Code: "550", Err: cause}
	require.EqualError(t, f, "outbox: delivery failed: number/550")
	require.EqualError(t, policy.Failure{}, "outbox: delivery failed: unknown")
	require.ErrorIs(t, f, cause)
}

func TestSettle(t *testing.T) {
	b := policy.Backoff{Base: time.Second, Max: time.Minute}
	tests := []struct {
		name         string
		err          error
		attempt, max int
		want         policy.Outcome
	}{
		{"accepted", nil, 1, 3, policy.Outcome{Status: policy.StatusSent}},
		{"accepted at the last attempt", nil, 3, 3, policy.Outcome{Status: policy.StatusSent}},
		{"first failure", errors.New("x"), 1, 3, policy.Outcome{Status: policy.StatusPending, Delay: time.Second, Category: "unknown"}},
		{"second failure", errors.New("x"), 2, 3, policy.Outcome{Status: policy.StatusPending, Delay: 2 * time.Second, Category: "unknown"}},
		{"last failure", errors.New("x"), 3, 3, policy.Outcome{Status: policy.StatusFailed, Category: "unknown"}},
		{"past the last", errors.New("x"), 9, 3, policy.Outcome{Status: policy.StatusFailed, Category: "unknown"}},
		{"refused", policy.Failure{Category: "rejected", Code: "550"}, 1, 3, policy.Outcome{Status: policy.StatusDiscarded, Category: "rejected", Code: "550"}},
		{"asked to wait", policy.Failure{Category: "rate_limited", RetryAfter: time.Hour}, 1, 3, policy.Outcome{Status: policy.StatusPending, Delay: time.Hour, Category: "rate_limited"}},
		{"asked to wait less than the backoff", policy.Failure{Category: "rate_limited", RetryAfter: 1}, 1, 3, policy.Outcome{Status: policy.StatusPending, Delay: time.Second, Category: "rate_limited"}},
		{"asked to wait for ever", policy.Failure{RetryAfter: math.MaxInt64}, 1, 3, policy.Outcome{Status: policy.StatusPending, Delay: 365 * 24 * time.Hour, Category: "unknown"}},
		{"asked to wait backwards", policy.Failure{RetryAfter: -time.Hour}, 1, 3, policy.Outcome{Status: policy.StatusPending, Delay: time.Second, Category: "unknown"}},
		{"conflict waits a minute the first time", policy.Failure{Category: "idempotency_conflict"}, 1, 3, policy.Outcome{Status: policy.StatusPending, Delay: time.Minute, Category: "idempotency_conflict"}},
		{"may have arrived", policy.Failure{Category: "network", OutcomeUnknown: true}, 1, 3, policy.Outcome{Status: policy.StatusPending, Delay: time.Second, Category: "network", Unknown: true}},
		{"not attempted, at the last attempt", policy.Failure{Category: "rate_limited", RetryAfter: time.Minute, Unattempted: true, OutcomeUnknown: true}, 3, 3, policy.Outcome{Status: policy.StatusPending, Delay: time.Minute, Category: "rate_limited", Unattempted: true}},
		{"not attempted, and no wait asked for", policy.Failure{Unattempted: true, RetryAfter: -1}, 1, 3, policy.Outcome{Status: policy.StatusPending, Delay: time.Second, Category: "unknown", Unattempted: true}},
		{"not attempted, for ever", policy.Failure{Unattempted: true, Class: policy.Permanent}, 1, 3, policy.Outcome{Status: policy.StatusDiscarded, Category: "unknown"}},
		{"hostile code", policy.Failure{Category: "bad\x00", Code: "a\x00b\xff" + strings.Repeat("é", 1e6)}, 1, 3, policy.Outcome{Status: policy.StatusPending, Delay: time.Second, Category: "bad?", Code: "a?b?" + strings.Repeat("é", 60)}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { require.Equal(t, tt.want, policy.Settle(tt.err, tt.attempt, tt.max, b, 0.5)) })
	}
}

func TestSettleAtMostOnce(t *testing.T) {
	b := policy.Backoff{Base: time.Second, Max: time.Minute}
	unknown := func(code string) policy.Outcome {
		return policy.Outcome{Status: policy.StatusFailed, Category: policy.CategoryOutcomeUnknown, Code: code, Unknown: true}
	}
	tests := []struct {
		name    string
		err     error
		attempt int
		want    policy.Outcome
	}{
		{"accepted", nil, 1, policy.Outcome{Status: policy.StatusSent}},
		{"refused for now", policy.Failure{Category: "rate_limited", Code: "429"}, 1, policy.Outcome{Status: policy.StatusPending, Delay: time.Second, Category: "rate_limited", Code: "429"}},
		{"refused for now, for the last time", policy.Failure{Category: "rate_limited"}, 3, policy.Outcome{Status: policy.StatusFailed, Category: "rate_limited"}},
		{"refused for good", policy.Failure{Category: "number", OutcomeUnknown: true}, 1, policy.Outcome{Status: policy.StatusDiscarded, Category: "number", Unknown: true}},
		{"timed out", policy.Failure{Category: "timeout", Code: "deadline", OutcomeUnknown: true}, 1, unknown("deadline")},
		{"timed out at the last attempt", policy.Failure{Category: "timeout", OutcomeUnknown: true}, 3, unknown("timeout")},
		{"an error that does not say", errors.New("x"), 1, unknown("unknown")},
		{"not attempted", policy.Failure{Unattempted: true}, 1, policy.Outcome{Status: policy.StatusPending, Delay: time.Second, Category: "unknown", Unattempted: true}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			require.Equal(t, tt.want, policy.SettleAtMostOnce(tt.err, tt.attempt, 3, b, 0.5))
		})
	}
}

func FuzzClean(f *testing.F) {
	f.Add("a\x00b", 64)
	f.Add("\xe9\xff", 1)
	f.Add(strings.Repeat("日本", 100), 64)
	f.Fuzz(func(t *testing.T, s string, limit int) {
		limit = min(max(limit, 0), 1000)
		got := policy.Clean(s, limit)
		require.True(t, utf8.ValidString(got))
		require.NotContains(t, got, "\x00")
		require.LessOrEqual(t, utf8.RuneCountInString(got), limit)
	})
}
