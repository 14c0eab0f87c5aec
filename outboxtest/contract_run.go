package outboxtest

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
)

var runChecks = []check{
	{"delivers a backlog and what comes later", checkRun},
	{"finishes what is in flight and releases the rest", checkRunDrains},
	{"retries when it is time", checkRunRetries},
	{"is woken by what this process enqueues", checkRunWoken},
	{"reaches an early message behind a backlog", checkRunFloor},
	{"shares the table", checkRunsShare},
	{"outlives an outage", checkRunOutage},
	{"records after an outage", checkRecordOutage},
	{"reports a database that refuses", checkOutageReported},
}

// running starts Run, and gives what ends its context and what waits for its return.
func running(t *testing.T, db *gorm.DB, cfg outbox.ProcessorConfig) (end func(), wait func()) {
	t.Helper()
	if cfg.PollInterval == 0 {
		cfg.PollInterval = 5 * time.Millisecond
	}
	p := newProcessor(t, db, cfg)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	var err error
	go func() {
		defer close(done)
		err = p.Run(ctx)
	}()
	wait = func() {
		t.Helper()
		select {
		case <-done:
			require.NoError(t, err)
		case <-time.After(waitLimit):
			require.FailNow(t, "Run does not end with its context")
		}
	}
	t.Cleanup(func() {
		cancel()
		wait()
	})
	return cancel, wait
}

// eventually waits until the condition holds.
func eventually(t *testing.T, condition func() bool, what string) {
	t.Helper()
	require.Eventually(t, condition, waitLimit, 5*time.Millisecond, what)
}

// settled says whether n records have been sent.
func settled(t *testing.T, db *gorm.DB, n int) func() bool {
	return func() bool {
		var sent int64
		err := plain(db).Table(outbox.DefaultTable).Where("status = ?", "sent").Count(&sent).Error
		return err == nil && sent == int64(n)
	}
}

func checkRun(t *testing.T, db *gorm.DB) {
	install(t, db)
	before := workers()
	enqueue(t, db, mails(150)...)
	rec := NewRecorder()
	end, wait := running(t, db, configure(rec))
	rec.WaitFor(t, 150)
	for n := 151; n <= 153; n++ {
		eventually(t, settled(t, db, n-1), "all is recorded while Run goes on, and nothing is left to do")
		enqueue(t, db, mail("later"))
		rec.WaitFor(t, n)
	}
	end()
	wait()
	requireNoWorkers(t, before)
	require.Equal(t, 153, rec.Count())
	require.Equal(t, 1, rec.Concurrent())
	for _, r := range records(t, db) {
		requireSound(t, r)
		require.Equal(t, outbox.StatusSent, r.Status)
		require.Equal(t, 1, r.Attempts)
	}
	enqueue(t, db, mail("after"))
	require.Equal(t, 153, rec.Count())
}

func checkRunDrains(t *testing.T, db *gorm.DB) {
	install(t, db)
	proceed := make(chan struct{})
	slow := Do(func(ctx context.Context, _ outbox.Delivery) (string, error) {
		select {
		case <-proceed:
			return "in flight", nil
		case <-ctx.Done():
			return "", ctx.Err()
		}
	})
	rec := NewRecorder().For(OfType("slow"), slow)
	cfg := configure(rec)
	cfg.Concurrency = 1
	end, wait := running(t, db, cfg)
	enqueue(t, db, mail("quick")) // so that it claims ahead
	eventually(t, settled(t, db, 1), "the quick one is sent")
	enqueue(t, db, append([]outbox.Message{mail("slow")}, mails(5)...)...)
	before := records(t, db)
	claimed := func() bool {
		var n int64
		err := plain(db).Table(outbox.DefaultTable).Where("status = ?", "processing").Count(&n).Error
		return err == nil && n > 1
	}
	rec.WaitFor(t, 2)
	eventually(t, claimed, "others wait behind the slow one")
	end()
	close(proceed)
	wait()
	require.Equal(t, 2, rec.Count())
	after := records(t, db)
	requireSound(t, after[1])
	require.Equal(t, outbox.StatusSent, after[1].Status)
	require.Equal(t, "in flight", text(after[1].ExternalID))
	for i := 2; i < len(after); i++ {
		requireFreshAgain(t, before[i], after[i])
	}
}

// requireFreshAgain requires that a record is as it was, but for when it was last written.
func requireFreshAgain(t *testing.T, before, after outbox.Record) {
	t.Helper()
	before.UpdatedAt, after.UpdatedAt = time.Time{}, time.Time{}
	before.Status, before.Attempts = outbox.StatusPending, 0
	before.LeaseToken, before.LeaseOwner, before.LeasedUntil = nil, nil, nil
	require.Equal(t, before, after)
}

func checkRunRetries(t *testing.T, db *gorm.DB) {
	install(t, db)
	enqueue(t, db, mail("one"))
	rec := NewRecorder(Fail(errContract), Fail(errContract))
	cfg := configure(rec)
	cfg.Backoff.Base = 20 * time.Millisecond
	end, wait := running(t, db, cfg)
	rec.WaitFor(t, 3)
	end()
	wait()
	r := records(t, db)[0]
	require.Equal(t, outbox.StatusSent, r.Status)
	require.Equal(t, 3, r.Attempts)
}

// checkRunWoken: with an hour between polls, only being woken can deliver the messages.
func checkRunWoken(t *testing.T, db *gorm.DB) {
	install(t, db, outbox.Plugin{WakeUp: true})
	rec := NewRecorder()
	cfg := configure(rec)
	cfg.PollInterval = time.Hour
	end, wait := running(t, db, cfg)
	for n := 1; n <= 3; n++ {
		enqueue(t, db, mail("one"))
		rec.WaitFor(t, n)
		eventually(t, settled(t, db, n), "it is recorded")
	}
	end()
	wait()
}

// checkRunFloor: a backlog that renews itself keeps every claim full; a message due before all of it, committed late,
// is delivered all the same.
func checkRunFloor(t *testing.T, db *gorm.DB) {
	install(t, db)
	enqueue(t, db, mails(50)...)
	var early atomic.Bool
	transport := outbox.TransportFunc(func(_ context.Context, d outbox.Delivery) (string, error) {
		if d.Type == "early" {
			early.Store(true)
		}
		if early.Load() {
			return "", nil
		}
		return "", db.Transaction(func(tx *gorm.DB) error {
			_, err := outbox.Enqueue(tx, mail("another"))
			return err
		})
	})
	cfg := configure(transport)
	cfg.BatchSize, cfg.Concurrency = 5, 2
	end, wait := running(t, db, cfg)
	eventually(t, func() bool {
		var n int64
		err := plain(db).Table(outbox.DefaultTable).Where("status = ?", "sent").Count(&n).Error
		return err == nil && n > 50
	}, "the backlog moves")
	m := mail("early")
	m.ScheduledFor = time.Now().Add(-time.Hour)
	enqueue(t, db, m)
	eventually(t, early.Load, "the early message is delivered")
	end()
	wait()
}

func checkRunsShare(t *testing.T, db *gorm.DB) {
	install(t, db)
	const n = 200
	rec := NewRecorder()
	cfg := configure(rec)
	cfg.BatchSize, cfg.Concurrency = 10, 4
	var ends, waits [3]func()
	for i := range ends {
		ends[i], waits[i] = running(t, db, cfg)
	}
	for i := 0; i < n/20; i++ {
		enqueue(t, db, mails(20)...)
	}
	rec.WaitFor(t, n)
	eventually(t, settled(t, db, n), "all are recorded")
	for i := range ends {
		ends[i]()
		waits[i]()
	}
	require.Equal(t, n, rec.Count())
	require.Equal(t, 1, rec.Concurrent())
}

// away takes the table out of reach, and gives what brings it back.
func away(t *testing.T, db *gorm.DB) (back func()) {
	migrator := plain(db).Migrator()
	if err := migrator.RenameTable(outbox.DefaultTable, "away"); err != nil {
		t.Errorf("rename the table: %v", err)
	}
	return func() {
		if err := migrator.RenameTable("away", outbox.DefaultTable); err != nil {
			t.Errorf("rename the table back: %v", err)
		}
	}
}

// alarm is a log handler that tells of the first error.
type alarm struct {
	slog.Handler
	rang chan struct{}
}

func newAlarm() (*slog.Logger, <-chan struct{}) {
	a := alarm{rang: make(chan struct{}, 1)}
	return slog.New(a), a.rang
}

// Enabled implements slog.Handler.
func (a alarm) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelError }

// Handle implements slog.Handler.
func (a alarm) Handle(context.Context, slog.Record) error {
	select {
	case a.rang <- struct{}{}:
	default:
	}
	return nil
}

// hear waits for the alarm.
func hear(t *testing.T, rang <-chan struct{}) {
	t.Helper()
	select {
	case <-rang:
	case <-time.After(waitLimit):
		require.FailNow(t, "no database error is reported")
	}
}

func checkRunOutage(t *testing.T, db *gorm.DB) {
	install(t, db)
	rec := NewRecorder()
	cfg := configure(rec)
	var rang <-chan struct{}
	cfg.Logger, rang = newAlarm()
	enqueue(t, db, mail("before"))
	end, wait := running(t, db, cfg)
	eventually(t, settled(t, db, 1), "the first is sent")
	back := away(t, db)
	hear(t, rang)
	back()
	enqueue(t, db, mail("after"))
	rec.WaitFor(t, 2)
	end()
	wait()
	for _, r := range records(t, db) {
		require.Equal(t, outbox.StatusSent, r.Status)
		require.Equal(t, 1, r.Attempts, "an outage costs no attempt")
	}
}

// checkRecordOutage takes the table away during a delivery: what was sent is recorded as soon as it is back.
func checkRecordOutage(t *testing.T, db *gorm.DB) {
	install(t, db)
	enqueue(t, db, mail("sent"), mail("failed"))
	var back func()
	rec := NewRecorder(Do(func(context.Context, outbox.Delivery) (string, error) {
		back = away(t, db)
		return "provider-1", nil
	}), Fail(errContract))
	cfg := configure(rec)
	cfg.Concurrency = 1
	var rang <-chan struct{}
	cfg.Logger, rang = newAlarm()
	p := newProcessor(t, db, cfg)
	done := make(chan outbox.Summary, 1)
	go func() { done <- p.ProcessOnce(context.Background()) }()
	hear(t, rang)
	back()
	s := <-done
	require.NotEmpty(t, s.LastError, "an outage that was ridden out is reported")
	require.NotContains(t, s.LastError, outbox.DefaultTable, "a code, and not the driver's text")
	s.LastError = ""
	requireSummary(t, outbox.Summary{Claimed: 2, Sent: 1, Retried: 1}, s)
	require.Equal(t, "provider-1", text(records(t, db)[0].ExternalID))
	require.Equal(t, 2, rec.Count())
}

func checkOutageReported(t *testing.T, db *gorm.DB) {
	install(t, db)
	enqueue(t, db, mail("one"))
	back := away(t, db)
	s := newProcessor(t, db, configure(NewRecorder(), "a", "b")).ProcessOnce(context.Background())
	require.NotEmpty(t, s.LastError)
	require.NotContains(t, s.LastError, outbox.DefaultTable, "a code, and not the driver's text")
	require.NotZero(t, s.Errors)
	require.Zero(t, s.Claimed)
	require.Error(t, db.Transaction(func(tx *gorm.DB) error {
		_, err := outbox.Enqueue(tx, mail("two"))
		require.Error(t, err)
		require.NotErrorIs(t, err, outbox.ErrInvalid)
		require.NotErrorIs(t, err, outbox.ErrNoTransaction)
		return err
	}))
	back()
	requireSummary(t, outbox.Summary{Claimed: 1, Sent: 1}, once(t, db, configure(NewRecorder())))
}
