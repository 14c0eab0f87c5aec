package email_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/gorm-outbox/outbox/transports/email"
	"github.com/stretchr/testify/require"
)

// delivery is one that can be sent.
func delivery() outbox.Delivery {
	return outbox.Delivery{
		ID: 7, TenantID: "club-1", Topic: "email", Type: "welcome", Recipient: "Ana <ana@example.test>",
		Payload: json.RawMessage(`{"name":"Ana"}`), MessageID: "0190b5a4-7c1e-7d2a-9f00-0123456789ab", ProviderKey: "club-1:welcome-7",
		Attempt: 2, MaxAttempts: 8, UnknownSince: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
	}
}

// rendering gives a Render that makes the same of every delivery.
func rendering(m email.Message) email.Render {
	return func(context.Context, outbox.Delivery) (email.Message, error) { return m, nil }
}

// outgoing is a sender that keeps what it gets.
type outgoing struct{ sent []email.Email }

func (o *outgoing) Send(_ context.Context, e email.Email) (string, error) {
	o.sent = append(o.sent, e)
	return fmt.Sprint("id-", len(o.sent)), nil
}

func newTransport(t *testing.T, render email.Render) (outbox.Transport, *outgoing) {
	t.Helper()
	sender := &outgoing{}
	transport, err := email.New(email.Config{From: "Shop <orders@shop.example>", Render: render, Sender: sender})
	require.NoError(t, err)
	return transport, sender
}

func TestSend(t *testing.T) {
	m := email.Message{
		Subject: "¡Hola!", HTML: "<p>Hi</p>", Text: "Hi", ReplyTo: `"Peña, Luz" <help@shop.example>`,
		Headers: map[string]string{"X-Order": "1"},
	}
	transport, sender := newTransport(t, rendering(m))
	d := delivery()

	id, err := transport.Send(context.Background(), d)

	require.NoError(t, err)
	require.Equal(t, "id-1", id)
	got := sender.sent[0]
	require.Equal(t, `"Shop" <orders@shop.example>`, got.From.String())
	require.Equal(t, `"Ana" <ana@example.test>`, got.To.String())
	require.Equal(t, "Peña, Luz", got.ReplyTo.Name)
	require.Equal(t, "help@shop.example", got.ReplyTo.Address)
	require.Equal(t, []string{m.Subject, m.HTML, m.Text}, []string{got.Subject, got.HTML, got.Text})
	require.Equal(t, m.Headers, got.Headers)
	require.Equal(t, []string{d.TenantID, d.MessageID, d.ProviderKey, d.Reference()},
		[]string{got.TenantID, got.MessageID, got.ProviderKey, got.Reference})
	require.Equal(t, d.Attempt, got.Attempt)
	require.Equal(t, d.UnknownSince, got.UnknownSince)

	got.Headers["X-Order"] = "2"
	require.Equal(t, "1", m.Headers["X-Order"], "Render may share its map between messages")
}

func TestSendFromAnother(t *testing.T) {
	transport, sender := newTransport(t, rendering(email.Message{Subject: "s", Text: "t", From: "Club <club@club.example>"}))
	_, err := transport.Send(context.Background(), delivery())
	require.NoError(t, err)
	require.Equal(t, `"Club" <club@club.example>`, sender.sent[0].From.String())
}

func TestNewRefuses(t *testing.T) {
	ok := email.Config{From: "a@shop.example", Render: rendering(email.Message{}), Sender: &outgoing{}}
	for name, change := range map[string]func(*email.Config){
		"no From":        func(c *email.Config) { c.From = "" },
		"malformed From": func(c *email.Config) { c.From = "not an address" },
		"injected From":  func(c *email.Config) { c.From = "a@shop.example\r\nBcc: b@shop.example" },
		"no Render":      func(c *email.Config) { c.Render = nil },
		"no Sender":      func(c *email.Config) { c.Sender = nil },
		"nil SenderFunc": func(c *email.Config) { c.Sender = email.SenderFunc(nil) },
		"nil pointer":    func(c *email.Config) { c.Sender = (*outgoing)(nil) },
	} {
		cfg := ok
		change(&cfg)
		_, err := email.New(cfg)
		require.ErrorIs(t, err, outbox.ErrInvalid, name)
	}
	_, err := email.New(email.Config{})
	for _, what := range []string{"From", "Render", "Sender"} {
		require.ErrorContains(t, err, what)
	}
}

func TestSendRefusesRecipients(t *testing.T) {
	for name, recipient := range map[string]string{
		"empty": "", "no at": "ana", "no local part": "@example.test", "no domain": "ana@", "two": "ana@example.test, luz@example.test",
		"two ats": "ana@b@example.test", "spaces": "ana maria@example.test", "CRLF": "ana@example.test\r\nBcc: luz@example.test",
		"LF": "ana@example.test\nX: y", "CR": "ana@exa\rmple.test", "NUL": "ana\x00@example.test", "folded": "ana@example.test\r\n ",
		"quoted": `"ana> RCPT TO:<luz"@example.test`, "quoted space": `"a b"@example.test`, "quoted at": `"a@b"@example.test`,
		"name with line break": "=?utf-8?q?Ana=0D=0ABcc:_luz?= <ana@example.test>", "name with NUL": "=?utf-8?q?A=00?= <ana@example.test>",
		"not UTF-8": "\xff\xfe@example.test", "long": strings.Repeat("a", 300) + "@example.test", "group": "friends: ana@example.test, luz@example.test;",
		"brackets": "<ana@example.test", "escape": "\x1b[2Jana@example.test",
	} {
		t.Run(name, func(t *testing.T) {
			transport, sender := newTransport(t, rendering(email.Message{Subject: "s", Text: "t"}))
			d := delivery()
			d.Recipient = recipient
			_, err := transport.Send(context.Background(), d)
			requireFailure(t, err, policy.CategoryNumber, "malformed_address")
			require.Empty(t, sender.sent)
			if len(recipient) > 3 {
				require.NotContains(t, errors.Unwrap(err).Error(), recipient)
			}
		})
	}
}

// requireFailure checks a permanent failure.
func requireFailure(t *testing.T, err error, category policy.Category, code string) {
	t.Helper()
	require.Error(t, err)
	f, ok := policy.AsFailure(err)
	require.True(t, ok, err)
	require.Equal(t, category, f.Category, err)
	require.Equal(t, code, f.Code)
	require.Equal(t, policy.Permanent, policy.Classify(err))
	require.False(t, f.OutcomeUnknown)
}

func TestSendTakesRecipients(t *testing.T) {
	for _, recipient := range []string{
		"ana@example.test", "<ana@example.test>", "ana+tag@example.test", "o'brien@example.test", "Ana <ana@example.test>",
		`"López, Ana" <ana@example.test>`, "=?utf-8?q?Ana_L=C3=B3pez?= <ana@example.test>", "peña@example.test", "ana@localhost",
	} {
		transport, sender := newTransport(t, rendering(email.Message{Subject: "s", Text: "t"}))
		d := delivery()
		d.Recipient = recipient
		_, err := transport.Send(context.Background(), d)
		require.NoError(t, err, recipient)
		require.Len(t, sender.sent, 1)
	}
}

func TestSendRefusesMessages(t *testing.T) {
	header := func(name, value string) email.Message {
		return email.Message{Subject: "s", Text: "t", Headers: map[string]string{name: value}}
	}
	template, injection := policy.CategoryTemplate, "header_injection"
	for name, c := range map[string]struct {
		message  email.Message
		category policy.Category
		code     string
	}{
		"no subject":      {email.Message{Text: "t"}, template, "empty_subject"},
		"blank subject":   {email.Message{Subject: " ", Text: "t"}, template, "empty_subject"},
		"no body":         {email.Message{Subject: "s"}, template, "empty_body"},
		"subject CRLF":    {email.Message{Subject: "s\r\nBcc: a@example.test", Text: "t"}, template, injection},
		"subject LF":      {email.Message{Subject: "s\n", Text: "t"}, template, injection},
		"subject CR":      {email.Message{Subject: "s\rt", Text: "t"}, template, injection},
		"subject NUL":     {email.Message{Subject: "s\x00", Text: "t"}, template, injection},
		"from CRLF":       {email.Message{Subject: "s", Text: "t", From: "a@b.example\r\nX: y"}, template, injection},
		"from":            {email.Message{Subject: "s", Text: "t", From: "nobody"}, template, "from"},
		"reply-to LF":     {email.Message{Subject: "s", Text: "t", ReplyTo: "a@b.example\nX: y"}, template, injection},
		"reply-to":        {email.Message{Subject: "s", Text: "t", ReplyTo: "nobody"}, template, "reply_to"},
		"two reply-tos":   {email.Message{Subject: "s", Text: "t", ReplyTo: "a@b.example, c@d.example"}, template, "reply_to"},
		"value CRLF":      {header("X-A", "a\r\nBcc: b@example.test"), template, injection},
		"value LF":        {header("X-A", "a\nb"), template, injection},
		"value NUL":       {header("X-A", "a\x00b"), template, injection},
		"name CRLF":       {header("X-A: b\r\nBcc", "b@example.test"), template, injection},
		"name NUL":        {header("X\x00", "b"), template, injection},
		"name empty":      {header("", "b"), template, "header_name"},
		"name colon":      {header("Bcc:", "b@example.test"), template, "header_name"},
		"name space":      {header("Bcc ", "b@example.test"), template, "header_name"},
		"name not ASCII":  {header("Ñ", "b"), template, "header_name"},
		"Bcc":             {header("bCC", "b@example.test"), template, "header_reserved"},
		"To":              {header("To", "b@example.test"), template, "header_reserved"},
		"Resent-To":       {header("Resent-To", "b@example.test"), template, "header_reserved"},
		"Content-Type":    {header("content-type", "text/plain"), template, "header_reserved"},
		"not UTF-8":       {email.Message{Subject: "s", Text: "\xff"}, template, "invalid_utf8"},
		"value not UTF-8": {header("X-A", "\xff"), template, "invalid_utf8"},
		"too large":       {email.Message{Subject: "s", HTML: strings.Repeat("x", email.MaxSize+1)}, policy.CategoryRejected, "too_large"},
		"large header":    {header("X-A", strings.Repeat("x", email.MaxSize+1)), policy.CategoryRejected, "too_large"},
	} {
		t.Run(name, func(t *testing.T) {
			transport, sender := newTransport(t, rendering(c.message))
			_, err := transport.Send(context.Background(), delivery())
			requireFailure(t, err, c.category, c.code)
			require.Empty(t, sender.sent)
		})
	}
}

func TestSendWhenRenderFails(t *testing.T) {
	cause := errors.New("no such field")
	busy := &policy.Failure{Category: policy.CategoryNetwork, Code: "template_store"}
	for name, render := range map[string]email.Render{
		"error": func(context.Context, outbox.Delivery) (email.Message, error) { return email.Message{}, cause },
		"wrapped error": func(context.Context, outbox.Delivery) (email.Message, error) {
			return email.Message{}, fmt.Errorf("r: %w", cause)
		},
		"panic": func(context.Context, outbox.Delivery) (email.Message, error) { panic("secret-123") },
		"index": func(_ context.Context, d outbox.Delivery) (email.Message, error) {
			return email.Message{Text: d.Type[99:]}, nil
		},
	} {
		transport, sender := newTransport(t, render)
		_, err := transport.Send(context.Background(), delivery())
		requireFailure(t, err, policy.CategoryTemplate, "render")
		require.NotContains(t, err.Error(), "secret-123")
		require.Equal(t, strings.HasSuffix(name, "error"), errors.Is(err, cause), name)
		require.Empty(t, sender.sent)
	}
	transport, _ := newTransport(t, func(context.Context, outbox.Delivery) (email.Message, error) { return email.Message{}, busy })
	_, err := transport.Send(context.Background(), delivery())
	require.Equal(t, policy.Transient, policy.Classify(err), "a Render that knows better decides")
	require.ErrorIs(t, err, busy)
}

func TestSendWhenContextEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	transport, sender := newTransport(t, func(ctx context.Context, _ outbox.Delivery) (email.Message, error) {
		cancel()
		<-ctx.Done()
		return email.Message{}, ctx.Err()
	})
	for _, when := range []string{"during Render", "before"} {
		_, err := transport.Send(ctx, delivery())
		f, _ := policy.AsFailure(err)
		require.Equal(t, policy.CategoryTimeout, f.Category, when)
		require.False(t, f.OutcomeUnknown, "nothing was sent")
	}
	require.Empty(t, sender.sent)
}

func TestSenderErrorsPassThrough(t *testing.T) {
	refused := &policy.Failure{Category: policy.CategoryRejected, Code: "spam"}
	transport, err := email.New(email.Config{
		From: "a@shop.example", Render: rendering(email.Message{Subject: "s", Text: "t"}),
		Sender: email.SenderFunc(func(context.Context, email.Email) (string, error) { return "", refused }),
	})
	require.NoError(t, err)
	_, err = transport.Send(context.Background(), delivery())
	require.Equal(t, error(refused), err)
}
