package outboxtest

import (
	"context"
	"testing"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
)

var lostChecks = []check{
	{"to any other claim", checkLost},
	{"to one that is delivering", checkLostToLiveClaim},
	{"to one that has delivered", checkLostToDelivery},
	{"while it waited to be released", checkLostRelease},
	{"and taken over twice", checkLostTwice},
	{"beside others of the batch", checkLostAmongOthers},
	{"during an outage", func(t *testing.T, db *gorm.DB) { checkLostInOutage(t, db, outbox.Plugin{}) }},
	{"during an outage, where sent records are deleted", func(t *testing.T, db *gorm.DB) {
		checkLostInOutage(t, db, outbox.Plugin{DeleteSent: true})
	}},
}

// answers are the outcomes whose writes a fence must stop.
var answers = map[string]Result{
	"success": Accept("stale"), "failure": Fail(errContract), "permanent failure": Refuse("rejected", "stale"), "panic": Panic("x"),
	"conflict": Fail(policy.Failure{Category: policy.CategoryIdempotencyConflict}),
}

// checkLost: whatever a worker has to say about a record that another claim owns now, it says nothing.
func checkLost(t *testing.T, db *gorm.DB) {
	install(t, db)
	for name, answer := range answers {
		id := enqueue(t, db, mail(name))[0].ID
		var before outbox.Record
		rec := NewRecorder(Do(func(ctx context.Context, d outbox.Delivery) (string, error) {
			change(t, db, stolen, d.ID)
			before = mustRecord(t, db, d.ID)
			return answer.play(ctx, d)
		}))
		requireSummary(t, outbox.Summary{Claimed: 1, Lost: 1}, once(t, db, configure(rec)))
		require.Equal(t, before, record(t, db, id), name)
	}
}

// mustRecord is record for use inside a transport, where a test cannot be ended.
func mustRecord(t *testing.T, db *gorm.DB, id int64) outbox.Record {
	all, err := readRecords(db, outbox.Plugin{})
	if err != nil {
		t.Errorf("read records: %v", err)
	}
	for _, r := range all {
		if r.ID == id {
			return r
		}
	}
	t.Errorf("no record %d", id)
	return outbox.Record{}
}

func checkLostToDelivery(t *testing.T, db *gorm.DB) {
	install(t, db)
	for name, answer := range answers {
		id := enqueue(t, db, mail(name))[0].ID
		second := NewRecorder(Accept("the second worker's"))
		other := newProcessor(t, db, configure(second))
		rec := NewRecorder(Do(func(ctx context.Context, d outbox.Delivery) (string, error) {
			change(t, db, leaseOver, d.ID) // this worker stalls, its lease runs out
			other.ProcessOnce(ctx)
			return answer.play(ctx, d)
		}))
		requireSummary(t, outbox.Summary{Claimed: 1, Lost: 1}, once(t, db, configure(rec)))
		r := record(t, db, id)
		requireSound(t, r)
		require.Equal(t, outbox.StatusSent, r.Status, name)
		require.Equal(t, 2, r.Attempts, name)
		require.Equal(t, "the second worker's", text(r.ExternalID), name)
		require.Nil(t, r.LastErrorCategory, name)
		require.Equal(t, rec.Deliveries()[0].ProviderKey, second.Deliveries()[0].ProviderKey, "how a provider knows the repeat")
	}
}

// checkLostToLiveClaim: the first worker comes back while the second is at it.
func checkLostToLiveClaim(t *testing.T, db *gorm.DB) {
	install(t, db)
	id := enqueue(t, db, mail("one"))[0].ID
	inside, proceed := make(chan struct{}), make(chan struct{})
	wait := func(ctx context.Context, event <-chan struct{}) {
		select {
		case <-event:
		case <-ctx.Done():
		}
	}
	other := newProcessor(t, db, configure(NewRecorder(Do(func(ctx context.Context, _ outbox.Delivery) (string, error) {
		close(inside)
		wait(ctx, proceed)
		return "the second worker's", nil
	}))))
	done := make(chan outbox.Summary, 1)
	rec := NewRecorder(Do(func(ctx context.Context, d outbox.Delivery) (string, error) {
		change(t, db, leaseOver, d.ID)
		go func() { done <- other.ProcessOnce(context.Background()) }()
		wait(ctx, inside)
		return "stale", nil
	}))
	requireSummary(t, outbox.Summary{Claimed: 1, Lost: 1}, once(t, db, configure(rec)))
	require.Equal(t, outbox.StatusProcessing, record(t, db, id).Status, "the second worker goes on undisturbed")
	close(proceed)
	requireSummary(t, outbox.Summary{Claimed: 1, Sent: 1}, <-done)
	r := record(t, db, id)
	requireSound(t, r)
	require.Equal(t, 2, r.Attempts)
	require.Equal(t, "the second worker's", text(r.ExternalID))
}

func checkLostRelease(t *testing.T, db *gorm.DB) {
	install(t, db)
	receipts := enqueue(t, db, mails(3)...)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var before outbox.Record
	rec := endOnFirst(func() {
		change(t, db, stolen, receipts[1].ID)
		before = mustRecord(t, db, receipts[1].ID)
		cancel()
	}, Accept(""))
	cfg := configure(rec)
	cfg.Concurrency = 1
	s := newProcessor(t, db, cfg).ProcessOnce(ctx)
	requireSummary(t, outbox.Summary{Claimed: 3, Sent: 1, Released: 1, Lost: 1}, s)
	require.Equal(t, before, record(t, db, receipts[1].ID))
}

// checkLostTwice: a record that went to another claim of the same worker is lost to the first one all the same; a name
// is no fence.
func checkLostTwice(t *testing.T, db *gorm.DB) {
	install(t, db)
	id := enqueue(t, db, mail("one"))[0].ID
	second := newProcessor(t, db, configure(NewRecorder(Fail(errContract))))
	rec := NewRecorder(Do(func(ctx context.Context, d outbox.Delivery) (string, error) {
		change(t, db, leaseOver, d.ID)
		second.ProcessOnce(ctx) // takes it and fails: it is pending again
		return "stale", nil
	}))
	requireSummary(t, outbox.Summary{Claimed: 1, Lost: 1}, once(t, db, configure(rec)))
	r := record(t, db, id)
	requireSound(t, r)
	require.Equal(t, outbox.StatusPending, r.Status)
	require.Equal(t, 2, r.Attempts)
	require.Nil(t, r.ExternalID)
	require.True(t, r.DueAt.After(r.UpdatedAt))
}

func checkLostAmongOthers(t *testing.T, db *gorm.DB) {
	install(t, db)
	enqueue(t, db, mails(20)...)
	rec := NewRecorder()
	for i := 0; i < 20; i += 2 {
		rec.For(OfType("mail-"+pad(i)), Do(func(_ context.Context, d outbox.Delivery) (string, error) {
			change(t, db, stolen, d.ID)
			return "stale", nil
		}))
	}
	requireSummary(t, outbox.Summary{Claimed: 20, Sent: 10, Lost: 10}, once(t, db, configure(rec)))
	for i, r := range records(t, db) {
		want := outbox.StatusSent
		if i%2 == 0 {
			want = outbox.StatusProcessing
		}
		require.Equal(t, want, r.Status)
	}
}

// checkLostInOutage: a write that fails and is tried again does not take another claim's record for its own.
func checkLostInOutage(t *testing.T, db *gorm.DB, p outbox.Plugin) {
	install(t, db, p)
	enqueue(t, db, mail("one"))
	var back func()
	rec := NewRecorder(Do(func(context.Context, outbox.Delivery) (string, error) {
		change(t, db, stolen)
		back = away(t, db)
		return "stale", nil
	}))
	cfg := configure(rec)
	var rang <-chan struct{}
	cfg.Logger, rang = newAlarm()
	processor := newProcessor(t, db, cfg)
	done := make(chan outbox.Summary, 1)
	go func() { done <- processor.ProcessOnce(context.Background()) }()
	hear(t, rang)
	back()
	s := <-done
	s.LastError = ""
	requireSummary(t, outbox.Summary{Claimed: 1, Lost: 1}, s)
	r := records(t, db)[0]
	require.Equal(t, outbox.StatusProcessing, r.Status)
	require.Equal(t, "another claim", text(r.LeaseToken))
}
