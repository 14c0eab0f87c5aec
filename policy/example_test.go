package policy_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/gorm-outbox/outbox/policy"
)

func ExampleDecide() {
	now := time.Date(2026, 9, 24, 12, 0, 0, 0, time.UTC)
	died := policy.State{
		Status: policy.StatusProcessing, Attempts: 1, MaxAttempts: 8,
		DueAt: now.Add(-time.Hour), LeasedUntil: now.Add(-15 * time.Minute),
	}
	fmt.Println(policy.Decide(died, now))
	// Output: reclaim
}

func ExampleBackoff_Delay() {
	var b policy.Backoff // 30 s, doubling, at most 1 h
	for _, attempt := range []int{0, 1, 2, 10} {
		fmt.Println(b.Delay(attempt, 0.5)) // 0.5 is the middle of the jitter
	}
	// Output:
	// 30s
	// 1m0s
	// 2m0s
	// 1h0m0s
}

func ExampleFailure() {
	refused := fmt.Errorf("send: %w", &policy.Failure{Category: policy.CategoryCredentials, Code: "invalid_api_key"})
	fmt.Println(policy.Classify(refused), "-", policy.Classify(errors.New("connection reset")), "-", policy.Classify(nil))
	// Output: permanent - transient - ok
}

func ExampleSettle() {
	busy := &policy.Failure{Category: policy.CategoryRateLimited, Code: "429", RetryAfter: 2 * time.Minute}
	out := policy.Settle(busy, 1, 8, policy.Backoff{}, 0.5)
	fmt.Println(out.Status, "in", out.Delay, "after", out.Category, out.Code)
	// Output: pending in 2m0s after rate_limited 429
}
