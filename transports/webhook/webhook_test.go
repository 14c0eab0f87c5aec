package webhook_test

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/gorm-outbox/outbox/transports/transporttest"
	"github.com/gorm-outbox/outbox/transports/webhook"
	"github.com/gorm-outbox/outbox/transports/wire"
	"github.com/stretchr/testify/require"
)

func TestContract(t *testing.T) {
	transporttest.Run(t, transporttest.Case{
		New: func(t *testing.T) (outbox.Transport, *transporttest.Provider) {
			e := newEndpoint(t)
			transport := newTransport(t, e.config())
			port := strconv.Itoa(e.port())
			toEndpoint := outbox.TransportFunc(func(ctx context.Context, d outbox.Delivery) (string, error) {
				d.Recipient = strings.Replace(d.Recipient, ":1234", ":"+port, 1)
				return transport.Send(ctx, d)
			})
			echo := func(status int) func() {
				return func() {
					e.setAnswer(func(w http.ResponseWriter, r *http.Request) { careless(w, r, status) })
				}
			}
			return toEndpoint, &transporttest.Provider{
				Accept: echo(204), Refuse: echo(422), Fail: echo(503),
				Hang: func() { e.setAnswer(hang) },
				Keys: e.keys,
			}
		},
		Delivery: delivery("https://127.0.0.1:1234/hooks/customer-path"),
		Secrets:  []string{secret, strings.TrimPrefix(secret, "whsec_")},
		NoID:     true,
	})
}

// careless answers with what it was sent, as some endpoints do.
func careless(w http.ResponseWriter, r *http.Request, status int) {
	w.Header().Set("X-Echo", r.Header.Get("webhook-signature"))
	w.WriteHeader(status)
	if status != http.StatusNoContent {
		_, _ = w.Write([]byte(r.URL.String() + " confidential-order " + secret))
	}
}

// hang never answers: a handler that returned would, in the moment in which the caller hangs up.
func hang(_ http.ResponseWriter, r *http.Request) {
	<-r.Context().Done()
	panic(http.ErrAbortHandler)
}

func (e *endpoint) keys() (keys []string) {
	for _, r := range e.received() {
		keys = append(keys, r.header.Get("webhook-id"))
	}
	return keys
}

func TestRequest(t *testing.T) {
	e := newEndpoint(t)
	cfg := e.config()
	cfg.Secrets = fixed(secret, oldSecret)
	before := time.Now().Unix()
	require.NoError(t, send(t, newTransport(t, cfg), e.URL+"/hooks?a=1#fragment"))

	all := e.received()
	require.Len(t, all, 1)
	require.Equal(t, "/hooks?a=1", all[0].path)
	require.Equal(t, `{"type":"order.created","timestamp":"2026-03-01T12:00:00Z","data":{"order":"confidential-order"}}`, all[0].body)
	h := all[0].header
	require.Equal(t, "0195a0a0-0000-7000-8000-000000000001", h.Get("webhook-id"))
	require.Equal(t, "application/json", h.Get("Content-Type"))
	require.Equal(t, "gorm-outbox", h.Get("User-Agent"))
	require.Empty(t, h.Get("Accept-Encoding"))
	require.Empty(t, h.Get("Idempotency-Key"), "net/http would replay the request on a broken connection")
	at, err := strconv.ParseInt(h.Get("webhook-timestamp"), 10, 64)
	require.NoError(t, err)
	require.GreaterOrEqual(t, at, before)
	require.LessOrEqual(t, at, time.Now().Unix())
	signatures := strings.Split(h.Get("webhook-signature"), " ")
	require.Len(t, signatures, 2)
	require.NotEqual(t, signatures[0], signatures[1])
}

func TestCloudEventsHeaders(t *testing.T) {
	e := newEndpoint(t)
	cfg := e.config()
	var err error
	cfg.Format, err = wire.CloudEvents("/orders")
	require.NoError(t, err)
	d := delivery(e.URL)
	d.TenantID = `50% "ñ" ü`
	_, err = newTransport(t, cfg).Send(context.Background(), d)
	require.NoError(t, err)

	h := e.received()[0].header
	require.Equal(t, `{"order":"confidential-order"}`, e.received()[0].body)
	require.Equal(t, d.MessageID, h.Get("ce-id"))
	require.Equal(t, "1.0", h.Get("ce-specversion"))
	require.Equal(t, "order.created", h.Get("ce-type"))
	require.Equal(t, "50%25%20%22%C3%B1%22%20%C3%BC", h.Get("ce-tenantid"))
}

func TestSecretsAreLookedUpForEachDelivery(t *testing.T) {
	own := &policy.Failure{Category: policy.CategoryRejected, Code: "endpoint_disabled"}
	long := "whsec_" + strings.Repeat("A", 88)
	for name, c := range map[string]struct {
		secrets func(context.Context, outbox.Delivery) ([]string, error)
		want    policy.Failure
		class   policy.Class
	}{
		"none":       {fixed(), policy.Failure{Category: "credentials", Code: "no_secret"}, policy.Permanent},
		"no prefix":  {fixed(secret, strings.TrimPrefix(secret, "whsec_")), policy.Failure{Category: "credentials", Code: "bad_secret"}, policy.Permanent},
		"no base64":  {fixed("whsec_%%%%" + secret), policy.Failure{Category: "credentials", Code: "bad_secret"}, policy.Permanent},
		"23 bytes":   {fixed("whsec_" + strings.Repeat("A", 30) + "A="), policy.Failure{Category: "credentials", Code: "bad_secret"}, policy.Permanent},
		"65 bytes":   {fixed("whsec_" + strings.Repeat("A", 86) + "A="), policy.Failure{Category: "credentials", Code: "bad_secret"}, policy.Permanent},
		"66 bytes":   {fixed(long), policy.Failure{Category: "credentials", Code: "bad_secret"}, policy.Permanent},
		"own answer": {func(context.Context, outbox.Delivery) ([]string, error) { return nil, own }, *own, policy.Permanent},
		"error": {func(context.Context, outbox.Delivery) ([]string, error) { return nil, context.DeadlineExceeded },
			policy.Failure{Category: "credentials", Code: "secrets_error", Class: policy.Transient, Err: context.DeadlineExceeded}, policy.Transient},
		"panic": {func(context.Context, outbox.Delivery) ([]string, error) { panic(secret) },
			policy.Failure{Category: "credentials", Code: "secrets_error", Class: policy.Transient, Err: errors.New("webhook: Secrets panicked with a string")}, policy.Transient},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEndpoint(t)
			cfg := e.config()
			cfg.Secrets = c.secrets
			err := send(t, newTransport(t, cfg), e.URL)
			require.Equal(t, c.class, policy.Classify(err))
			got := failure(t, err)
			if c.want.Err != nil {
				require.EqualError(t, got.Err, c.want.Err.Error())
				got.Err = c.want.Err
			}
			require.Equal(t, c.want, got)
			require.Empty(t, e.received())
		})
	}
}

func TestFormat(t *testing.T) {
	large := wire.FormatFunc(func(outbox.Delivery) (wire.Wire, error) { return wire.Wire{Body: make([]byte, 101)}, nil })
	fits := wire.FormatFunc(func(outbox.Delivery) (wire.Wire, error) { return wire.Wire{Body: make([]byte, 100)}, nil })
	odd := func(w wire.Wire) wire.Format {
		return wire.FormatFunc(func(outbox.Delivery) (wire.Wire, error) { return w, nil })
	}
	for name, c := range map[string]struct {
		format wire.Format
		code   string
	}{
		"fits":           {fits, ""},
		"too large":      {large, "body_too_large"},
		"panic":          {wire.FormatFunc(func(outbox.Delivery) (wire.Wire, error) { panic(secret) }), "format_error"},
		"error":          {wire.FormatFunc(func(outbox.Delivery) (wire.Wire, error) { return wire.Wire{}, errors.New("x") }), "format_error"},
		"content type":   {odd(wire.Wire{ContentType: "a\r\nb: c"}), "format_error"},
		"attribute name": {odd(wire.Wire{Attributes: map[string]string{"a: b": "c"}}), "format_error"},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEndpoint(t)
			cfg := e.config()
			cfg.Format, cfg.MaxBody = c.format, 100
			err := send(t, newTransport(t, cfg), e.URL)
			if c.code == "" {
				require.NoError(t, err)
				require.Len(t, e.received(), 1)
				return
			}
			require.Equal(t, policy.Permanent, policy.Classify(err))
			require.Equal(t, c.code, failure(t, err).Code)
			require.Empty(t, e.received())
		})
	}
}

func TestMessageID(t *testing.T) {
	e := newEndpoint(t)
	cfg := e.config()
	cfg.Format = wire.Payload
	transport := newTransport(t, cfg)
	for _, id := range []string{"", "a.b", "a b", "a\r\nb: c", "é"} {
		d := delivery(e.URL)
		d.MessageID = id
		_, err := transport.Send(context.Background(), d)
		require.Equal(t, policy.Failure{Category: policy.CategoryRejected, Code: "bad_message_id"}, failure(t, err), id)
	}
	require.Empty(t, e.received())
}

func TestNewRefuses(t *testing.T) {
	_, err := webhook.New(webhook.Config{
		MaxBody: -1, UserAgent: "a\r\nb: c", Timeout: time.Microsecond, MaxRetryAfter: -1,
		PermanentStatuses: []int{200, 600}, Ports: []int{0, 70000}, RoundTripper: http.DefaultTransport,
		AllowedNetworks: []netip.Prefix{{}, netip.MustParsePrefix("::ffff:10.0.0.0/104")},
	})
	require.ErrorIs(t, err, outbox.ErrInvalid)
	for _, problem := range []string{
		"Secrets", "MaxBody", "UserAgent", "Timeout", "MaxRetryAfter", "one is 200", "one is 600", "one is 0", "one is 70000",
		"RoundTripper", "zero Prefix", "::ffff:10.0.0.0/104",
	} {
		require.ErrorContains(t, err, problem)
	}
	_, err = webhook.New(webhook.Config{Secrets: fixed(secret)})
	require.NoError(t, err)
}

// TestNewKeepsItsOwnSettings changes the slices that New was given.
func TestNewKeepsItsOwnSettings(t *testing.T) {
	e := newEndpoint(t)
	e.setAnswer(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(400) })
	cfg := e.config()
	cfg.AllowedNetworks = append([]netip.Prefix(nil), loopback...)
	cfg.PermanentStatuses = []int{400}
	transport := newTransport(t, cfg)
	cfg.Ports[0], cfg.AllowedNetworks[0], cfg.PermanentStatuses[0] = 1, netip.Prefix{}, 401
	require.Equal(t, policy.Permanent, policy.Classify(send(t, transport, e.URL)))
}
