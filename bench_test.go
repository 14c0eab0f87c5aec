package outbox

import (
	"context"
	"testing"

	driver "github.com/glebarez/sqlite"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

// The benchmarks here are of this library's own work and its allocations: SQLite in memory costs little and waits for
// nothing. What PostgreSQL makes of it is measured in tests and tests/bench.

const benchBatch = 100

func benchStore(b *testing.B) (*gorm.DB, *store) {
	b.Helper()
	db, err := gorm.Open(driver.Open("file:"+b.Name()+"?mode=memory"), &gorm.Config{Logger: logger.Discard})
	require.NoError(b, err)
	pool, err := db.DB()
	require.NoError(b, err)
	pool.SetMaxOpenConns(1) // each connection would be a database of its own
	b.Cleanup(func() { pool.Close() })
	require.NoError(b, db.Use(Plugin{}))
	s, err := theOutbox(db)
	require.NoError(b, err)
	return db, s
}

func benchMessages(n int) []Message {
	messages := make([]Message, n)
	for i := range messages {
		messages[i] = Message{
			Topic: "email", Type: "order_confirmation", Recipient: "ana@example.test",
			Payload: map[string]any{"order": i, "total": "12.50", "note": "about two hundred bytes of JSON are a usual size"},
		}
	}
	return messages
}

func benchEnqueue(b *testing.B, db *gorm.DB, messages []Message) {
	b.Helper()
	err := db.Transaction(func(tx *gorm.DB) error {
		_, err := EnqueueAll(tx, messages)
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
}

// BenchmarkEnqueue is one message in a transaction of its own.
func BenchmarkEnqueue(b *testing.B) { benchTransactions(b, 1) }

// BenchmarkEnqueueAll is a transaction with a hundred.
func BenchmarkEnqueueAll(b *testing.B) { benchTransactions(b, benchBatch) }

func benchTransactions(b *testing.B, size int) {
	b.Helper()
	db, _ := benchStore(b)
	messages := benchMessages(size)
	b.ReportAllocs()
	b.ResetTimer()
	for i := 0; i < b.N; i++ {
		benchEnqueue(b, db, messages)
	}
}

// benchClaim claims a batch that has just been enqueued.
func benchClaim(b *testing.B, db *gorm.DB, s *store) []*claim {
	claims, err := s.claim(session(context.Background(), db), lease{topic: "email", limit: benchBatch, owner: "bench", term: DefaultLease})
	if err != nil || len(claims) != benchBatch {
		b.Fatal(len(claims), err)
	}
	return claims
}

func benchRecord(b *testing.B, db *gorm.DB, s *store, claims []*claim) {
	outcomes := make([]outcome, len(claims))
	for i, c := range claims {
		outcomes[i] = outcome{claim: c, ID: c.ID, Token: c.token, Status: StatusSent}
	}
	written, err := s.record(session(context.Background(), db), outcomes, false)
	if err != nil || len(written) != benchBatch {
		b.Fatal(len(written), err)
	}
}

// BenchmarkClaim is the claim of a hundred records.
func BenchmarkClaim(b *testing.B) {
	db, s := benchStore(b)
	messages := benchMessages(benchBatch)
	b.ReportAllocs()
	b.ResetTimer()
	for i := 0; i < b.N; i++ {
		b.StopTimer()
		benchEnqueue(b, db, messages)
		b.StartTimer()
		benchClaim(b, db, s)
	}
}

// BenchmarkRecord is the recording of a hundred outcomes.
func BenchmarkRecord(b *testing.B) {
	db, s := benchStore(b)
	messages := benchMessages(benchBatch)
	b.ReportAllocs()
	b.ResetTimer()
	for i := 0; i < b.N; i++ {
		b.StopTimer()
		benchEnqueue(b, db, messages)
		claims := benchClaim(b, db, s)
		b.StartTimer()
		benchRecord(b, db, s, claims)
	}
}
