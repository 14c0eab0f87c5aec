package nats_test

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/gorm-outbox/outbox/transports/nats"
	"github.com/gorm-outbox/outbox/transports/transporttest"
	"github.com/gorm-outbox/outbox/transports/wire"
	"github.com/nats-io/nats-server/v2/server"
	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	user     = "app-user"
	password = "pass-of-the-app"
)

var order = outbox.Delivery{
	ID: 7, Topic: "orders", Type: "order.created.v1", TenantID: "shop", Recipient: "ana@example.test",
	Payload: json.RawMessage(`{"note":"for Ana only"}`), Headers: map[string]string{"traceparent": "00-1-2-01"},
	MessageID: "0190b5a4-7c1e-7d2a-8b00-1f2e3d4c5b6a", ProviderKey: "shop:order-7", Attempt: 1, MaxAttempts: 8,
	EnqueuedAt: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC),
}

// startServer starts a server with JetStream on a free port. The user "limited" may publish nothing.
func startServer(t *testing.T, change ...func(*server.Options)) *server.Server {
	t.Helper()
	options := &server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), NoLog: true, NoSigs: true,
		Users: []*server.User{
			{Username: user, Password: password},
			{Username: "limited", Password: password, Permissions: &server.Permissions{Publish: &server.SubjectPermission{Allow: []string{"$JS.API.>"}}}},
		},
	}
	for _, c := range change {
		c(options)
	}
	s, err := server.NewServer(options)
	require.NoError(t, err)
	s.Start()
	require.True(t, s.ReadyForConnections(10*time.Second))
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	return s
}

func connect(t *testing.T, url string, options ...client.Option) jetstream.JetStream {
	t.Helper()
	quiet := client.ErrorHandler(func(*client.Conn, *client.Subscription, error) {})
	if len(options) == 0 {
		options = append(options, client.UserInfo(user, password))
	}
	options = append(options, quiet, client.MaxReconnects(-1), client.ReconnectWait(10*time.Millisecond))
	conn, err := client.Connect(url, options...)
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	return js
}

// stream gives a stream for the topic orders, made anew, and a way to change its limits.
func stream(t *testing.T, js jetstream.JetStream) func(change func(*jetstream.StreamConfig)) {
	t.Helper()
	cfg := jetstream.StreamConfig{
		Name: "ORDERS", Subjects: []string{"orders.>"}, Storage: jetstream.MemoryStorage, Discard: jetstream.DiscardNew,
	}
	_, err := js.CreateStream(context.Background(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = js.DeleteStream(context.Background(), cfg.Name) }) // the test may have deleted it
	return func(change func(*jetstream.StreamConfig)) {
		changed := cfg
		change(&changed)
		if _, err := js.UpdateStream(context.Background(), changed); err != nil {
			t.Errorf("update stream: %v", err)
		}
	}
}

func newTransport(t *testing.T, cfg nats.Config) *nats.Transport {
	t.Helper()
	transport, err := nats.New(cfg)
	require.NoError(t, err)
	return transport
}

func TestContract(t *testing.T) {
	s := startServer(t)
	admin := connect(t, s.ClientURL())
	// A plain subscriber sees every message that is published, the repeats that the stream drops too.
	watch, err := admin.Conn().SubscribeSync("orders.>")
	require.NoError(t, err)

	transporttest.Run(t, transporttest.Case{
		Delivery: order, Secrets: []string{user, password},
		New: func(t *testing.T) (outbox.Transport, *transporttest.Provider) {
			limit := stream(t, admin)
			proxy := transporttest.NewProxy(t, s.Addr().String())
			behave := func(hold bool, change func(*jetstream.StreamConfig)) func() {
				return func() {
					limit(change)
					if proxy.Pass(); hold {
						proxy.Hold()
					}
				}
			}
			seen := &keys{watch: watch, conn: admin.Conn()}
			seen.drain()
			seen.all = nil
			return newTransport(t, nats.Config{JetStream: connect(t, "nats://"+proxy.Addr())}), &transporttest.Provider{
				Accept: behave(false, func(*jetstream.StreamConfig) {}),
				Refuse: behave(false, func(c *jetstream.StreamConfig) { c.MaxMsgSize = 1 }),
				Fail:   behave(false, func(c *jetstream.StreamConfig) { c.MaxBytes = 1 }),
				Hang:   behave(true, func(*jetstream.StreamConfig) {}),
				Keys:   seen.drain,
			}
		},
	})
}

// keys collects the ids of what has been published.
type keys struct {
	mu    sync.Mutex
	conn  *client.Conn
	watch *client.Subscription
	all   []string
}

func (k *keys) drain() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	_ = k.conn.Flush() // what the server had for the subscriber is here afterwards
	for {
		n, _, err := k.watch.Pending()
		if err != nil || n == 0 {
			return append([]string(nil), k.all...)
		}
		if m, err := k.watch.NextMsg(time.Second); err == nil {
			k.all = append(k.all, m.Header.Get(jetstream.MsgIDHeader))
		}
	}
}

func TestRepeatIsDropped(t *testing.T) {
	js := connect(t, startServer(t).ClientURL())
	stream(t, js)
	transport := newTransport(t, nats.Config{JetStream: js})
	first, err := transport.Send(context.Background(), order)
	require.NoError(t, err)
	require.Equal(t, "ORDERS:1", first)
	again, err := transport.Send(context.Background(), order)
	require.NoError(t, err, "that the stream has it already is success")
	require.Equal(t, first, again)
}

func TestWhatIsOnTheWire(t *testing.T) {
	js := connect(t, startServer(t).ClientURL())
	stream(t, js)
	structured, err := wire.StructuredCloudEvents("https://shop.example")
	require.NoError(t, err)
	for name, c := range map[string]struct {
		format      wire.Format
		contentType string
		body        string
	}{
		"payload":    {nil, "application/json", `{"note":"for Ana only"}`},
		"envelope":   {wire.Envelope, "application/json", `{"id":"0190b5a4-7c1e-7d2a-8b00-1f2e3d4c5b6a","type":"order.created.v1","occurredAt":"2026-11-30T12:00:00Z","payload":{"note":"for Ana only"}}`},
		"structured": {structured, "application/cloudevents+json", ""},
	} {
		t.Run(name, func(t *testing.T) {
			transport := newTransport(t, nats.Config{JetStream: js, Format: c.format, Subject: func(outbox.Delivery) string { return "orders." + name }})
			d := order
			d.ProviderKey = name
			_, err := transport.Send(context.Background(), d)
			require.NoError(t, err)
			s, err := js.Stream(context.Background(), "ORDERS")
			require.NoError(t, err)
			m, err := s.GetLastMsgForSubject(context.Background(), "orders."+name)
			require.NoError(t, err)
			require.Equal(t, client.Header{
				"outbox-message-id": {order.MessageID}, "outbox-type": {order.Type}, "outbox-tenant": {"shop"},
				"Content-Type": {c.contentType}, "Nats-Msg-Id": {name}, "traceparent": {"00-1-2-01"},
			}, m.Header)
			if c.body != "" {
				require.JSONEq(t, c.body, string(m.Data))
			}
		})
	}
}

func TestBadMessagesAreRefusedForGood(t *testing.T) {
	js := connect(t, startServer(t, func(o *server.Options) { o.MaxPayload = 1000 }).ClientURL())
	stream(t, js)
	transport := newTransport(t, nats.Config{JetStream: js})
	for name, c := range map[string]struct {
		code   string
		change func(*outbox.Delivery)
	}{
		"wildcard":        {"bad_subject", func(d *outbox.Delivery) { d.Type = "*" }},
		"all":             {"bad_subject", func(d *outbox.Delivery) { d.Type = "a.>" }},
		"empty token":     {"bad_subject", func(d *outbox.Delivery) { d.Type = "a..b" }},
		"space":           {"bad_subject", func(d *outbox.Delivery) { d.Topic = "or ders" }},
		"no topic":        {"bad_subject", func(d *outbox.Delivery) { d.Topic, d.Type = "", "" }},
		"server's header": {"bad_header", func(d *outbox.Delivery) { d.Headers = map[string]string{"NATS-Rollup": "all"} }},
		"header name":     {"bad_header", func(d *outbox.Delivery) { d.Headers = map[string]string{"a: b\r\nc": "d"} }},
		"header value":    {"bad_header", func(d *outbox.Delivery) { d.Headers = map[string]string{"a": "b\r\nNats-Rollup: all"} }},
		"tenant":          {"bad_header", func(d *outbox.Delivery) { d.TenantID = "a\nb" }},
		"no key":          {"bad_message", func(d *outbox.Delivery) { d.ProviderKey = "" }},
		"no JSON":         {"", func(d *outbox.Delivery) { d.Payload = []byte("{") }},
		"too large":       {"max_payload", func(d *outbox.Delivery) { d.Payload = json.RawMessage(`"` + strings.Repeat("x", 1000) + `"`) }},
	} {
		t.Run(name, func(t *testing.T) {
			d := order
			c.change(&d)
			_, err := transport.Send(context.Background(), d)
			require.Equal(t, policy.Permanent, policy.Classify(err))
			if f, _ := policy.AsFailure(err); c.code != "" {
				require.Equal(t, c.code, f.Code)
			}
		})
	}
}

func TestNew(t *testing.T) {
	binary, err := wire.CloudEvents("/orders")
	require.NoError(t, err)
	_, err = nats.New(nats.Config{Format: binary})
	require.ErrorIs(t, err, outbox.ErrInvalid)
	require.ErrorContains(t, err, "JetStream is nil")
	require.ErrorContains(t, err, "StructuredCloudEvents")
}
