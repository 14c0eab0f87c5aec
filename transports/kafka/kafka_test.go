package kafka_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/transports/kafka"
	"github.com/gorm-outbox/outbox/transports/transporttest"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"
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

// startCluster starts a broker that wants a password and has a topic orders.
func startCluster(t *testing.T, options ...kfake.Opt) *kfake.Cluster {
	t.Helper()
	c, err := kfake.NewCluster(append([]kfake.Opt{
		kfake.NumBrokers(1), kfake.SeedTopics(3, "orders"), kfake.EnableSASL(), kfake.Superuser("PLAIN", user, password),
	}, options...)...)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// connect gives a client whose connections all go to addr, as through a proxy.
func connect(t *testing.T, addr string, options ...kgo.Opt) *kgo.Client {
	t.Helper()
	client, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(addr), kgo.SASL(plain.Auth{User: user, Pass: password}.AsMechanism()), kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.Dialer(func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		}),
	}, options...)...)
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return client
}

func newTransport(t *testing.T, cfg kafka.Config) *kafka.Transport {
	t.Helper()
	transport, err := kafka.New(cfg)
	require.NoError(t, err)
	return transport
}

// seen collects the message ids of all records in produce requests, whatever the broker answers.
type seen struct {
	mu  sync.Mutex
	all []string
}

func (s *seen) watch(c *kfake.Cluster) {
	c.ControlKey(int16(kmsg.Produce), func(request kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, topic := range request.(*kmsg.ProduceRequest).Topics {
			for _, partition := range topic.Partitions {
				s.all = append(s.all, messageIDs(partition.Records)...)
			}
		}
		return nil, nil, false
	})
}

func (s *seen) keys() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.all...)
}

func messageIDs(raw []byte) []string {
	var batch kmsg.RecordBatch
	if err := batch.ReadFrom(raw); err != nil {
		return []string{"unreadable"}
	}
	var ids []string
	for range batch.NumRecords {
		var record kmsg.Record
		if err := record.ReadFrom(batch.Records); err != nil {
			return []string{"unreadable"}
		}
		for _, h := range record.Headers {
			if h.Key == kafka.HeaderMessageID {
				ids = append(ids, string(h.Value))
			}
		}
		_, prefix := binary.Varint(batch.Records)
		batch.Records = batch.Records[prefix+int(record.Length):]
	}
	return ids
}

func TestContract(t *testing.T) {
	transporttest.Run(t, transporttest.Case{
		Delivery: order, Secrets: []string{user, password},
		New: func(t *testing.T) (outbox.Transport, *transporttest.Provider) {
			c := startCluster(t)
			var s seen
			s.watch(c)
			proxy := transporttest.NewProxy(t, c.ListenAddrs()[0])
			transport := newTransport(t, kafka.Config{Client: connect(t, proxy.Addr())})
			fault := c.Fault()
			behave := func(faults ...kfake.Fault) {
				fault.Remove()
				fault = c.Fault(faults...)
				proxy.Pass()
			}
			answer := func(err *kerr.Error) kfake.Fault {
				return kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: err, Count: -1}
			}
			return transport, &transporttest.Provider{
				Accept: func() { behave() },
				Refuse: func() { behave(answer(kerr.PolicyViolation)) },
				Fail:   func() { behave(answer(kerr.TopicAuthorizationFailed)) },
				Hang:   func() { behave(); proxy.Hold() },
				Keys:   s.keys,
			}
		},
	})
}
