package outboxtest

import (
	"math/rand"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
)

var claimChecks = []check{
	{"agrees with policy.Decide", func(t *testing.T, db *gorm.DB) { checkDecide(t, db, false) }},
	{"agrees with policy.Decide at most once", func(t *testing.T, db *gorm.DB) { checkDecide(t, db, true) }},
}

// offsets are when random records are due or leased until, from the moment of their enqueue. None is so close ahead
// that it could come during the check.
var offsets = []time.Duration{
	-1000 * time.Hour, -time.Hour, -time.Minute, 0, 5 * time.Minute, time.Hour, 1000 * time.Hour,
}

// checkDecide makes records of every kind, asks policy.Decide about each, lets a processor loose on them, and compares:
// exactly what Decide would send is sent, exactly what it would discard is closed, and all else is as it was.
func checkDecide(t *testing.T, db *gorm.DB, atMostOnce bool) {
	install(t, db)
	const n, seed = 2000, 7
	random := rand.New(rand.NewSource(seed))
	clock := makeClock(t, db)
	all := makeRecords(t, db, random, clock, n)
	now := all[n-1].CreatedAt // by the database's clock; nothing is due soon after

	rec := NewRecorder()
	cfg := configure(rec)
	cfg.AtMostOnce = map[string]bool{topic: atMostOnce}
	for round := 0; once(t, db, cfg).Claimed > 0; round++ {
		require.Less(t, round, n, "it comes to an end")
	}
	delivered := map[int64]outbox.Delivery{}
	for _, d := range rec.Deliveries() {
		delivered[d.ID] = d
	}
	require.Len(t, delivered, rec.Count())
	decisions := map[policy.Decision]int{}
	after := records(t, db)
	for i, before := range all {
		looked := state(before)
		looked.AtMostOnce = atMostOnce
		decision := policy.Decide(looked, now)
		decisions[decision]++
		requireDecided(t, decision, before, after[i+len(clock)], delivered[before.ID])
	}
	require.Equal(t, atMostOnce, decisions[policy.Reclaim] == 0)
	for _, d := range []policy.Decision{policy.Send, policy.Discard, policy.Expire, policy.RetryLater, policy.Wait} {
		require.Greater(t, decisions[d], n/50, "the records are of every kind: %v", decisions)
	}
}

func state(r outbox.Record) policy.State {
	s := policy.State{Status: r.Status, Attempts: r.Attempts, MaxAttempts: r.MaxAttempts, DueAt: r.DueAt}
	if r.LeasedUntil != nil {
		s.LeasedUntil = *r.LeasedUntil
	}
	if r.ExpiresAt != nil {
		s.ExpiresAt = *r.ExpiresAt
	}
	return s
}

func requireDecided(t *testing.T, decision policy.Decision, before, after outbox.Record, d outbox.Delivery) {
	t.Helper()
	require.Equal(t, before.ID, after.ID)
	switch decision {
	case policy.Send, policy.Reclaim:
		require.Equal(t, before.Attempts+1, d.Attempt, "%s of %+v", decision, state(before))
		require.Equal(t, outbox.StatusSent, after.Status)
		require.Equal(t, before.Attempts+1, after.Attempts)
		requireSound(t, after)
	case policy.Discard:
		require.Zero(t, d.ID)
		require.Equal(t, outbox.StatusFailed, after.Status, "%s of %+v", decision, state(before))
		require.Equal(t, before.Attempts, after.Attempts)
		requireSound(t, after)
	case policy.Expire:
		require.Zero(t, d.ID)
		require.Equal(t, outbox.StatusExpired, after.Status, "%s of %+v", decision, state(before))
		require.Equal(t, before.Attempts, after.Attempts)
		requireSound(t, after)
	default:
		require.Zero(t, d.ID)
		require.Equal(t, before, after, "%s", decision)
	}
}

// makeClock enqueues a record due at each offset, of a topic that nobody delivers: columns are set from its due_at, so
// that no driver's idea of an instant comes into the table.
func makeClock(t *testing.T, db *gorm.DB) []int64 {
	t.Helper()
	now := time.Now()
	var ms []outbox.Message
	for _, offset := range offsets {
		m := outbox.Message{Topic: "clock", ScheduledFor: now.Add(offset)}
		if offset == 0 {
			m.ScheduledFor = time.Time{}
		}
		ms = append(ms, m)
	}
	return ids(enqueue(t, db, ms...))
}

// from is the due time of another record. The engines differ in whether a statement may read the table it writes; all
// take it from a derived one.
func from(id int64) any {
	return gorm.Expr("(SELECT due_at FROM (SELECT due_at FROM outbox WHERE id = ?) AS clock)", id)
}

// makeRecords enqueues n messages and turns them into records of every kind.
func makeRecords(t *testing.T, db *gorm.DB, random *rand.Rand, clock []int64, n int) []outbox.Record {
	t.Helper()
	ms := make([]outbox.Message, n)
	for i := range ms {
		ms[i] = outbox.Message{Topic: topic, MaxAttempts: 1 + random.Intn(3)}
	}
	all := ids(enqueue(t, db, ms...))
	deal := func(column string, hands []any) {
		dealt := make([][]int64, len(hands))
		for _, id := range all {
			hand := random.Intn(len(hands))
			dealt[hand] = append(dealt[hand], id)
		}
		for hand, got := range dealt {
			change(t, db, values{column: hands[hand]}, got...)
		}
	}
	var times []any
	for _, id := range clock {
		times = append(times, from(id))
	}
	times = append(times, gorm.Expr("created_at"))
	deal("due_at", times)
	deal("attempts", []any{0, 0, 1, 2, 3, 4})
	deal("leased_until", times)
	deal("expires_at", append([]any{nil, nil, nil, nil, nil, nil, nil, nil, nil, nil}, times...))
	deal("status", []any{
		"pending", "pending", "pending", "processing", "processing", "processing", "sent", "discarded", "failed", "cancelled", "expired",
	})
	finish(t, db)
	return records(t, db)[len(clock):]
}

// finish gives each record the columns that go with its status.
func finish(t *testing.T, db *gorm.DB) {
	t.Helper()
	ended := values{"leased_until": nil, "dead_at": gorm.Expr("created_at")}
	for status, v := range map[string]values{
		"pending":    {"leased_until": nil},
		"processing": {"lease_token": "some claim", "lease_owner": "some worker"},
		"sent":       {"leased_until": nil, "sent_at": gorm.Expr("created_at")},
		"discarded":  ended,
		"failed":     ended,
		"cancelled":  ended,
		"expired":    ended,
	} {
		err := db.Table(outbox.DefaultTable).Where("topic = ? AND status = ?", topic, status).UpdateColumns(map[string]any(v)).Error
		require.NoError(t, err)
	}
}
