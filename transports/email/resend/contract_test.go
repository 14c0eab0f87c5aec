package resend_test

import (
	"context"
	"encoding/json"
	"net/http"
	"testing"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/transports/email"
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
		Secrets: []string{apiKey},
	})
}

func newContract(t *testing.T) (outbox.Transport, *transporttest.Provider) {
	p := startProvider(t)
	transport := newTransport(t, newSender(t, p.URL))
	quoting := func(status int, name string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			calls := p.got()
			text, _ := json.Marshal(map[string]any{"name": name, "message": calls[len(calls)-1].body + r.Header.Get("Authorization")})
			w.WriteHeader(status)
			_, _ = w.Write(text)
		}
	}
	return transport, &transporttest.Provider{
		Accept: func() { p.behave(nil) },
		Refuse: func() { p.behave(quoting(422, "invalid_parameter")) },
		Fail:   func() { p.behave(quoting(500, "application_error")) },
		Hang:   func() { p.behave(hang) },
		Keys: func() []string {
			var keys []string
			for _, c := range p.got() {
				keys = append(keys, c.key)
			}
			return keys
		},
	}
}

// newTransport renders the payload as it is.
func newTransport(t testing.TB, sender email.Sender) outbox.Transport {
	t.Helper()
	render := func(_ context.Context, d outbox.Delivery) (email.Message, error) {
		return email.Message{Subject: "Order", Text: string(d.Payload)}, nil
	}
	transport, err := email.New(email.Config{From: "orders@shop.example", Render: render, Sender: sender})
	require.NoError(t, err)
	return transport
}
