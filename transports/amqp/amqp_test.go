package amqp_test

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/transports/amqp"
	"github.com/gorm-outbox/outbox/transports/transporttest"
	"github.com/gorm-outbox/outbox/transports/wire"
	client "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if shared != nil {
		shared.remove()
	}
	if err := goleak.Find(); err != nil && code == 0 {
		println(err.Error())
		code = 1
	}
	os.Exit(code)
}

var order = outbox.Delivery{
	ID: 7, Topic: "orders", Type: "order.created.v1", TenantID: "shop", Recipient: "ana@example.test",
	Payload: json.RawMessage(`{"note":"for Ana only"}`), Headers: map[string]string{"traceparent": "00-1-2-01"},
	MessageID: "0190b5a4-7c1e-7d2a-8b00-1f2e3d4c5b6a", ProviderKey: "shop:order-7", Attempt: 1, MaxAttempts: 8,
	EnqueuedAt: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC),
}

func newTransport(t *testing.T, cfg amqp.Config) *amqp.Transport {
	t.Helper()
	transport, err := amqp.New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, transport.Close()) })
	return transport
}

func TestContract(t *testing.T) {
	b := theBroker(t)
	transporttest.Run(t, transporttest.Case{
		NoID: true, Delivery: order, Secrets: []string{user, password},
		New: func(t *testing.T) (outbox.Transport, *transporttest.Provider) {
			admin := b.exchange(t, "contract")
			// A queue that may hold nothing refuses what is published to it. The queue of the exchange gets it all the same.
			_, err := admin.QueueDeclare("full", true, false, false, false, client.Table{"x-max-length": 0, "x-overflow": "reject-publish"})
			require.NoError(t, err)
			t.Cleanup(func() { _, _ = admin.QueueDelete("full", false, false, false) }) // the node is thrown away
			require.NoError(t, admin.QueueBind("full", "full", "contract", false, nil))
			var key, padding atomic.Value
			behave := func(k, p string) { key.Store(k); padding.Store(p) }
			behave("any", "")
			proxy := transporttest.NewProxy(t, b.addr())
			transport := newTransport(t, amqp.Config{
				URL: b.url(proxy.Addr()), Exchange: "contract",
				RoutingKey: func(outbox.Delivery) string { return key.Load().(string) },
				Format: wire.FormatFunc(func(d outbox.Delivery) (wire.Wire, error) {
					w, err := wire.Payload.Encode(d)
					w.Body = append([]byte(padding.Load().(string)), w.Body...)
					return w, err
				}),
			})
			seen := &keys{channel: admin}
			return transport, &transporttest.Provider{
				Accept: func() { proxy.Pass(); behave("any", "") },
				Refuse: func() { proxy.Pass(); behave("any", strings.Repeat(" ", maxMessage)) },
				Fail:   func() { proxy.Pass(); behave("full", "") },
				Hang:   func() { behave("any", ""); proxy.Hold() },
				Keys:   func() []string { return seen.get("contract") },
			}
		},
	})
}

// keys collects the message ids of what arrives in a queue.
type keys struct {
	mu      sync.Mutex
	channel *client.Channel
	all     []string
}

func (k *keys) get(queue string) []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	for {
		m, ok, err := k.channel.Get(queue, true)
		if err != nil || !ok {
			return append([]string(nil), k.all...)
		}
		k.all = append(k.all, m.MessageId)
	}
}

func TestWhatIsOnTheWire(t *testing.T) {
	b := theBroker(t)
	ch := b.exchange(t, "wire")
	events, err := wire.CloudEvents("https://shop.example")
	require.NoError(t, err)
	transport := newTransport(t, amqp.Config{URL: b.url(b.addr()), Exchange: "wire", Format: events})
	id, err := transport.Send(context.Background(), order)
	require.NoError(t, err)
	require.Empty(t, id)

	m, ok, err := ch.Get("wire", true)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, "orders.order.created.v1", m.RoutingKey)
	require.Equal(t, order.MessageID, m.MessageId)
	require.Equal(t, order.Type, m.Type)
	require.Equal(t, "application/json", m.ContentType)
	require.Equal(t, client.Persistent, m.DeliveryMode)
	require.True(t, m.Timestamp.Equal(order.EnqueuedAt))
	require.JSONEq(t, `{"note":"for Ana only"}`, string(m.Body))
	require.Equal(t, client.Table{
		"outbox-tenant": "shop", "traceparent": "00-1-2-01",
		"cloudEvents_id": order.MessageID, "cloudEvents_type": order.Type, "cloudEvents_source": "https://shop.example",
		"cloudEvents_specversion": "1.0", "cloudEvents_time": "2026-11-30T12:00:00Z", "cloudEvents_tenantid": "shop",
	}, m.Headers)
}

func TestDefaultExchange(t *testing.T) {
	b := theBroker(t)
	ch := b.exchange(t, "direct")
	transport := newTransport(t, amqp.Config{URL: b.url(b.addr()), RoutingKey: func(outbox.Delivery) string { return "direct" }})
	_, err := transport.Send(context.Background(), order)
	require.NoError(t, err)
	_, ok, err := ch.Get("direct", true)
	require.NoError(t, err)
	require.True(t, ok)
}

func TestNew(t *testing.T) {
	_, err := amqp.New(amqp.Config{URL: "amqp://app:secret-password@%%", Exchange: strings.Repeat("x", 256), Channels: -1})
	require.ErrorIs(t, err, outbox.ErrInvalid)
	for _, want := range []string{"URL", "Exchange has 256 bytes", "Channels is -1"} {
		require.ErrorContains(t, err, want)
	}
	require.NotContains(t, err.Error(), "secret-password")
	_, err = amqp.New(amqp.Config{URL: "amqp://127.0.0.1"})
	require.ErrorContains(t, err, "RoutingKey")
}
