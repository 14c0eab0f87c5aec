package amqp_test

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/gorm-outbox/outbox/transports/amqp"
	"github.com/gorm-outbox/outbox/transports/transporttest"
	"github.com/stretchr/testify/require"
)

// failed sends and gives the failure.
func failed(ctx context.Context, t *testing.T, transport *amqp.Transport, d outbox.Delivery) policy.Failure {
	t.Helper()
	_, err := transport.Send(ctx, d)
	f, ok := policy.AsFailure(err)
	require.True(t, ok, "%v", err)
	return f
}

func TestBrokersAnswers(t *testing.T) {
	b := theBroker(t)
	ch := b.exchange(t, "answers")
	require.NoError(t, ch.ExchangeDeclare("unbound", "topic", false, true, false, false, nil))
	defer ch.ExchangeDelete("unbound", false, false) //nolint:errcheck // the node is thrown away
	b.ctl(t, "add_user", "limited", "limited")
	b.ctl(t, "set_permissions", "limited", "", "", "")
	limited := "amqp://limited:limited@" + b.addr() + "/"

	credentials := policy.Failure{Category: policy.CategoryCredentials, Code: "403", Class: policy.Transient, RetryAfter: time.Minute}
	for name, c := range map[string]struct {
		cfg  amqp.Config
		want policy.Failure
	}{
		"no such exchange": {amqp.Config{Exchange: "nowhere"}, policy.Failure{Category: policy.CategoryNetwork, Code: "404", RetryAfter: time.Minute}},
		"unroutable":       {amqp.Config{Exchange: "unbound"}, policy.Failure{Category: policy.CategoryNetwork, Code: "312", RetryAfter: time.Minute}},
		"no permission":    {amqp.Config{Exchange: "answers", URL: limited}, credentials},
		"wrong password":   {amqp.Config{Exchange: "answers", URL: "amqp://limited:wrong@" + b.addr() + "/"}, credentials},
		"no virtual host":  {amqp.Config{Exchange: "answers", URL: limited + "nowhere"}, policy.Failure{Category: policy.CategoryCredentials, Code: "530", Class: policy.Transient, RetryAfter: time.Minute}},
		"key too long": {
			amqp.Config{Exchange: "answers", RoutingKey: func(outbox.Delivery) string { return strings.Repeat("x", 256) }},
			policy.Failure{Category: policy.CategoryRejected, Code: "too_long"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if c.cfg.URL == "" {
				c.cfg.URL = b.url(b.addr())
			}
			transport := newTransport(t, c.cfg)
			for range 2 { // what a channel has been closed for does not spoil the next
				require.Equal(t, c.want, failed(context.Background(), t, transport, order))
			}
		})
	}
}

func TestTooLarge(t *testing.T) {
	b := theBroker(t)
	b.exchange(t, "large")
	transport := newTransport(t, amqp.Config{URL: b.url(b.addr()), Exchange: "large"})
	d := order
	d.Payload = []byte(`"` + strings.Repeat("x", maxMessage) + `"`)
	require.Equal(t, policy.Failure{Category: policy.CategoryRejected, Code: "406"}, failed(context.Background(), t, transport, d))
	_, err := transport.Send(context.Background(), order)
	require.NoError(t, err)
}

func TestOutage(t *testing.T) {
	b := theBroker(t)
	b.exchange(t, "outage")
	transport := newTransport(t, amqp.Config{URL: b.url(b.addr()), Exchange: "outage"})
	_, err := transport.Send(context.Background(), order)
	require.NoError(t, err)

	b.kill()
	for range 3 { // the first may still find the connection
		f := failed(context.Background(), t, transport, order)
		require.Equal(t, policy.CategoryNetwork, f.Category)
	}
	require.Equal(t, policy.Failure{Category: policy.CategoryNetwork, Code: "no_connection"}, failed(context.Background(), t, transport, order))

	require.NoError(t, b.start())
	_, err = transport.Send(context.Background(), order)
	require.NoError(t, err, "the next attempt reconnects")
}

func TestConnectionLostInFlight(t *testing.T) {
	b := theBroker(t)
	ch := b.exchange(t, "flight")
	proxy := transporttest.NewProxy(t, b.addr())
	transport := newTransport(t, amqp.Config{URL: b.url(proxy.Addr()), Exchange: "flight", Channels: 1})
	_, err := transport.Send(context.Background(), order)
	require.NoError(t, err)

	proxy.Hold()
	lost := make(chan error, 1)
	go func() { _, err := transport.Send(context.Background(), order); lost <- err }()
	seen := &keys{channel: ch}
	require.Eventually(t, func() bool { return len(seen.get("flight")) == 2 }, 10*time.Second, 5*time.Millisecond)
	proxy.Cut()
	f, _ := policy.AsFailure(<-lost)
	require.Equal(t, policy.Failure{Category: policy.CategoryNetwork, Code: "disconnected", OutcomeUnknown: true}, f)

	proxy.Pass()
	_, err = transport.Send(context.Background(), order)
	require.NoError(t, err)
}

// TestLateReturn is of a message whose attempt has ended: it says nothing of the next on the same channel.
func TestLateReturn(t *testing.T) {
	b := theBroker(t)
	b.exchange(t, "late")
	proxy := transporttest.NewProxy(t, b.addr())
	queue := "late"
	transport := newTransport(t, amqp.Config{URL: b.url(proxy.Addr()), RoutingKey: func(outbox.Delivery) string { return queue }, Channels: 1})
	_, err := transport.Send(context.Background(), order)
	require.NoError(t, err)

	proxy.Hold()
	queue = "nowhere"
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	require.Equal(t, "timeout", failed(ctx, t, transport, order).Code)
	proxy.Pass()
	queue = "late"
	_, err = transport.Send(context.Background(), order)
	require.NoError(t, err)
}

func TestBlockedBrokerIsNotWaitedFor(t *testing.T) {
	b := theBroker(t)
	b.exchange(t, "blocked")
	transport := newTransport(t, amqp.Config{URL: b.url(b.addr()), Exchange: "blocked"})
	_, err := transport.Send(context.Background(), order)
	require.NoError(t, err)
	b.ctl(t, "set_vm_memory_high_watermark", "0.0000001")
	t.Cleanup(func() { b.ctl(t, "set_vm_memory_high_watermark", "0.4") })
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := transport.Send(ctx, order)
		f, _ := policy.AsFailure(err)
		return f.Code == "blocked" && !f.OutcomeUnknown
	}, 20*time.Second, 50*time.Millisecond)
}

// TestSilentServer is one that takes the connection and never greets.
func TestSilentServer(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close() //nolint:errcheck // nothing was written
	transport := newTransport(t, amqp.Config{URL: "amqp://" + silent.Addr().String(), Exchange: "x"})
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	began := time.Now()
	f := failed(ctx, t, transport, order)
	require.Equal(t, policy.Failure{Category: policy.CategoryTimeout, Code: "no_connection"}, f)
	require.Less(t, time.Since(began), 2*time.Second)
}

func TestClosed(t *testing.T) {
	b := theBroker(t)
	b.exchange(t, "closed")
	transport := newTransport(t, amqp.Config{URL: b.url(b.addr()), Exchange: "closed"})
	_, err := transport.Send(context.Background(), order)
	require.NoError(t, err)
	require.NoError(t, transport.Close())
	require.Equal(t, policy.Failure{Category: policy.CategoryNetwork, Code: "closed"}, failed(context.Background(), t, transport, order))
}
