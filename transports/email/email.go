// Package email delivers messages as e-mails. It renders a message, checks what came of that, and hands it to a
// [Sender] that speaks to a provider:
//
//	render, err := email.Templates(templates) // order_confirmation.subject.txt, order_confirmation.html, …
//	sender, err := resend.New(resend.Config{APIKey: key})
//	transport, err := email.New(email.Config{From: "Shop <orders@shop.example>", Render: render, Sender: sender})
//
// Every message has one recipient, so that one refused address is one refused message. Senders are in the packages
// email/resend (the HTTP API of Resend) and email/smtp (any mail server); any function is one by [SenderFunc].
package email

import (
	"context"
	"errors"
	"fmt"
	"net/mail"
	"reflect"
	"runtime/debug"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
)

// Config says how messages become e-mails. From, Render and Sender are required.
type Config struct {
	// From is the sender's mailbox, "Shop <orders@shop.example>" or the address alone. A Message may name another.
	From string
	// Render makes the e-mail of a delivery; [Templates] gives one for a folder of templates.
	Render Render
	// Sender takes the e-mail to a provider.
	Sender Sender
}

// Render makes the e-mail of a delivery. It is called for every attempt and should give the same each time: a provider
// that knows the attempt's key refuses another content under it. An error or a panic is permanent, category template,
// code render; an error that holds a [policy.Failure] decides for itself.
type Render func(ctx context.Context, d outbox.Delivery) (Message, error)

// New gives the transport. The error is an [outbox.ErrInvalid] with everything that is wrong with cfg.
//
// What can never be sent is a permanent failure: a recipient that is no mailbox (number/malformed_address); a rendered
// message (category template) without a subject (empty_subject) or a body (empty_body), with a line break, a NUL or
// another control character in a header or an address (header_injection), a header with a bad name (header_name) or
// one that is the sender's own business (header_reserved), a malformed From or ReplyTo (from, reply_to), or text that
// is not UTF-8 (invalid_utf8); and one of more than [MaxSize] bytes (rejected/too_large).
func New(cfg Config) (outbox.Transport, error) {
	var problems []error
	addf := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	from, err := parseAddress(cfg.From)
	if err != nil {
		addf("From %q: %w", cfg.From, err)
	}
	if cfg.Render == nil {
		addf("Render is nil")
	}
	if isNil(cfg.Sender) {
		addf("Sender is nil")
	}
	if len(problems) > 0 {
		return nil, fmt.Errorf("%w: email: %w", outbox.ErrInvalid, errors.Join(problems...))
	}
	return &transport{from: from, render: cfg.Render, sender: cfg.Sender}, nil
}

// isNil also sees a nil function or pointer inside the interface, which would only show as a panic of each attempt.
func isNil(s Sender) bool {
	v := reflect.ValueOf(s)
	return s == nil || (v.Kind() == reflect.Func || v.Kind() == reflect.Pointer) && v.IsNil()
}

type transport struct {
	from   mail.Address
	render Render
	sender Sender
}

// Send renders, checks and sends.
func (t *transport) Send(ctx context.Context, d outbox.Delivery) (string, error) {
	if ctx.Err() != nil {
		return "", ended(ctx)
	}
	to, err := parseAddress(d.Recipient)
	if err != nil {
		return "", &policy.Failure{Category: policy.CategoryNumber, Code: "malformed_address", Err: err}
	}
	m, err := t.rendered(ctx, d)
	if err != nil {
		return "", err
	}
	e, err := t.compose(d, to, m)
	if err != nil {
		return "", err
	}
	return t.sender.Send(ctx, e)
}

// ended is the failure of a call whose context ended before anything was sent. It does not wrap the context's error,
// from which the processor would conclude that the outcome is unknown.
func ended(ctx context.Context) error {
	code := "timeout"
	if errors.Is(ctx.Err(), context.Canceled) {
		code = "canceled"
	}
	return &policy.Failure{Category: policy.CategoryTimeout, Code: code}
}

// rendered calls Render, whose faults are the message's: the same template fails the same way next time.
func (t *transport) rendered(ctx context.Context, d outbox.Delivery) (m Message, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = unrendered(fmt.Errorf("email: Render panicked: %v\n%s", v, debug.Stack()))
		}
	}()
	m, err = t.render(ctx, d)
	if err == nil {
		return m, nil
	}
	if _, said := policy.AsFailure(err); said {
		return m, err
	}
	if ctx.Err() != nil { // it was interrupted, and has a right to another try
		return m, ended(ctx)
	}
	return m, unrendered(err)
}

func unrendered(cause error) error {
	return &policy.Failure{Category: policy.CategoryTemplate, Code: "render", Err: cause}
}

// compose makes the e-mail of a rendered message, if it can be sent at all.
func (t *transport) compose(d outbox.Delivery, to mail.Address, m Message) (Email, error) {
	e := Email{
		From: t.from, To: to, Subject: m.Subject, HTML: m.HTML, Text: m.Text,
		TenantID: d.TenantID, MessageID: d.MessageID, ProviderKey: d.ProviderKey, Reference: d.Reference(),
		Attempt: d.Attempt, UnknownSince: d.UnknownSince,
	}
	if err := m.check(); err != nil {
		return Email{}, err
	}
	var err error
	if m.From != "" {
		if e.From, err = parseAddress(m.From); err != nil {
			return Email{}, unfit("from", err)
		}
	}
	if m.ReplyTo != "" {
		if e.ReplyTo, err = parseAddress(m.ReplyTo); err != nil {
			return Email{}, unfit("reply_to", err)
		}
	}
	if len(m.Headers) > 0 {
		e.Headers = make(map[string]string, len(m.Headers)) // the sender's own: Render may share its map between messages
		for name, value := range m.Headers {
			e.Headers[name] = value
		}
	}
	return e, nil
}
