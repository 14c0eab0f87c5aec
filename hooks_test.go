package outbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/outboxtest"
	"github.com/gorm-outbox/outbox/outboxtest/sqlitetest"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
)

func enqueueAll(t *testing.T, db *gorm.DB, ms ...outbox.Message) {
	t.Helper()
	require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
		_, err := outbox.EnqueueAll(tx, ms)
		return err
	}))
}

// TestTheHookDoesNotHoldUpTheRecording: a message is recorded as sent while the app's hook is still at it.
func TestTheHookDoesNotHoldUpTheRecording(t *testing.T) {
	db := sqlitetest.Open(t)
	enqueueAll(t, db, outbox.Message{Topic: "orders"})
	release := make(chan struct{})
	p, err := outbox.NewProcessor(db, outbox.ProcessorConfig{
		Transports: map[string]outbox.Transport{"orders": outboxtest.NewRecorder()},
		OnAttempt:  func(context.Context, outbox.Attempt) { <-release },
	})
	require.NoError(t, err)
	done := make(chan outbox.Summary)
	go func() { done <- p.ProcessOnce(context.Background()) }()
	require.Eventually(t, func() bool {
		r, err := outbox.Get(db, 1, false)
		return err == nil && r.Status == outbox.StatusSent
	}, 10*time.Second, time.Millisecond)
	close(release)
	require.Equal(t, 1, (<-done).Sent)
}

// TestAPileToCloseHoldsUpNobody: expired messages of one topic do not keep another's waiting.
func TestAPileToCloseHoldsUpNobody(t *testing.T) {
	db := sqlitetest.Open(t)
	pile := make([]outbox.Message, 300)
	for i := range pile {
		pile[i] = outbox.Message{Topic: "codes", ExpiresAt: time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)}
	}
	enqueueAll(t, db, append(pile, outbox.Message{Topic: "orders"})...)
	rec := outboxtest.NewRecorder()
	p, err := outbox.NewProcessor(db, outbox.ProcessorConfig{
		BatchSize: 10, Transports: map[string]outbox.Transport{"codes": rec, "orders": rec},
	})
	require.NoError(t, err)
	summary := p.ProcessOnce(context.Background())
	require.Equal(t, 1, summary.Sent)
	require.LessOrEqual(t, summary.Expired, 20, "it is closed bit by bit, between deliveries")
}

// TestAListenerThatPanicsOnlyStopsListening: Run goes on polling.
func TestAListenerThatPanicsOnlyStopsListening(t *testing.T) {
	db := sqlitetest.Open(t)
	rec := outboxtest.NewRecorder()
	p, err := outbox.NewProcessor(db, outbox.ProcessorConfig{
		PollInterval: time.Millisecond, Listener: panicking{}, Transports: map[string]outbox.Transport{"orders": rec},
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- p.Run(ctx) }()
	enqueueAll(t, db, outbox.Message{Topic: "orders"})
	rec.WaitFor(t, 1)
	cancel()
	require.NoError(t, <-done)
}

type panicking struct{}

func (panicking) Listen(context.Context, string, func()) error { panic("x") }

// TestOverlappingRoundsShareTheConcurrency: it is the processor's, however many rounds run.
func TestOverlappingRoundsShareTheConcurrency(t *testing.T) {
	db := sqlitetest.Open(t)
	enqueueAll(t, db, make40("orders")...)
	inside, most := make(chan struct{}, 40), 0
	release := make(chan struct{})
	p, err := outbox.NewProcessor(db, outbox.ProcessorConfig{
		BatchSize: 10, Concurrency: 3,
		Transports: map[string]outbox.Transport{"orders": outbox.TransportFunc(func(context.Context, outbox.Delivery) (string, error) {
			inside <- struct{}{}
			<-release
			return "", nil
		})},
	})
	require.NoError(t, err)
	done := make(chan outbox.Summary)
	for range 4 {
		go func() { done <- p.ProcessOnce(context.Background()) }()
	}
	for range 3 {
		<-inside
	}
	select {
	case <-inside:
		most = 4
	case <-time.After(100 * time.Millisecond): // nobody else gets in
	}
	close(release)
	sent := 0
	for range 4 {
		sent += (<-done).Sent
	}
	require.Equal(t, 40, sent)
	require.Zero(t, most, "a fourth was inside")
}

func make40(topic string) []outbox.Message {
	ms := make([]outbox.Message, 40)
	for i := range ms {
		ms[i].Topic = topic
	}
	return ms
}
