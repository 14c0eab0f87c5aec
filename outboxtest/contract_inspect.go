package outboxtest

import (
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
)

var inspectChecks = []check{
	{"stats count by topic", checkStats},
	{"list pages, newest first", checkList},
	{"list hides what may be private", checkListHides},
	{"explain says why", checkExplain},
	{"explain suspects that nobody serves a topic", checkExplainUnserved},
}

func checkStats(t *testing.T, db *gorm.DB) {
	install(t, db)
	stats, err := outbox.Stats(db)
	require.NoError(t, err)
	require.Empty(t, stats)

	all := endings(t, db, longAgo)
	old := enqueue(t, db, mail("due since long"))[0].ID
	change(t, db, values{"due_at": longAgo}, old)
	later := mail("scheduled")
	later.Delay = time.Hour
	sent := enqueue(t, db, later, mail("sent just now"), outbox.Message{Topic: "sms"})[1].ID
	change(t, db, values{"status": "sent", "sent_at": gorm.Expr("created_at")}, sent)
	busy := enqueue(t, db, mail("busy"))[0].ID
	change(t, db, leased(1, "created_at"), busy)
	change(t, db, values{"leased_until": time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)}, busy)

	stats, err = outbox.Stats(db)
	require.NoError(t, err)
	require.Len(t, stats, 2)
	require.Greater(t, stats[0].OldestDue, 365*24*time.Hour)
	require.Less(t, stats[1].OldestDue, time.Hour)
	stats[0].OldestDue, stats[1].OldestDue = 0, 0
	require.Equal(t, []outbox.TopicStats{
		{Topic: topic, Due: 2, Scheduled: 1, Processing: 1, LeaseExpired: 1, Sent: 1, Discarded: 1, Failed: 1},
		{Topic: "sms", Due: 1},
	}, stats)
	require.Len(t, all, 7)
}

func checkList(t *testing.T, db *gorm.DB) {
	install(t, db)
	receipts := enqueue(t, db, mails(5)...)
	var pages [][]int64
	var before int64
	for range 3 {
		page, err := outbox.List(db, outbox.ListOptions{Filter: outbox.Filter{Topic: topic, Limit: 2}, Before: before})
		require.NoError(t, err)
		var got []int64
		for _, r := range page {
			got = append(got, r.ID)
			before = r.ID
		}
		pages = append(pages, got)
	}
	all := ids(receipts)
	require.Equal(t, [][]int64{{all[4], all[3]}, {all[2], all[1]}, {all[0]}}, pages)
	for _, o := range []outbox.ListOptions{{}, {Filter: outbox.Filter{All: true, Limit: 1001}}, {Filter: outbox.Filter{All: true}, Before: -1}} {
		_, err := outbox.List(db, o)
		require.ErrorIs(t, err, outbox.ErrInvalid)
	}
}

func checkListHides(t *testing.T, db *gorm.DB) {
	install(t, db)
	m := mail("one")
	m.Headers = map[string]string{"trace": "1"}
	id := enqueue(t, db, m)[0].ID
	hidden, err := outbox.Get(db, id, false)
	require.NoError(t, err)
	require.Empty(t, hidden.Recipient)
	require.Empty(t, hidden.Payload)
	require.Empty(t, hidden.Headers)
	shown, err := outbox.Get(db, id, true)
	require.NoError(t, err)
	require.Equal(t, m.Recipient, shown.Recipient)
	require.JSONEq(t, `{"kind":"one"}`, string(shown.Payload))
	require.EqualValues(t, "1", shown.Headers["trace"])
	require.Equal(t, hidden.MessageID, shown.MessageID)
	_, err = outbox.Get(db, id+1, false)
	require.ErrorIs(t, err, gorm.ErrRecordNotFound)
}

func checkExplain(t *testing.T, db *gorm.DB) {
	install(t, db)
	id := enqueue(t, db, mail("one"))[0].ID
	require.Contains(t, explain(t, db, id), "waits for a processor")
	for _, tt := range []struct {
		change values
		want   string
	}{
		{values{"due_at": time.Date(2200, 1, 2, 3, 4, 5, 0, time.UTC)}, "is not due until 2200-01-02T03:04:05Z"},
		{values{"attempts": 2, "last_error_category": "network", "last_error_code": "timeout"}, "waits for attempt 3 of 8 at 2200-01-02T03:04:05Z, after network/timeout"},
		{leased(3, "due_at"), "is being delivered, attempt 3 of 8: leased by some worker until 2200-01-02T03:04:05Z"},
		{leased(3, "created_at"), "was left by some worker"},
		{values{"status": "sent", "sent_at": longAgo}, "was sent at 2020-01-01T00:00:00Z, at attempt 3"},
		{values{"status": "discarded", "sent_at": nil, "dead_at": longAgo}, "is dead since 2020-01-01T00:00:00Z: discarded at attempt 3, after network/timeout"},
		{values{"status": "failed"}, "failed after 3 of 8 attempts"},
		{values{"status": "cancelled"}, "was cancelled at 2020-01-01T00:00:00Z"},
		{values{"status": "expired", "expires_at": longAgo}, "it was not sent by 2020-01-01T00:00:00Z"},
	} {
		change(t, db, tt.change, id)
		require.Contains(t, explain(t, db, id), tt.want)
	}
	_, err := outbox.Explain(db, id+1)
	require.ErrorIs(t, err, gorm.ErrRecordNotFound)
}

func explain(t *testing.T, db *gorm.DB, id int64) string {
	t.Helper()
	text, err := outbox.Explain(db, id)
	require.NoError(t, err)
	require.NotContains(t, text, "example.test")
	return text
}

func checkExplainUnserved(t *testing.T, db *gorm.DB) {
	install(t, db)
	sms := enqueue(t, db, outbox.Message{Topic: "sms"})[0].ID
	change(t, db, values{"due_at": longAgo}, sms)
	require.Contains(t, explain(t, db, sms), "does a processor run?")
	die(t, db, policy.Failure{Category: policy.CategoryRejected}, "another topic")
	require.Contains(t, explain(t, db, sms), "of the topics claimed lately, email, none is its own")
	other := enqueue(t, db, mail("served"))[0].ID
	change(t, db, values{"due_at": longAgo}, other)
	require.Contains(t, explain(t, db, other), "they may be behind")
}
