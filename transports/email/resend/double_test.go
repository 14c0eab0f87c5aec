package resend_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/mail"
	"sync"
	"testing"

	"github.com/gorm-outbox/outbox/transports/email"
	"github.com/gorm-outbox/outbox/transports/email/resend"
	"github.com/stretchr/testify/require"
)

const apiKey = "re_Secret4711"

// call is one request as the double got it.
type call struct {
	key, path, authorization string
	header                   http.Header
	body                     string
}

// provider is Resend's double: it honours keys as Resend does, unless a test answers in its place.
type provider struct {
	*httptest.Server
	mu     sync.Mutex
	calls  []call
	bodies map[string]string // by key, of the mails that were accepted
	answer http.HandlerFunc  // nil: as Resend would
}

func startProvider(t testing.TB) *provider {
	t.Helper()
	p := &provider{bodies: map[string]string{}}
	p.Server = httptest.NewServer(http.HandlerFunc(p.serve))
	t.Cleanup(p.Close)
	return p
}

func (p *provider) serve(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	c := call{r.Header.Get("Idempotency-Key"), r.URL.Path, r.Header.Get("Authorization"), r.Header, string(body)}
	p.mu.Lock()
	p.calls = append(p.calls, c)
	answer := p.answer
	p.mu.Unlock()
	if answer != nil {
		answer(w, r)
		return
	}
	p.accept(w, c)
}

func (p *provider) accept(w http.ResponseWriter, c call) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if before, known := p.bodies[c.key]; known && before != c.body {
		refuse(http.StatusConflict, "invalid_idempotent_request")(w, nil)
		return
	}
	p.bodies[c.key] = c.body
	_, _ = fmt.Fprintf(w, `{"id":"mail-%s"}`, c.key)
}

// behave has the double answer by f from now on; nil: as Resend would.
func (p *provider) behave(f http.HandlerFunc) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answer = f
}

func (p *provider) got() []call {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]call(nil), p.calls...)
}

// sent is how many mails were accepted.
func (p *provider) sent() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.bodies)
}

// refuse answers as Resend does when it does not accept; the message quotes what it should not.
func refuse(status int, name string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		body, _ := json.Marshal(map[string]any{"statusCode": status, "name": name, "message": "no mail to ana@example.test with " + apiKey})
		w.WriteHeader(status)
		_, _ = w.Write(body)
	}
}

// hang takes the request and does not answer.
func hang(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

func newSender(t testing.TB, baseURL string) email.Sender {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(client.CloseIdleConnections)
	sender, err := resend.New(resend.Config{APIKey: apiKey, BaseURL: baseURL, Client: client})
	require.NoError(t, err)
	return sender
}

func message() email.Email {
	return email.Email{
		From: mail.Address{Name: `Peña "Shop"`, Address: "orders@shop.example"}, To: mail.Address{Address: "ana@example.test"},
		Subject: "Your order", HTML: "<p>Thank you & bye</p>", Text: "Thank you.", ProviderKey: "tenant:key-1",
		MessageID: "0190b5a4-7c1e-7d2a-9f00-0123456789ab", Reference: "7-0190b5a4-7c1e-7d2a-9f00-0123456789ab", Attempt: 1,
	}
}
