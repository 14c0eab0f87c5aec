// Package watermill delivers messages through any publisher of Watermill, and so to every broker that Watermill speaks
// to:
//
//	transport, err := watermill.New(watermill.Config{Publisher: publisher})
//
// What a publisher promises when Publish returns is its own affair. For an outbox it must have the broker's
// acknowledgement: Publish must not be asynchronous, watermill-kafka needs RequiredAcks=WaitForAll, and watermill-amqp
// needs ConfirmDelivery. Where there is one, prefer the outbox's own transport for the broker, which knows its errors.
//
// It is a module of its own because it needs Watermill, which the outbox itself does not.
package watermill

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/gorm-outbox/outbox/transports/wire"
)

// The metadata of every message, beside the headers that it was enqueued with, content-type and, in binary mode, those
// of CloudEvents. Type and tenant are left out where they are empty. The UUID is the message id too.
const (
	MetadataMessageID   = "outbox-message-id"   // what consumers deduplicate on
	MetadataProviderKey = "outbox-provider-key" // for a publisher whose broker knows idempotency keys
	MetadataType        = "outbox-type"
	MetadataTenant      = "outbox-tenant"
)

// attributePrefix is what CloudEvents puts before its attributes; Watermill has no rule of its own, so this is Kafka's.
const attributePrefix = "ce_"

// DefaultConcurrency is how many calls of Publish there are at once, unless the Config says otherwise.
const DefaultConcurrency = 20

const maxConcurrency = 10000

// Config says where messages go. Only Publisher is required.
type Config struct {
	// Publisher publishes. It is the app's, which closes it after the processor has ended.
	//
	// An error of its Publish that holds a policy.Failure is taken at its word, so that a wrapper may tell permanent
	// errors apart. Every other is transient, category network, code publish.
	Publisher message.Publisher
	// Topic names Watermill's topic for a message. Nil: the message's topic.
	Topic func(d outbox.Delivery) string
	// Format is what goes on the wire. Nil: wire.Payload. The attributes of wire.CloudEvents become metadata with ce_
	// before their names.
	Format wire.Format
	// Concurrency is how many calls of Publish there may be at once, those included whose attempts have ended without
	// them. 1 to 10000; zero: 20. Give it the processor's Concurrency.
	Concurrency int
}

// Transport publishes through Watermill. It owns nothing that has to be closed.
type Transport struct {
	cfg    Config
	inside chan struct{} // one for each call of Publish
}

var _ outbox.Transport = (*Transport)(nil)

// New validates cfg and sends nothing yet. The error is outbox.ErrInvalid.
func New(cfg Config) (*Transport, error) {
	if cfg.Topic == nil {
		cfg.Topic = func(d outbox.Delivery) string { return d.Topic }
	}
	if cfg.Format == nil {
		cfg.Format = wire.Payload
	}
	if cfg.Concurrency == 0 {
		cfg.Concurrency = DefaultConcurrency
	}
	var problems []string
	if v := reflect.ValueOf(cfg.Publisher); cfg.Publisher == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		problems = append(problems, "Publisher is nil")
	}
	if cfg.Concurrency < 1 || cfg.Concurrency > maxConcurrency {
		problems = append(problems, fmt.Sprintf("Concurrency is %d, must be 1 to %d", cfg.Concurrency, maxConcurrency))
	}
	if len(problems) > 0 {
		return nil, fmt.Errorf("%w: watermill: %s", outbox.ErrInvalid, strings.Join(problems, "; "))
	}
	return &Transport{cfg: cfg, inside: make(chan struct{}, cfg.Concurrency)}, nil
}

// Send publishes the message and waits for Publish to return, or for ctx to end: many publishers do not look at the
// context that the message carries. One that goes on alone may still publish; its goroutine ends when it returns, and
// until then counts against Concurrency. Watermill has no id to give back.
func (t *Transport) Send(ctx context.Context, d outbox.Delivery) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	m, err := t.message(d)
	if err != nil {
		return "", err
	}
	m.SetContext(ctx)
	topic := t.cfg.Topic(d)
	select {
	case t.inside <- struct{}{}:
	case <-ctx.Done(): // not wrapped, or the processor would take the outcome for unknown
		return "", &policy.Failure{Category: policy.CategoryTimeout, Code: "busy"}
	}
	done := make(chan error, 1)
	go t.publish(topic, m, done)
	select {
	case err := <-done:
		return "", failure(ctx, err)
	case <-ctx.Done():
		return "", failure(ctx, ctx.Err())
	}
}

func (t *Transport) message(d outbox.Delivery) (*message.Message, error) {
	w, err := t.cfg.Format.Encode(d)
	if err != nil {
		return nil, err
	}
	// The publisher may keep the body, for longer than the delivery is ours.
	m := message.NewMessage(d.MessageID, append([]byte(nil), w.Body...))
	maps.Copy(m.Metadata, d.Headers)
	for name, value := range w.Attributes {
		m.Metadata[attributePrefix+name] = value
	}
	for name, value := range map[string]string{
		MetadataMessageID: d.MessageID, MetadataProviderKey: d.ProviderKey,
		MetadataType: d.Type, MetadataTenant: d.TenantID, "content-type": w.ContentType,
	} {
		if value != "" {
			m.Metadata[name] = value
		}
	}
	return m, nil
}

// publish reports what Publish gives. A panic or a Goexit, which nobody else would catch on this goroutine, is a failure.
func (t *Transport) publish(topic string, m *message.Message, done chan<- error) {
	var err error = &policy.Failure{Category: policy.CategoryPanic, Code: "goexit", OutcomeUnknown: true}
	defer func() {
		if v := recover(); v != nil {
			err = &policy.Failure{Category: policy.CategoryPanic, Code: fmt.Sprintf("%T", v), OutcomeUnknown: true}
		}
		<-t.inside
		done <- err
	}()
	err = t.cfg.Publisher.Publish(topic, m)
}

// failure says what an error of Publish means. It quotes none: publishers' errors name topics and more.
func failure(ctx context.Context, err error) error {
	f, said := policy.AsFailure(err)
	switch {
	case err == nil:
		return nil
	case said:
		f.Err = nil
		return &f
	case ctx.Err() != nil:
		return &policy.Failure{Category: policy.CategoryTimeout, Code: "timeout", OutcomeUnknown: true, Err: ctx.Err()}
	default:
		return &policy.Failure{Category: policy.CategoryNetwork, Code: "publish", OutcomeUnknown: true}
	}
}
