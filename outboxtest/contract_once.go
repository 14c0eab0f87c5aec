package outboxtest

import (
	"context"
	"testing"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
)

var onceChecks = []check{
	{"an unknown outcome is not repeated", checkOnceUnknown},
	{"a known refusal is", checkOnceRefused},
	{"nor is the attempt of a worker that died", checkOnceDied},
	{"nothing is claimed ahead", checkOnceNothingAhead},
	{"the first unknown attempt is remembered", checkUnknownSince},
}

// configureOnce is configure for messages that are better lost than doubled.
func configureOnce(transport outbox.Transport) outbox.ProcessorConfig {
	cfg := configure(transport)
	cfg.AtMostOnce = map[string]bool{topic: true}
	return cfg
}

func checkOnceUnknown(t *testing.T, db *gorm.DB) {
	install(t, db)
	enqueue(t, db, mail("panic"), mail("plain error"), mail("unknown"), mail("sent"))
	rec := NewRecorder()
	rec.For(OfType("panic"), Panic("x"))
	rec.For(OfType("plain error"), Fail(errContract))
	rec.For(OfType("unknown"), Fail(policy.Failure{Category: policy.CategoryNetwork, Code: "reset", OutcomeUnknown: true}))
	requireSummary(t, outbox.Summary{Claimed: 4, Sent: 1, Failed: 3}, once(t, db, configureOnce(rec)))
	for i, code := range []string{"string", "unknown", "reset"} {
		r := records(t, db)[i]
		requireSound(t, r)
		require.Equal(t, outbox.StatusFailed, r.Status)
		require.Equal(t, string(policy.CategoryOutcomeUnknown), text(r.LastErrorCategory))
		require.Equal(t, code, text(r.LastErrorCode))
	}
	requireSummary(t, outbox.Summary{}, once(t, db, configureOnce(rec)))
}

func checkOnceRefused(t *testing.T, db *gorm.DB) {
	install(t, db)
	enqueue(t, db, mail("one"))
	rec := NewRecorder()
	rec.For(OfType("one"), Fail(policy.Failure{Category: policy.CategoryRateLimited, Code: "429"}), Accept("id"))
	requireSummary(t, outbox.Summary{Claimed: 1, Retried: 1}, once(t, db, configureOnce(rec)))
	change(t, db, dueNow)
	requireSummary(t, outbox.Summary{Claimed: 1, Sent: 1}, once(t, db, configureOnce(rec)))
	require.Equal(t, 2, rec.Count())
}

// checkOnceDied leaves records as dead workers do: one in its first attempt, and one whose time has passed besides.
func checkOnceDied(t *testing.T, db *gorm.DB) {
	install(t, db)
	receipts := enqueue(t, db, mail("one"), mail("late"), mail("next"))
	change(t, db, leased(1, "created_at"), receipts[0].ID, receipts[1].ID)
	change(t, db, values{"expires_at": gorm.Expr("created_at")}, receipts[1].ID)
	rec := NewRecorder()
	requireSummary(t, outbox.Summary{Claimed: 3, Failed: 2, Sent: 1}, once(t, db, configureOnce(rec)))
	require.Equal(t, []string{"next"}, kinds(rec.Deliveries()))
	for _, r := range records(t, db)[:2] {
		requireSound(t, r)
		require.Equal(t, outbox.StatusFailed, r.Status)
		require.Equal(t, 1, r.Attempts)
		require.Equal(t, "outcome_unknown", text(r.LastErrorCategory))
		require.Equal(t, "lease_expired", text(r.LastErrorCode))
	}
	n, err := outbox.Redrive(db, outbox.Filter{Category: "outcome_unknown"}) // a person has looked
	require.NoError(t, err)
	require.EqualValues(t, 2, n)
	change(t, db, values{"expires_at": nil})
	requireSummary(t, outbox.Summary{Claimed: 2, Sent: 2}, once(t, db, configureOnce(rec)))
}

// checkOnceNothingAhead looks at the table from inside the transports, all of which are at work.
func checkOnceNothingAhead(t *testing.T, db *gorm.DB) {
	install(t, db)
	enqueue(t, db, mails(10)...)
	var processing []int
	rec := NewRecorder(Do(func(context.Context, outbox.Delivery) (string, error) {
		all, err := readRecords(db, outbox.Plugin{})
		n := 0
		for _, r := range all {
			if r.Status == outbox.StatusProcessing {
				n++
			}
		}
		processing = append(processing, n)
		return "", err
	}))
	cfg := configureOnce(rec)
	cfg.Concurrency = 1
	requireSummary(t, outbox.Summary{Claimed: 1, Sent: 1}, once(t, db, cfg))
	require.Equal(t, []int{1}, processing)
}

func checkUnknownSince(t *testing.T, db *gorm.DB) {
	install(t, db)
	receipts := enqueue(t, db, mail("one"), mail("died"), mail("known"))
	change(t, db, leased(1, "created_at"), receipts[1].ID)
	rec := NewRecorder()
	rec.For(OfType("one"), Panic("x"), Fail(errContract), Panic("y"))
	rec.For(OfType("known"), Fail(errContract))
	for range 4 {
		once(t, db, configure(rec))
		change(t, db, dueNow)
	}
	seen := map[string][]outbox.Delivery{}
	for _, d := range rec.Deliveries() {
		seen[d.Type] = append(seen[d.Type], d)
	}
	one := seen["one"]
	require.Len(t, one, 4)
	require.True(t, one[0].UnknownSince.IsZero())
	require.False(t, one[1].UnknownSince.IsZero())
	require.False(t, one[1].UnknownSince.Before(one[0].EnqueuedAt))
	for _, d := range one[2:] {
		require.Equal(t, one[1].UnknownSince, d.UnknownSince, "the first of them")
	}
	require.False(t, seen["died"][0].UnknownSince.IsZero())
	for _, d := range seen["known"] {
		require.True(t, d.UnknownSince.IsZero())
	}
}
