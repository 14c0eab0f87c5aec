// Package amqp delivers messages to RabbitMQ, or another broker of AMQP 0-9-1 with publisher confirms:
//
//	transport, err := amqp.New(amqp.Config{URL: "amqp://user:password@127.0.0.1", Exchange: "events"})
//	defer transport.Close()
//
// A message counts as sent when the broker has confirmed that a queue has it. RabbitMQ's queues know no key by which a
// message that is sent again would be recognised, so consumers tell a repeat by the property message-id.
//
// It is a module of its own because it needs a client of AMQP, which the outbox itself does not.
package amqp

import (
	"context"
	"crypto/tls"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/transports/wire"
	client "github.com/rabbitmq/amqp091-go"
)

// HeaderTenant is the header with the tenant of a message, if it has one. The message id and the type are the
// properties of these names.
const HeaderTenant = "outbox-tenant"

// attributePrefix is what CloudEvents puts before its attributes in AMQP.
const attributePrefix = "cloudEvents_"

// DefaultChannels is how many messages are on their way at once, unless the Config says otherwise.
const DefaultChannels = 20

const maxChannels = 1000

// maxShort is how many bytes the short strings of AMQP may have; a longer one breaks the connection.
const maxShort = 255

// Config says where messages go. URL is required, and Exchange or RoutingKey.
type Config struct {
	// URL of the broker: amqp:// or amqps://, with user, password and virtual host.
	URL string
	// TLS is the client's configuration for amqps. Nil: the system's certificate authorities.
	TLS *tls.Config
	// Exchange is where messages are published; it must exist. Empty: the default exchange, whose routing keys are the
	// names of queues.
	Exchange string
	// RoutingKey names the routing key of a message, at most 255 bytes. Nil: [RoutingKey].
	RoutingKey func(d outbox.Delivery) string
	// Format is what goes on the wire. Nil: wire.Payload. The attributes of wire.CloudEvents become headers with
	// cloudEvents_ before their names, as a broker makes of them that speaks AMQP 1.0 too.
	Format wire.Format
	// Channels is how many messages may be on their way at once; more wait for their turn. 1 to 1000; zero: 20. Give it
	// the processor's Concurrency.
	Channels int
}

// RoutingKey is the topic and the type of a message, joined with a dot, or the topic alone where there is no type.
func RoutingKey(d outbox.Delivery) string {
	if d.Type == "" {
		return d.Topic
	}
	return d.Topic + "." + d.Type
}

// Transport publishes to the broker. It owns its connection, which it opens with the first message and again whenever
// it was lost.
type Transport struct {
	cfg     Config
	closed  atomic.Bool
	dialing chan struct{} // takes one: who looks for the connection, or opens or closes it
	current *session      // of whoever is dialing; nil: none yet
}

var _ outbox.Transport = (*Transport)(nil)

// New validates cfg. It connects to nothing yet. The error is outbox.ErrInvalid.
func New(cfg Config) (*Transport, error) {
	var problems []string
	// What ParseURI says may quote the password.
	if _, err := client.ParseURI(cfg.URL); err != nil {
		problems = append(problems, "URL is not one of AMQP, such as amqp://user:password@host:5672/vhost")
	}
	if cfg.Exchange == "" && cfg.RoutingKey == nil {
		problems = append(problems, "the default exchange needs a RoutingKey that names queues")
	}
	if len(cfg.Exchange) > maxShort {
		problems = append(problems, fmt.Sprintf("Exchange has %d bytes, must be at most %d", len(cfg.Exchange), maxShort))
	}
	if cfg.Channels == 0 {
		cfg.Channels = DefaultChannels
	}
	if cfg.Channels < 1 || cfg.Channels > maxChannels {
		problems = append(problems, fmt.Sprintf("Channels is %d, must be 1 to %d", cfg.Channels, maxChannels))
	}
	if len(problems) > 0 {
		return nil, fmt.Errorf("%w: amqp: %s", outbox.ErrInvalid, strings.Join(problems, "; "))
	}
	if cfg.RoutingKey == nil {
		cfg.RoutingKey = RoutingKey
	}
	if cfg.Format == nil {
		cfg.Format = wire.Payload
	}
	return &Transport{cfg: cfg, dialing: make(chan struct{}, 1)}, nil
}

// Send publishes the message, persistent and mandatory, and waits until the broker confirms it. AMQP has no id to give
// back.
func (t *Transport) Send(ctx context.Context, d outbox.Delivery) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	j, err := t.job(ctx, d)
	if err != nil {
		return "", err
	}
	s, err := t.session(ctx)
	if err != nil {
		return "", err
	}
	return "", s.do(j)
}

// job is a message to be published once.
type job struct {
	ctx    context.Context // of the attempt
	key    string
	msg    client.Publishing
	result chan error // takes one without anybody waiting
	to     string     // the exchange
}

func (t *Transport) job(ctx context.Context, d outbox.Delivery) (*job, error) {
	w, err := t.cfg.Format.Encode(d)
	if err != nil {
		return nil, err
	}
	headers := client.Table{}
	for name, value := range d.Headers {
		headers[name] = value
	}
	for name, value := range w.Attributes {
		headers[attributePrefix+name] = value
	}
	if d.TenantID != "" {
		headers[HeaderTenant] = d.TenantID
	}
	j := &job{ctx: ctx, to: t.cfg.Exchange, key: t.cfg.RoutingKey(d), result: make(chan error, 1), msg: client.Publishing{
		MessageId: d.MessageID, Type: d.Type, Timestamp: d.EnqueuedAt, ContentType: w.ContentType,
		DeliveryMode: client.Persistent, Headers: headers, Body: w.Body,
	}}
	short := []string{j.key, d.MessageID, d.Type, w.ContentType}
	for name := range headers {
		short = append(short, name)
	}
	for _, s := range short {
		if len(s) > maxShort {
			return nil, rejected("too_long")
		}
	}
	return j, nil
}

// Close closes the connection and waits for what belongs to it. What is on its way is not waited for, so close after the
// processor's Run has returned. Afterwards Send fails. The error is always nil.
func (t *Transport) Close() error {
	t.closed.Store(true)
	t.dialing <- struct{}{}
	defer func() { <-t.dialing }()
	if t.current != nil {
		t.current.close()
	}
	return nil
}
