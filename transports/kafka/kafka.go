// Package kafka delivers messages to Kafka, acknowledged by all in-sync replicas:
//
//	client, err := kgo.NewClient(kgo.SeedBrokers("127.0.0.1:9092"))
//	transport, err := kafka.New(kafka.Config{Client: client})
//
// The client's idempotent producer keeps its own retries from doubling a record, but only within one attempt. Kafka
// knows no key by which a broker would recognise a message that is sent again, so consumers tell a repeat by the header
// outbox-message-id.
//
// It is a module of its own because it needs a client of Kafka, which the outbox itself does not.
package kafka

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/transports/wire"
	"github.com/twmb/franz-go/pkg/kgo"
)

// The headers of every record, beside those that the message was enqueued with, content-type and, in binary mode, those
// of CloudEvents. Type and tenant are left out where they are empty.
const (
	HeaderMessageID = "outbox-message-id" // what consumers deduplicate on
	HeaderType      = "outbox-type"
	HeaderTenant    = "outbox-tenant"
)

// attributePrefix is what CloudEvents puts before its attributes in Kafka.
const attributePrefix = "ce_"

// Config says where messages go. Only Client is required.
type Config struct {
	// Client produces. It is the app's, which closes it. It must wait for all in-sync replicas, be idempotent, flush by
	// itself and use no transactions, which is how kgo.NewClient makes it.
	Client *kgo.Client
	// Topic names the Kafka topic of a message. Nil: the message's topic.
	Topic func(d outbox.Delivery) string
	// Key is the record's key: records with the same key go to the same partition, in the order in which they are sent.
	// The outbox keeps no order among messages that are due together, and a retry comes later. Nil: the tenant, and
	// for a message without one no key.
	Key func(d outbox.Delivery) []byte
	// Format is what goes on the wire. Nil: wire.Payload. The attributes of wire.CloudEvents become headers with ce_
	// before their names.
	Format wire.Format
}

// Transport produces to Kafka. It owns nothing that has to be closed.
type Transport struct {
	cfg     Config
	reached atomic.Bool // a broker has answered, and nothing since says that it would not again
}

var _ outbox.Transport = (*Transport)(nil)

// New validates cfg and sends nothing yet. The error is outbox.ErrInvalid.
func New(cfg Config) (*Transport, error) {
	if cfg.Topic == nil {
		cfg.Topic = func(d outbox.Delivery) string { return d.Topic }
	}
	if cfg.Key == nil {
		cfg.Key = tenantKey
	}
	if cfg.Format == nil {
		cfg.Format = wire.Payload
	}
	if problems := problemsOf(cfg.Client); len(problems) > 0 {
		return nil, fmt.Errorf("%w: kafka: %s", outbox.ErrInvalid, strings.Join(problems, "; "))
	}
	return &Transport{cfg: cfg}, nil
}

// problemsOf are the client's settings with which an accepted record could be lost, doubled or never sent.
func problemsOf(client *kgo.Client) []string {
	if client == nil {
		return []string{"Client is nil"}
	}
	var problems []string
	if client.OptValue(kgo.RequiredAcks) != kgo.AllISRAcks() {
		problems = append(problems, "the client must require kgo.AllISRAcks")
	}
	if client.OptValue(kgo.DisableIdempotentWrite) == true {
		problems = append(problems, "the client must not disable idempotent writes")
	}
	if client.OptValue(kgo.ManualFlushing) == true {
		problems = append(problems, "the client must not flush manually")
	}
	if id, _ := client.OptValue(kgo.TransactionalID).(string); id != "" {
		problems = append(problems, "the client must not be transactional")
	}
	return problems
}

func tenantKey(d outbox.Delivery) []byte {
	if d.TenantID == "" {
		return nil
	}
	return []byte(d.TenantID)
}

// Send produces the message and waits until all in-sync replicas have it. The external id is partition:offset.
//
// A record that is on its way when ctx ends cannot be called back: the client goes on, and it may arrive later.
func (t *Transport) Send(ctx context.Context, d outbox.Delivery) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	record, err := t.record(d)
	if err != nil {
		return "", err
	}
	if err := t.reach(ctx); err != nil {
		return "", err
	}
	if err := t.produce(ctx, record); err != nil {
		if !answered(err) {
			t.reached.Store(false)
		}
		return "", failure(ctx, err)
	}
	return strconv.Itoa(int(record.Partition)) + ":" + strconv.FormatInt(record.Offset, 10), nil
}

// reach asks whether any broker is there, at first and after a failure to hear from one. A record that is produced
// without a connection stays in the client for as long as the attempt lasts, says nothing of a wrong password, and
// leaves the outcome unknown.
func (t *Transport) reach(ctx context.Context) error {
	if t.reached.Load() {
		return nil
	}
	if err := t.cfg.Client.Ping(ctx); err != nil {
		return unreached(err)
	}
	t.reached.Store(true)
	return nil
}

// produce waits no longer than ctx, while the client may be unable to give the record up.
func (t *Transport) produce(ctx context.Context, record *kgo.Record) error {
	done := make(chan error, 1)
	t.cfg.Client.Produce(ctx, record, func(_ *kgo.Record, err error) { done <- err })
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (t *Transport) record(d outbox.Delivery) (*kgo.Record, error) {
	w, err := t.cfg.Format.Encode(d)
	if err != nil {
		return nil, err
	}
	topic := t.cfg.Topic(d)
	if !topicName(topic) {
		return nil, operators("INVALID_TOPIC_EXCEPTION") // the broker's own word, without asking it
	}
	headers := map[string]string{}
	maps.Copy(headers, d.Headers)
	for name, value := range w.Attributes {
		headers[attributePrefix+name] = value
	}
	for name, value := range map[string]string{
		HeaderMessageID: d.MessageID, HeaderType: d.Type, HeaderTenant: d.TenantID, "content-type": w.ContentType,
	} {
		if value != "" {
			headers[name] = value
		}
	}
	r := &kgo.Record{Topic: topic, Key: t.cfg.Key(d), Value: w.Body}
	for _, name := range slices.Sorted(maps.Keys(headers)) { // a repeat has the same bytes
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: name, Value: []byte(headers[name])})
	}
	return r, nil
}

// maxTopic is Kafka's own limit in bytes.
const maxTopic = 249

// topicName says whether Kafka allows a topic of this name.
func topicName(name string) bool {
	legal := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r)
	}
	return name != "" && name != "." && name != ".." && len(name) <= maxTopic &&
		strings.IndexFunc(name, func(r rune) bool { return !legal(r) }) < 0
}
