package outboxtest

import (
	"context"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
)

// topic is the one that most checks use.
const topic = "email"

// contractOrder is the business fact of the checks.
type contractOrder struct {
	ID   int64 `gorm:"primaryKey;autoIncrement:false"`
	Note string
}

// contractSale is a business fact whose hook enqueues.
type contractSale struct {
	ID      int64          `gorm:"primaryKey;autoIncrement:false"`
	Message outbox.Message `gorm:"-"`
	Then    error          `gorm:"-"` // what the hook returns after it has enqueued
	handle  *gorm.DB
}

// AfterCreate enqueues the sale's message.
func (s *contractSale) AfterCreate(tx *gorm.DB) error {
	s.handle = tx
	if _, err := outbox.Enqueue(tx, s.Message); err != nil {
		return err
	}
	return s.Then
}

// install puts the outbox and the tables of the business facts into db.
func install(t *testing.T, db *gorm.DB, plugins ...outbox.Plugin) {
	t.Helper()
	if plugins == nil {
		plugins = []outbox.Plugin{{}}
	}
	for _, p := range plugins {
		require.NoError(t, db.Use(p))
	}
	require.NoError(t, db.AutoMigrate(&contractOrder{}, &contractSale{}))
}

// mail is a message of the topic; the type tells it from others.
func mail(kind string) outbox.Message {
	return outbox.Message{Topic: topic, Type: kind, Recipient: "ana@example.test", Payload: map[string]any{"kind": kind}}
}

// mails gives n messages, each with a type of its own.
func mails(n int) []outbox.Message {
	ms := make([]outbox.Message, n)
	for i := range ms {
		ms[i] = mail("mail-" + pad(i))
	}
	return ms
}

// pad makes i a text that sorts as the number does.
func pad(i int) string {
	const digits = "0123456789"
	return string([]byte{digits[i/10000%10], digits[i/1000%10], digits[i/100%10], digits[i/10%10], digits[i%10]})
}

// enqueue commits the messages in one transaction.
func enqueue(t *testing.T, db *gorm.DB, ms ...outbox.Message) []outbox.Receipt {
	t.Helper()
	var receipts []outbox.Receipt
	require.NoError(t, db.Transaction(func(tx *gorm.DB) (err error) {
		receipts, err = outbox.EnqueueAll(tx, ms)
		return err
	}))
	require.Len(t, receipts, len(ms))
	return receipts
}

// ids are the records of the receipts.
func ids(receipts []outbox.Receipt) []int64 {
	all := make([]int64, len(receipts))
	for i, r := range receipts {
		all[i] = r.ID
	}
	return all
}

// records gives all records of the outbox in the order of enqueue.
func records(t *testing.T, db *gorm.DB) []outbox.Record {
	t.Helper()
	all, err := readRecords(db, outbox.Plugin{})
	require.NoError(t, err)
	return all
}

// record gives one record.
func record(t *testing.T, db *gorm.DB, id int64) outbox.Record {
	t.Helper()
	for _, r := range records(t, db) {
		if r.ID == id {
			return r
		}
	}
	require.FailNow(t, "no such record", "id %d", id)
	return outbox.Record{}
}

// values are new values for columns of records.
type values map[string]any

// Changes of records that a check makes behind the outbox's back. Times come from other columns, so that no clock but
// the database's has a part in them.
var (
	leaseOver = values{"leased_until": gorm.Expr("created_at")} // the lease has run out
	dueNow    = values{"due_at": gorm.Expr("created_at")}       // the wait is over
	stolen    = values{"lease_token": "another claim", "lease_owner": "another worker"}
)

// leased makes a record one that a worker holds.
func leased(attempts int, until string) values {
	return values{
		"status": "processing", "attempts": attempts, "lease_token": "some claim", "lease_owner": "some worker",
		"leased_until": gorm.Expr(until),
	}
}

// change writes columns of the records, all of them if no id is given. It may be called from a transport.
func change(t *testing.T, db *gorm.DB, v values, ids ...int64) {
	t.Helper()
	q := plain(db).Table(locate(db, outbox.Plugin{}).Table)
	if ids == nil {
		q = q.Where("1 = 1")
	} else {
		q = q.Where("id IN ?", ids)
	}
	if err := q.UpdateColumns(map[string]any(v)).Error; err != nil {
		t.Errorf("change records: %v", err)
	}
}

// quick are the waits of the checks: 10 s after the first failure, 30 s after the second, each ± 10 %.
var quick = policy.Backoff{Base: 10 * time.Second, Factor: 3, Jitter: 0.1}

// configure gives a configuration whose topics, the usual one if none is given, all go to the transport. Its times are
// far above what a check needs, and let one that fails come to its end.
func configure(transport outbox.Transport, topics ...string) outbox.ProcessorConfig {
	if topics == nil {
		topics = []string{topic}
	}
	cfg := outbox.ProcessorConfig{
		Transports: map[string]outbox.Transport{}, Backoff: quick, Owner: "contract", Lease: time.Minute, Timeout: 10 * time.Second,
	}
	for _, name := range topics {
		cfg.Transports[name] = transport
	}
	return cfg
}

// newProcessor gives a processor for the only outbox.
func newProcessor(t *testing.T, db *gorm.DB, cfg outbox.ProcessorConfig) *outbox.Processor {
	t.Helper()
	p, err := outbox.NewProcessor(db, cfg)
	require.NoError(t, err)
	return p
}

// once is one round of a new processor.
func once(t *testing.T, db *gorm.DB, cfg outbox.ProcessorConfig) outbox.Summary {
	t.Helper()
	s := newProcessor(t, db, cfg).ProcessOnce(context.Background())
	requireClean(t, s)
	return s
}

// requireClean requires that the counts of a round add up and that the database refused nothing.
func requireClean(t *testing.T, s outbox.Summary) {
	t.Helper()
	require.Zero(t, s.Errors)
	require.Empty(t, s.LastError)
	require.Equal(t, s.Claimed, s.Sent+s.Retried+s.Failed+s.Discarded+s.Expired+s.Lost+s.Released, "%+v", s)
}

// requireSummary requires these counts and no others.
func requireSummary(t *testing.T, want, got outbox.Summary) {
	t.Helper()
	got.Warnings = nil
	require.Equal(t, want, got)
}

// requireSound requires what holds for every record at rest: no trace of a lease, and the mark of its end if and only
// if it has ended.
func requireSound(t *testing.T, r outbox.Record) {
	t.Helper()
	require.NotEqual(t, outbox.StatusProcessing, r.Status)
	require.Nil(t, r.LeaseToken)
	require.Nil(t, r.LeaseOwner)
	require.Nil(t, r.LeasedUntil)
	require.Equal(t, r.Status == outbox.StatusSent, r.SentAt != nil, "sent_at of a record that is %s", r.Status)
	unsent := r.Status.Terminal() && r.Status != outbox.StatusSent
	require.Equal(t, unsent, r.DeadAt != nil, "dead_at of a record that is %s", r.Status)
	require.False(t, r.UpdatedAt.Before(r.CreatedAt))
}

// kinds are the types of the deliveries, in order.
func kinds(deliveries []outbox.Delivery) []string {
	all := make([]string, len(deliveries))
	for i, d := range deliveries {
		all[i] = d.Type
	}
	return all
}

// text is what p points to, or nothing.
func text(p *string) string {
	if p == nil {
		return ""
	}
	return *p
}
