package watermill_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	watermilllib "github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/gorm-outbox/outbox/transports/transporttest"
	"github.com/gorm-outbox/outbox/transports/watermill"
	"github.com/gorm-outbox/outbox/transports/wire"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const secret = "broker-password"

var order = outbox.Delivery{
	ID: 7, Topic: "orders", Type: "order.created.v1", TenantID: "shop", Recipient: "ana@example.test",
	Payload: json.RawMessage(`{"note":"for Ana only"}`), Headers: map[string]string{"traceparent": "00-1-2-01"},
	MessageID: "0190b5a4-7c1e-7d2a-8b00-1f2e3d4c5b6a", ProviderKey: "shop:order-7", Attempt: 1, MaxAttempts: 8,
	EnqueuedAt: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC),
}

// publisher is one of Watermill's with a broker that behaves as told.
type publisher func(topic string, m *message.Message) error

func (p publisher) Publish(topic string, ms ...*message.Message) error { return p(topic, ms[0]) }
func (publisher) Close() error                                         { return nil }

func newTransport(t *testing.T, cfg watermill.Config) *watermill.Transport {
	t.Helper()
	transport, err := watermill.New(cfg)
	require.NoError(t, err)
	return transport
}

func TestContract(t *testing.T) {
	transporttest.Run(t, transporttest.Case{
		NoID: true, Delivery: order, Secrets: []string{secret},
		New: func(t *testing.T) (outbox.Transport, *transporttest.Provider) {
			var mu sync.Mutex
			var keys []string
			mode := "accept"
			set := func(m string) func() {
				return func() { mu.Lock(); defer mu.Unlock(); mode = m }
			}
			take := func(m *message.Message) string {
				mu.Lock()
				defer mu.Unlock()
				keys = append(keys, m.Metadata.Get(watermill.MetadataProviderKey))
				return mode
			}
			broker := publisher(func(topic string, m *message.Message) error {
				err := fmt.Errorf("%s with %s: %s", topic, secret, m.Payload)
				switch take(m) {
				case "refuse":
					return policy.Failure{Category: policy.CategoryRejected, Code: "too_large", Err: err}
				case "fail":
					return err
				case "hang":
					<-m.Context().Done()
					return m.Context().Err()
				}
				return nil
			})
			return newTransport(t, watermill.Config{Publisher: broker}), &transporttest.Provider{
				Accept: set("accept"), Refuse: set("refuse"), Fail: set("fail"), Hang: set("hang"),
				Keys: func() []string { mu.Lock(); defer mu.Unlock(); return append([]string(nil), keys...) },
			}
		},
	})
}

func TestWhatIsOnTheWire(t *testing.T) {
	channel := gochannel.NewGoChannel(gochannel.Config{OutputChannelBuffer: 1}, watermilllib.NopLogger{})
	defer channel.Close() //nolint:errcheck // nothing is left in it
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	received, err := channel.Subscribe(ctx, "shop.orders")
	require.NoError(t, err)
	events, err := wire.CloudEvents("https://shop.example")
	require.NoError(t, err)
	transport := newTransport(t, watermill.Config{
		Publisher: channel, Format: events, Topic: func(d outbox.Delivery) string { return d.TenantID + "." + d.Topic },
	})
	_, err = transport.Send(ctx, order)
	require.NoError(t, err)

	m := <-received
	m.Ack()
	require.Equal(t, order.MessageID, m.UUID)
	require.JSONEq(t, `{"note":"for Ana only"}`, string(m.Payload))
	require.Equal(t, message.Metadata{
		"outbox-message-id": order.MessageID, "outbox-provider-key": "shop:order-7", "outbox-type": order.Type,
		"outbox-tenant": "shop", "content-type": "application/json", "traceparent": "00-1-2-01",
		"ce_id": order.MessageID, "ce_type": order.Type, "ce_source": "https://shop.example", "ce_specversion": "1.0",
		"ce_time": "2026-11-30T12:00:00Z", "ce_tenantid": "shop",
	}, m.Metadata)
}

// TestDeafPublisher is one that knows no contexts: it costs its attempts their time and a bounded number of goroutines.
func TestDeafPublisher(t *testing.T) {
	answer := make(chan struct{})
	var inside sync.WaitGroup
	inside.Add(2)
	deaf := publisher(func(string, *message.Message) error {
		defer inside.Done()
		<-answer
		return nil
	})
	transport := newTransport(t, watermill.Config{Publisher: deaf, Concurrency: 2})
	for i := range 4 {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		began := time.Now()
		_, err := transport.Send(ctx, order)
		cancel()
		require.Less(t, time.Since(began), time.Second)
		f, _ := policy.AsFailure(err)
		require.Equal(t, policy.CategoryTimeout, f.Category)
		sent := i < 2
		require.Equal(t, sent, f.OutcomeUnknown)
		require.Equal(t, map[bool]string{true: "timeout", false: "busy"}[sent], f.Code)
	}
	close(answer)
	inside.Wait()
}

func TestPublishersErrors(t *testing.T) {
	for name, c := range map[string]struct {
		publish func() error
		want    policy.Failure
	}{
		"any": {func() error { return errors.New(secret) }, policy.Failure{Category: policy.CategoryNetwork, Code: "publish", OutcomeUnknown: true}},
		"a failure": {func() error {
			return fmt.Errorf("%s: %w", secret, policy.Failure{Category: policy.CategoryRejected, Code: "x", Err: errors.New(secret)})
		}, policy.Failure{Category: policy.CategoryRejected, Code: "x"}},
		"panic":  {func() error { panic(secret) }, policy.Failure{Category: policy.CategoryPanic, Code: "string", OutcomeUnknown: true}},
		"goexit": {func() error { runtime.Goexit(); return nil }, policy.Failure{Category: policy.CategoryPanic, Code: "goexit", OutcomeUnknown: true}},
	} {
		t.Run(name, func(t *testing.T) {
			transport := newTransport(t, watermill.Config{Publisher: publisher(func(string, *message.Message) error { return c.publish() })})
			for range watermill.DefaultConcurrency + 1 { // it gives its place back, however it ends
				_, err := transport.Send(context.Background(), order)
				require.Equal(t, &c.want, err)
			}
		})
	}
}

func TestNew(t *testing.T) {
	_, err := watermill.New(watermill.Config{Concurrency: -1})
	require.ErrorIs(t, err, outbox.ErrInvalid)
	require.ErrorContains(t, err, "Publisher is nil; Concurrency is -1")
	_, err = watermill.New(watermill.Config{Publisher: (*gochannel.GoChannel)(nil)})
	require.ErrorContains(t, err, "Publisher is nil")
}
