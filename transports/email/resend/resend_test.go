package resend_test

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"net/mail"
	"strings"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/gorm-outbox/outbox/transports/email/resend"
	"github.com/stretchr/testify/require"
)

func TestSend(t *testing.T) {
	p := startProvider(t)
	e := message()
	e.ReplyTo = mail.Address{Name: "Help", Address: "help@shop.example"}
	e.Headers = map[string]string{"X-B": "2", "X-A": "1"}

	id, err := newSender(t, p.URL+"/").Send(context.Background(), e)

	require.NoError(t, err)
	require.Equal(t, "mail-tenant:key-1", id)
	require.Len(t, p.got(), 1)
	got := p.got()[0]
	require.Equal(t, "/emails", got.path)
	require.Equal(t, "Bearer "+apiKey, got.authorization)
	require.Equal(t, "tenant:key-1", got.key)
	require.Equal(t, "application/json", got.header.Get("Content-Type"))
	require.JSONEq(t, `{
		"from": "\"Peña \\\"Shop\\\"\" <orders@shop.example>", "to": "ana@example.test", "reply_to": "\"Help\" <help@shop.example>",
		"subject": "Your order", "html": "<p>Thank you & bye</p>", "text": "Thank you.", "headers": {"X-A": "1", "X-B": "2"},
		"tags": [{"name": "outbox", "value": "7-0190b5a4-7c1e-7d2a-9f00-0123456789ab"}]
	}`, got.body)
	from, err := mail.ParseAddress(jsonField(t, got.body, "from"))
	require.NoError(t, err)
	require.Equal(t, e.From, *from)
}

func jsonField(t *testing.T, body, name string) string {
	t.Helper()
	var fields map[string]any
	require.NoError(t, json.Unmarshal([]byte(body), &fields))
	return fields[name].(string)
}

func TestSendLeavesOutWhatThereIsNot(t *testing.T) {
	p := startProvider(t)
	e := message()
	e.From.Name, e.HTML, e.Reference = "", "", "not fit for a tag!"
	_, err := newSender(t, p.URL).Send(context.Background(), e)
	require.NoError(t, err)
	require.JSONEq(t, `{"from": "orders@shop.example", "to": "ana@example.test", "subject": "Your order", "text": "Thank you."}`, p.got()[0].body)
}

func TestSendIsTheSameOnEveryAttempt(t *testing.T) {
	p := startProvider(t)
	e := message()
	e.Headers = map[string]string{}
	for _, name := range strings.Split("X-A X-B X-C X-D X-E X-F X-G X-H", " ") {
		e.Headers[name] = name
	}
	for range 10 {
		e.Attempt++
		id, err := newSender(t, p.URL).Send(context.Background(), e)
		require.NoError(t, err, "another body under the same key would be refused")
		require.Equal(t, "mail-tenant:key-1", id)
	}
	require.Equal(t, 1, p.sent())
}

func TestAcceptedWithoutAReadableID(t *testing.T) {
	p := startProvider(t)
	for name, answer := range map[string]http.HandlerFunc{
		"empty": func(http.ResponseWriter, *http.Request) {}, "accepted": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(202) },
		"no JSON":     func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>ok")) },
		"other shape": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"id":17}`)) },
		"list":        func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`[{"id":"x"}]`)) },
		"null":        func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`null`)) },
		"cut short": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = w.Write([]byte(`{"i`))
		},
		"a name": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"name":"application_error"}`)) },
		"too long": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"id":"` + strings.Repeat("x", 1<<20)))
		},
	} {
		p.behave(answer)
		id, err := newSender(t, p.URL).Send(context.Background(), message())
		require.NoError(t, err, name)
		require.Empty(t, id, name)
	}
}

func TestKeyWindow(t *testing.T) {
	p := startProvider(t)
	sender := newSender(t, p.URL)
	for age, repeated := range map[time.Duration]bool{
		-time.Minute: true, time.Hour: true, 22*time.Hour + 59*time.Minute: true, resend.KeyWindow + time.Second: false, 72 * time.Hour: false,
	} {
		e, before := message(), len(p.got())
		e.UnknownSince = time.Now().Add(-age)
		_, err := sender.Send(context.Background(), e)
		if repeated {
			require.NoError(t, err, age)
			continue
		}
		requireFailure(t, err, policy.Permanent, policy.Failure{
			Category: policy.CategoryIdempotencyConflict, Code: "key_window_passed", OutcomeUnknown: true,
		})
		require.Len(t, p.got(), before)
	}
}

// requireFailure compares what decides about a message.
func requireFailure(t testing.TB, err error, class policy.Class, want policy.Failure) {
	t.Helper()
	require.Error(t, err)
	f, ok := policy.AsFailure(err)
	require.True(t, ok, err)
	require.Equal(t, class, policy.Classify(err), err)
	require.Equal(t, want.Category, f.Category, err)
	require.Equal(t, want.Code, f.Code)
	require.Equal(t, want.OutcomeUnknown, f.OutcomeUnknown, err)
	require.Equal(t, want.RetryAfter, f.RetryAfter, err)
	require.Nil(t, f.Err)
}

func TestSendRefusesKeys(t *testing.T) {
	p := startProvider(t)
	for _, key := range []string{"", strings.Repeat("k", 257), "a b", "a\r\nX-Injected: b", "ñ"} {
		e := message()
		e.ProviderKey = key
		_, err := newSender(t, p.URL).Send(context.Background(), e)
		requireFailure(t, err, policy.Permanent, policy.Failure{Category: policy.CategoryRejected, Code: "invalid_idempotency_key"})
	}
	e := message()
	e.ProviderKey = strings.Repeat("k", 256)
	_, err := newSender(t, p.URL).Send(context.Background(), e)
	require.NoError(t, err)
	require.Len(t, p.got(), 1)
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	elsewhere := startProvider(t)
	for _, status := range []int{301, 302, 303, 307, 308} {
		p := startProvider(t)
		p.behave(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, elsewhere.URL, status) })
		_, err := newSender(t, p.URL).Send(context.Background(), message())
		f, _ := policy.AsFailure(err)
		require.Equal(t, policy.CategoryRejected, f.Category)
		require.Equal(t, policy.Transient, policy.Classify(err))
	}
	require.Empty(t, elsewhere.got())
}

func TestNewLeavesTheClientAlone(t *testing.T) {
	client := &http.Client{}
	_, err := resend.New(resend.Config{APIKey: apiKey, Client: client})
	require.NoError(t, err)
	require.Nil(t, client.CheckRedirect)
}

func TestNewRefuses(t *testing.T) {
	for name, cfg := range map[string]resend.Config{
		"nothing": {}, "key with a line break": {APIKey: apiKey + "\n"}, "key with a space": {APIKey: "Bearer " + apiKey},
		"relative":  {APIKey: apiKey, BaseURL: "api.resend.com"},
		"scheme":    {APIKey: apiKey, BaseURL: "ftp://api.resend.com"},
		"clear":     {APIKey: apiKey, BaseURL: "http://api.resend.com"},
		"user":      {APIKey: apiKey, BaseURL: "https://user:" + apiKey + "@api.resend.com"},
		"query":     {APIKey: apiKey, BaseURL: "https://api.resend.com?a=b"},
		"malformed": {APIKey: apiKey, BaseURL: "https://[::1"},
	} {
		_, err := resend.New(cfg)
		require.ErrorIs(t, err, outbox.ErrInvalid, name)
		require.NotContains(t, err.Error(), apiKey, name)
	}
	_, err := resend.New(resend.Config{BaseURL: "nowhere"})
	require.ErrorContains(t, err, "APIKey")
	require.ErrorContains(t, err, "BaseURL")
	for _, url := range []string{"", "https://eu.resend.example/v1", "http://127.0.0.1:8080", "http://[::1]:8080/x", "http://localhost:1"} {
		_, err := resend.New(resend.Config{APIKey: apiKey, BaseURL: url})
		require.NoError(t, err, url)
	}
}

func TestNoAnswer(t *testing.T) {
	briefly := func() context.Context {
		ctx, cancel := context.WithTimeout(context.Background(), 150*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	p := startProvider(t)
	unknown := policy.Failure{Category: policy.CategoryTimeout, Code: "timeout", OutcomeUnknown: true}

	p.behave(hang)
	_, err := newSender(t, p.URL).Send(briefly(), message())
	requireFailure(t, err, policy.Transient, unknown)

	p.behave(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		hang(w, r)
	})
	_, err = newSender(t, p.URL).Send(briefly(), message())
	requireFailure(t, err, policy.Transient, unknown)

	p.behave(func(w http.ResponseWriter, _ *http.Request) { panic(http.ErrAbortHandler) })
	_, err = newSender(t, p.URL).Send(context.Background(), message())
	requireFailure(t, err, policy.Transient, policy.Failure{Category: policy.CategoryNetwork, Code: "connection_lost", OutcomeUnknown: true})

	ctx, cancel := context.WithCancel(context.Background())
	p.behave(func(w http.ResponseWriter, r *http.Request) { cancel(); hang(w, r) })
	_, err = newSender(t, p.URL).Send(ctx, message())
	requireFailure(t, err, policy.Transient, policy.Failure{Category: policy.CategoryTimeout, Code: "canceled", OutcomeUnknown: true})

	client := &http.Client{Transport: &http.Transport{}, Timeout: 50 * time.Millisecond}
	t.Cleanup(client.CloseIdleConnections)
	impatient, err := resend.New(resend.Config{APIKey: apiKey, BaseURL: p.URL, Client: client})
	require.NoError(t, err)
	p.behave(hang)
	_, err = impatient.Send(context.Background(), message())
	requireFailure(t, err, policy.Transient, unknown)
}

// What never had a connection was not sent, and need not count as unknown.
func TestNoConnection(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	_, err = newSender(t, "http://"+listener.Addr().String()).Send(context.Background(), message())
	requireFailure(t, err, policy.Transient, policy.Failure{Category: policy.CategoryNetwork, Code: "connect"})

	untrusted := httptest.NewTLSServer(http.NotFoundHandler())
	untrusted.Config.ErrorLog = nil
	t.Cleanup(untrusted.Close)
	_, err = newSender(t, untrusted.URL).Send(context.Background(), message())
	requireFailure(t, err, policy.Transient, policy.Failure{Category: policy.CategoryNetwork, Code: "connect"})

	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}}
	sender, err := resend.New(resend.Config{APIKey: apiKey, Client: client})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err = sender.Send(ctx, message())
	requireFailure(t, err, policy.Transient, policy.Failure{Category: policy.CategoryTimeout, Code: "timeout"})
}
