// Package nats delivers messages to streams of NATS JetStream, acknowledged by the server:
//
//	js, err := jetstream.New(conn)
//	transport, err := nats.New(nats.Config{JetStream: js})
//
// The provider key travels as Nats-Msg-Id, by which the server drops a repeat that comes within the stream's Duplicates
// window. It is two minutes unless the stream says otherwise; make it longer than the message's attempts may take.
// Beyond the window consumers tell a repeat by the header outbox-message-id.
//
// It is a module of its own because it needs the client of NATS, which the outbox itself does not.
package nats

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/gorm-outbox/outbox/transports/wire"
	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// The headers of every message, beside those that it was enqueued with, Content-Type and Nats-Msg-Id. Type and tenant
// are left out where they are empty.
const (
	HeaderMessageID = "outbox-message-id" // what consumers deduplicate on
	HeaderType      = "outbox-type"
	HeaderTenant    = "outbox-tenant"
)

// Config says where messages go. Only JetStream is required.
type Config struct {
	// JetStream publishes. Its connection is the app's, which opens it, lets it reconnect (MaxReconnects(-1) is wise) and
	// closes it.
	JetStream jetstream.JetStream
	// Subject names the subject of a message; a stream has to listen on it. Nil: [Subject]. One that cannot be published
	// to is refused for good, code bad_subject.
	Subject func(d outbox.Delivery) string
	// Format is what goes on the wire. Nil: wire.Payload. CloudEvents must be wire.StructuredCloudEvents, since NATS
	// defines no binary mode.
	Format wire.Format
}

// Subject is the topic and the type of a message, joined with a dot, or the topic alone where there is no type.
func Subject(d outbox.Delivery) string {
	if d.Type == "" {
		return d.Topic
	}
	return d.Topic + "." + d.Type
}

// Transport publishes to JetStream. It owns nothing that has to be closed.
type Transport struct{ cfg Config }

var _ outbox.Transport = (*Transport)(nil)

// New validates cfg and sends nothing yet. The error is outbox.ErrInvalid.
func New(cfg Config) (*Transport, error) {
	if cfg.Subject == nil {
		cfg.Subject = Subject
	}
	if cfg.Format == nil {
		cfg.Format = wire.Payload
	}
	var problems []string
	if cfg.JetStream == nil {
		problems = append(problems, "JetStream is nil")
	}
	sample := outbox.Delivery{MessageID: "id", Type: "type", Payload: []byte("null")}
	if w, err := cfg.Format.Encode(sample); err == nil && len(w.Attributes) > 0 {
		problems = append(problems, "Format is CloudEvents in binary mode, which NATS has not: use wire.StructuredCloudEvents")
	}
	if len(problems) > 0 {
		return nil, fmt.Errorf("%w: nats: %s", outbox.ErrInvalid, strings.Join(problems, "; "))
	}
	return &Transport{cfg: cfg}, nil
}

// Send publishes the message and waits until its stream has stored it, or tells that it has it already. The external id
// is stream:sequence.
func (t *Transport) Send(ctx context.Context, d outbox.Delivery) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	m, err := t.message(d)
	if err != nil {
		return "", err
	}
	// What is published while there is no connection waits in the client, and would be sent after the attempt has ended.
	if conn := t.cfg.JetStream.Conn(); conn.Status() != client.CONNECTED {
		return "", offline(conn)
	}
	ack, err := t.cfg.JetStream.PublishMsg(ctx, m)
	if err != nil {
		return "", t.failure(ctx, m.Subject, err)
	}
	return ack.Stream + ":" + strconv.FormatUint(ack.Sequence, 10), nil
}

func (t *Transport) message(d outbox.Delivery) (*client.Msg, error) {
	w, err := t.cfg.Format.Encode(d)
	if err != nil {
		return nil, err
	}
	subject := t.cfg.Subject(d)
	if !publishable(subject) {
		return nil, rejected("bad_subject")
	}
	m := &client.Msg{Subject: subject, Data: w.Body, Header: client.Header{}}
	for name, value := range d.Headers {
		// The server obeys headers of its own, such as Nats-Rollup, which deletes what the stream has.
		if strings.HasPrefix(strings.ToLower(name), "nats-") || !headerName(name) {
			return nil, rejected("bad_header")
		}
		m.Header[name] = []string{value}
	}
	set := map[string]string{
		HeaderMessageID: d.MessageID, HeaderType: d.Type, HeaderTenant: d.TenantID,
		"Content-Type": w.ContentType, jetstream.MsgIDHeader: d.ProviderKey,
	}
	for name, value := range set {
		if value != "" {
			m.Header[name] = []string{value}
		}
	}
	for _, values := range m.Header {
		if strings.ContainsAny(values[0], "\r\n\x00") {
			return nil, rejected("bad_header")
		}
	}
	if d.ProviderKey == "" || len(w.Attributes) > 0 {
		return nil, rejected("bad_message")
	}
	return m, nil
}

// publishable says whether a subject names one place: no empty token, no wildcard, no white space.
func publishable(subject string) bool {
	for _, token := range strings.Split(subject, ".") {
		if token == "" || token == "*" || token == ">" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
			return false
		}
	}
	return true
}

// headerName says whether a name can stand before the colon of a header.
func headerName(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' || r == ':' })
}

func rejected(code string) error {
	return &policy.Failure{Category: policy.CategoryRejected, Code: code}
}
