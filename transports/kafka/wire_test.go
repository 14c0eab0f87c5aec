package kafka_test

import (
	"context"
	"testing"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/transports/kafka"
	"github.com/gorm-outbox/outbox/transports/wire"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
)

func TestWhatIsOnTheWire(t *testing.T) {
	addr := startCluster(t).ListenAddrs()[0]
	binary, err := wire.CloudEvents("https://shop.example")
	require.NoError(t, err)
	transport := newTransport(t, kafka.Config{Client: connect(t, addr), Format: binary})
	id, err := transport.Send(context.Background(), order)
	require.NoError(t, err)
	require.Regexp(t, `^[0-2]:0$`, id)

	r := consume(t, addr, 1)[0]
	require.Equal(t, "shop", string(r.Key), "the tenant is the key")
	require.JSONEq(t, `{"note":"for Ana only"}`, string(r.Value))
	headers := map[string]string{}
	for _, h := range r.Headers {
		headers[h.Key] = string(h.Value)
	}
	require.Equal(t, map[string]string{
		"outbox-message-id": order.MessageID, "outbox-type": order.Type, "outbox-tenant": "shop",
		"content-type": "application/json", "traceparent": "00-1-2-01",
		"ce_id": order.MessageID, "ce_type": order.Type, "ce_source": "https://shop.example", "ce_specversion": "1.0",
		"ce_time": "2026-11-30T12:00:00Z", "ce_tenantid": "shop",
	}, headers)
}

func TestKeyAndTopicAreTheApps(t *testing.T) {
	addr := startCluster(t).ListenAddrs()[0]
	transport := newTransport(t, kafka.Config{
		Client: connect(t, addr), Format: wire.Envelope,
		Topic: func(outbox.Delivery) string { return "orders" },
		Key:   func(d outbox.Delivery) []byte { return []byte(d.Recipient) },
	})
	for range 3 {
		d := order
		d.Topic, d.TenantID = "other", ""
		_, err := transport.Send(context.Background(), d)
		require.NoError(t, err)
	}
	records := consume(t, addr, 3)
	for _, r := range records {
		require.Equal(t, order.Recipient, string(r.Key))
		require.Equal(t, records[0].Partition, r.Partition)
		require.Equal(t, records[0].Headers, r.Headers, "a repeat has the same bytes")
		require.Equal(t, records[0].Value, r.Value)
	}
}

// consume reads n records of the topic orders.
func consume(t *testing.T, addr string, n int) []*kgo.Record {
	t.Helper()
	client := connect(t, addr, kgo.ConsumeTopics("orders"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	var records []*kgo.Record
	for len(records) < n {
		fetched := client.PollFetches(context.Background())
		require.NoError(t, fetched.Err())
		records = append(records, fetched.Records()...)
	}
	return records
}
