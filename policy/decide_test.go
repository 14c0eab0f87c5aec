package policy_test

import (
	"testing"
	"time"

	"github.com/gorm-outbox/outbox/policy"
	"github.com/stretchr/testify/require"
)

func TestDecide(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	past, future := now.Add(-time.Minute), now.Add(time.Minute)
	tests := []struct {
		name  string
		state policy.State
		want  policy.Decision
	}{
		{"first attempt due", policy.State{Status: policy.StatusPending, MaxAttempts: 3, DueAt: past}, policy.Send},
		{"due exactly now", policy.State{Status: policy.StatusPending, MaxAttempts: 3, DueAt: now}, policy.Send},
		{"retry due", policy.State{Status: policy.StatusPending, Attempts: 2, MaxAttempts: 3, DueAt: past}, policy.Send},
		{"scheduled", policy.State{Status: policy.StatusPending, MaxAttempts: 3, DueAt: future}, policy.Wait},
		{"backing off", policy.State{Status: policy.StatusPending, Attempts: 1, MaxAttempts: 3, DueAt: future}, policy.RetryLater},
		{"due with no attempt left", policy.State{Status: policy.StatusPending, Attempts: 3, MaxAttempts: 3, DueAt: past}, policy.Discard},
		{"leased", policy.State{Status: policy.StatusProcessing, Attempts: 1, MaxAttempts: 3, DueAt: past, LeasedUntil: future}, policy.Wait},
		{"lease ends exactly now", policy.State{Status: policy.StatusProcessing, Attempts: 1, MaxAttempts: 3, DueAt: past, LeasedUntil: now}, policy.Reclaim},
		{"lease ended", policy.State{Status: policy.StatusProcessing, Attempts: 1, MaxAttempts: 3, DueAt: past, LeasedUntil: past}, policy.Reclaim},
		{"lease of the last attempt ended", policy.State{Status: policy.StatusProcessing, Attempts: 3, MaxAttempts: 3, DueAt: past, LeasedUntil: past}, policy.Discard},
		{"last attempt still leased", policy.State{Status: policy.StatusProcessing, Attempts: 3, MaxAttempts: 3, DueAt: past, LeasedUntil: future}, policy.Wait},
		{"left by its worker, at most once", policy.State{Status: policy.StatusProcessing, Attempts: 1, MaxAttempts: 3, DueAt: past, LeasedUntil: past, ExpiresAt: past, AtMostOnce: true}, policy.Discard},
		{"leased, at most once", policy.State{Status: policy.StatusProcessing, Attempts: 1, MaxAttempts: 3, DueAt: past, LeasedUntil: future, AtMostOnce: true}, policy.Wait},
		{"retry due, at most once", policy.State{Status: policy.StatusPending, Attempts: 1, MaxAttempts: 3, DueAt: past, AtMostOnce: true}, policy.Send},
		{"expires exactly now", policy.State{Status: policy.StatusPending, MaxAttempts: 3, DueAt: past, ExpiresAt: now}, policy.Expire},
		{"expires later", policy.State{Status: policy.StatusPending, MaxAttempts: 3, DueAt: past, ExpiresAt: future}, policy.Send},
		{"expired and spent", policy.State{Status: policy.StatusPending, Attempts: 3, MaxAttempts: 3, DueAt: past, ExpiresAt: past}, policy.Expire},
		{"expired but leased", policy.State{Status: policy.StatusProcessing, Attempts: 1, MaxAttempts: 3, DueAt: past, LeasedUntil: future, ExpiresAt: past}, policy.Wait},
		{"expired and not due", policy.State{Status: policy.StatusPending, MaxAttempts: 3, DueAt: future, ExpiresAt: past}, policy.Wait},
		{"cancelled", policy.State{Status: policy.StatusCancelled, MaxAttempts: 3, DueAt: past}, policy.Wait},
		{"expired before", policy.State{Status: policy.StatusExpired, MaxAttempts: 3, DueAt: past, ExpiresAt: past}, policy.Wait},
		{"sent", policy.State{Status: policy.StatusSent, Attempts: 1, MaxAttempts: 3, DueAt: past}, policy.Wait},
		{"discarded", policy.State{Status: policy.StatusDiscarded, Attempts: 1, MaxAttempts: 3, DueAt: past}, policy.Wait},
		{"failed", policy.State{Status: policy.StatusFailed, Attempts: 3, MaxAttempts: 3, DueAt: past}, policy.Wait},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			require.Equal(t, tt.want, policy.Decide(tt.state, now))
		})
	}
}

func BenchmarkDecide(b *testing.B) {
	now := time.Now()
	state := policy.State{Status: policy.StatusPending, MaxAttempts: 8, DueAt: now}
	b.ReportAllocs()
	for i := 0; i < b.N; i++ {
		if policy.Decide(state, now) != policy.Send {
			b.Fatal("not sent")
		}
	}
}
