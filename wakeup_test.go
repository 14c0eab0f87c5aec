package outbox_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
)

// runUntilDone keeps a processor of topic "orders" in Run for the test, with polls too far apart to explain anything.
func runUntilDone(t *testing.T, db *gorm.DB, listener outbox.Listener) (*outbox.Processor, <-chan outbox.Delivery) {
	delivered := make(chan outbox.Delivery, 10)
	p, err := outbox.NewProcessor(db, outbox.ProcessorConfig{
		PollInterval: time.Hour,
		Listener:     listener,
		Transports: map[string]outbox.Transport{"orders": outbox.TransportFunc(func(_ context.Context, d outbox.Delivery) (string, error) {
			delivered <- d
			return "", nil
		})},
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return p, delivered
}

func requireDelivery(t *testing.T, delivered <-chan outbox.Delivery, typ string) {
	t.Helper()
	select {
	case d := <-delivered:
		require.Equal(t, typ, d.Type)
	case <-time.After(10 * time.Second):
		require.Fail(t, "not delivered", typ)
	}
}

func enqueueOrder(db *gorm.DB, typ string, after func() error) error {
	return db.Transaction(func(tx *gorm.DB) error {
		if _, err := outbox.Enqueue(tx, outbox.Message{Topic: "orders", Type: typ}); err != nil {
			return err
		}
		return after()
	})
}

func TestWakeUpDeliversWithoutAPoll(t *testing.T) {
	db, closeShop := openShop()
	t.Cleanup(closeShop)
	require.NoError(t, db.Use(outbox.Plugin{WakeUp: true}))
	_, delivered := runUntilDone(t, db, nil)

	require.NoError(t, enqueueOrder(db, "first", func() error { return nil }))
	requireDelivery(t, delivered, "first")

	// The announcement may come before the commit; the worker looks again.
	require.NoError(t, enqueueOrder(db, "slow commit", func() error {
		<-time.After(30 * time.Millisecond) // the business goes on in its transaction
		return nil
	}))
	requireDelivery(t, delivered, "slow commit")

	// A rolled-back message is announced too, and delivers nothing.
	rollback := errors.New("rollback")
	require.ErrorIs(t, enqueueOrder(db, "rolled back", func() error { return rollback }), rollback)
	require.NoError(t, enqueueOrder(db, "last", func() error { return nil }))
	requireDelivery(t, delivered, "last")
}

func TestWake(t *testing.T) {
	db, closeShop := openShop()
	t.Cleanup(closeShop)
	require.NoError(t, db.Use(outbox.Plugin{}))
	p, delivered := runUntilDone(t, db, nil)
	require.NoError(t, enqueueOrder(db, "by hand", func() error { return nil }))
	p.Wake()
	requireDelivery(t, delivered, "by hand")
}

// flaky fails at once the first time, and from then on hears when told to.
type flaky struct {
	calls   atomic.Int64
	channel atomic.Value
	tell    chan struct{}
}

func (f *flaky) Listen(ctx context.Context, channel string, heard func()) error {
	f.channel.Store(channel)
	if f.calls.Add(1) == 1 {
		return errors.New("connection refused")
	}
	for {
		select {
		case <-f.tell:
			heard()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func TestListenerWakesRun(t *testing.T) {
	db, closeShop := openShop()
	t.Cleanup(closeShop)
	require.NoError(t, db.Use(outbox.Plugin{}))
	listener := &flaky{tell: make(chan struct{})}
	p, err := outbox.NewProcessor(db, outbox.ProcessorConfig{
		PollInterval: 20 * time.Millisecond, // also how soon it listens again
		Listener:     listener,
		Transports:   map[string]outbox.Transport{"orders": outbox.Handle(func(context.Context, any, outbox.Delivery) error { return nil })},
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- p.Run(ctx) }()
	listener.tell <- struct{}{} // is heard only after the second Listen
	require.EqualValues(t, 2, listener.calls.Load())
	require.Equal(t, "outbox", listener.channel.Load())
	cancel()
	require.NoError(t, <-done)
}

func TestDeleteSentKeepsOnlyWhatIsNotSent(t *testing.T) {
	db, closeShop := openShop()
	t.Cleanup(closeShop)
	require.NoError(t, db.Use(outbox.Plugin{DeleteSent: true}))
	for _, typ := range []string{"good", "bad", "good"} {
		require.NoError(t, enqueueOrder(db, typ, func() error { return nil }))
	}
	p, err := outbox.NewProcessor(db, outbox.ProcessorConfig{
		Transports: map[string]outbox.Transport{"orders": outbox.TransportFunc(func(_ context.Context, d outbox.Delivery) (string, error) {
			if d.Type == "bad" {
				return "", errors.New("refused")
			}
			return "", nil
		})},
	})
	require.NoError(t, err)
	summary := p.ProcessOnce(context.Background())
	require.Equal(t, 2, summary.Sent)
	require.Equal(t, 1, summary.Retried)
	var records []outbox.Record
	require.NoError(t, db.Find(&records).Error)
	require.Len(t, records, 1)
	require.Equal(t, "bad", records[0].Type)
}
