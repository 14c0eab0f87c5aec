package outboxtest

import (
	"context"
	"testing"

	"github.com/gorm-outbox/outbox"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
)

var topicChecks = []check{
	{"selects its transport", checkTransportOfTopic},
	{"that is unknown stays untouched", checkUnknownTopic},
	{"with a backlog keeps no other out", checkBacklog},
	{"shares the batch", checkBatchSize},
	{"gets its turn in a batch smaller than the topics", checkTurns},
}

// about gives n messages of the topic.
func about(name string, n int) []outbox.Message {
	ms := mails(n)
	for i := range ms {
		ms[i].Topic = name
	}
	return ms
}

// perTopic counts deliveries.
func perTopic(deliveries []outbox.Delivery) map[string]int {
	counts := map[string]int{}
	for _, d := range deliveries {
		counts[d.Topic]++
	}
	return counts
}

func checkTransportOfTopic(t *testing.T, db *gorm.DB) {
	install(t, db)
	enqueue(t, db, append(append(about("orders", 3), about("Orders", 2)...), about("órdenes % '\"", 1)...)...)
	cfg := configure(nil)
	recorders := map[string]*Recorder{}
	cfg.Transports = map[string]outbox.Transport{}
	for _, name := range []string{"orders", "Orders", "órdenes % '\""} {
		recorders[name] = NewRecorder()
		cfg.Transports[name] = recorders[name]
	}
	requireSummary(t, outbox.Summary{Claimed: 6, Sent: 6}, once(t, db, cfg))
	for name, want := range map[string]int{"orders": 3, "Orders": 2, "órdenes % '\"": 1} {
		require.Equal(t, map[string]int{name: want}, perTopic(recorders[name].Deliveries()))
	}
}

func checkUnknownTopic(t *testing.T, db *gorm.DB) {
	install(t, db)
	receipts := enqueue(t, db, about("sms", 3)...)
	change(t, db, leased(1, "created_at"), receipts[1].ID)  // a worker that knew it has died
	change(t, db, leased(99, "created_at"), receipts[2].ID) // on its last attempt
	before := records(t, db)
	rec := NewRecorder()
	for i := 0; i < 10; i++ {
		enqueue(t, db, mail("known"))
		requireSummary(t, outbox.Summary{Claimed: 1, Sent: 1}, once(t, db, configure(rec, "email", "SMS", "sm", "sms2", "%")))
	}
	require.Equal(t, before, records(t, db)[:3])
	requireSummary(t, outbox.Summary{Claimed: 3, Sent: 2, Failed: 1}, once(t, db, configure(rec, "email", "sms")))
}

func checkBacklog(t *testing.T, db *gorm.DB) {
	install(t, db)
	enqueue(t, db, about("newsletter", 300)...)
	enqueue(t, db, about("password", 3)...)
	enqueue(t, db, about("zz", 3)...)
	rec := NewRecorder()
	cfg := configure(rec, "newsletter", "password", "zz", "idle")
	cfg.BatchSize = 12
	requireSummary(t, outbox.Summary{Claimed: 12, Sent: 12}, once(t, db, cfg))
	require.Equal(t, map[string]int{"newsletter": 6, "password": 3, "zz": 3}, perTopic(rec.Deliveries()))
}

func checkBatchSize(t *testing.T, db *gorm.DB) {
	install(t, db)
	names := []string{"a", "b", "c", "d", "e", "f", "g"}
	for i, name := range names {
		enqueue(t, db, about(name, 3*i)...)
	}
	left := 3 * (1 + 2 + 3 + 4 + 5 + 6)
	rec := NewRecorder()
	for _, batch := range []int{1, 2, 6, 7, 8, 20, 100} {
		cfg := configure(rec, names...)
		cfg.BatchSize = batch
		s := once(t, db, cfg)
		require.Equal(t, min(batch, left), s.Claimed, "a batch of %d with %d due", batch, left)
		left -= s.Claimed
	}
	require.Zero(t, left)
}

func checkTurns(t *testing.T, db *gorm.DB) {
	install(t, db)
	names := []string{"a", "b", "c", "d", "e"}
	for _, name := range names {
		enqueue(t, db, about(name, 20)...)
	}
	rec := NewRecorder()
	cfg := configure(rec, names...)
	cfg.BatchSize = 2
	p := newProcessor(t, db, cfg)
	for i := 0; i < 2*len(names); i++ {
		requireSummary(t, outbox.Summary{Claimed: 2, Sent: 2}, p.ProcessOnce(context.Background()))
	}
	counts := perTopic(rec.Deliveries())
	for _, name := range names {
		require.GreaterOrEqual(t, counts[name], 2, "%v", counts)
	}
}
