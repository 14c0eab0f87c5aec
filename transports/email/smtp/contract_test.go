package smtp_test

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"testing"

	"github.com/emersion/go-sasl"
	gosmtp "github.com/emersion/go-smtp"
	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/transports/email"
	"github.com/gorm-outbox/outbox/transports/email/smtp"
	"github.com/gorm-outbox/outbox/transports/transporttest"
	"github.com/stretchr/testify/require"
)

func TestContract(t *testing.T) {
	transporttest.Run(t, transporttest.Case{
		New: newContract,
		Delivery: outbox.Delivery{
			ID: 4711, TenantID: "tenant-7", Topic: "email", Type: "order", Recipient: "ana.private@example.test",
			Payload: json.RawMessage(`{"name":"payload-secret-77"}`), MessageID: "0190b5a4-7c1e-7d2a-9f00-0123456789ab",
			ProviderKey: "tenant-7:order-1", Attempt: 1, MaxAttempts: 8,
		},
		Secrets: []string{password},
	})
}

func newContract(t *testing.T) (outbox.Transport, *transporttest.Provider) {
	server := startServer(t, false, nil)
	server.auth = map[string]func(s *session) sasl.Server{"PLAIN": func(s *session) sasl.Server {
		return sasl.NewPlainServer(func(_, name, pass string) error { return s.login(name, pass) })
	}}
	sender := newSender(t, smtp.Config{Port: server.port, TLSConfig: server.roots, Username: username, Password: password})
	render := func(_ context.Context, d outbox.Delivery) (email.Message, error) {
		return email.Message{Subject: "Order", Text: string(d.Payload)}, nil
	}
	transport, err := email.New(email.Config{From: "orders@shop.example", Render: render, Sender: sender})
	require.NoError(t, err)
	answer := func(e error) func() {
		return func() { server.set(func() { server.onData = func(net.Conn) error { return e } }) }
	}
	quoting := "about ana.private@example.test, payload-secret-77, " + password
	return transport, &transporttest.Provider{
		Accept: answer(nil),
		Refuse: answer(&gosmtp.SMTPError{Code: 554, EnhancedCode: gosmtp.EnhancedCode{5, 7, 1}, Message: quoting}),
		Fail:   answer(&gosmtp.SMTPError{Code: 451, EnhancedCode: gosmtp.EnhancedCode{4, 3, 0}, Message: quoting}),
		Hang: func() {
			server.set(func() {
				server.onData = func(conn net.Conn) error { // the client says nothing more, so this ends with the connection
					_, _ = conn.Read(make([]byte, 1))
					return errors.New("gone")
				}
			})
		},
		Keys: func() []string {
			var keys []string
			for _, l := range server.got() {
				keys = append(keys, l.message(t).Header.Get("Message-Id"))
			}
			return keys
		},
	}
}
