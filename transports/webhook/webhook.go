// Package webhook delivers messages to HTTPS endpoints of other people, signed as Standard Webhooks
// (https://www.standardwebhooks.com): each attempt is one POST to the URL that is the message's recipient.
//
//	t, err := webhook.New(webhook.Config{Secrets: secretsOf})
//	…
//	outbox.ProcessorConfig{Transports: map[string]outbox.Transport{"webhook": t}}
//
// Delivery is at least once. The header webhook-id is the message id, the same on every attempt, and is what an endpoint
// recognises a repeat by.
//
// # What an answer means
//
//	answer                            category      class       code
//	2xx                               –             sent
//	410                               rejected      permanent   gone; OnGone is called
//	400 403 404 405 413 415 422       rejected      permanent   the status; see PermanentStatuses
//	3xx                               rejected      transient   redirect; never followed
//	429                               rate_limited  transient   the status
//	other 4xx                         rejected      transient   the status
//	408 425 5xx, any other            network       transient   the status
//	none                              network       transient   dns, connect, tls, no_answer
//	none in time                      timeout       transient   timeout, canceled
//
// 401 is transient: nothing but the signature says who sends, so that it means a secret that is being rotated or a clock
// that is off, and each attempt takes the secrets and the time anew. A Retry-After is obeyed wherever it comes with a
// transient answer, up to MaxRetryAfter; it delays that message alone.
//
// # What is refused without asking
//
// These are permanent, category rejected: bad_url (no absolute http or https URL, a user or a password in it, a host
// that is an odd spelling of a number), scheme_not_allowed, port_not_allowed, blocked_address, body_too_large,
// bad_message_id, format_error, and what the [wire.Format] refuses. Category credentials: no_secret and bad_secret are
// permanent; secrets_error, when the look-up failed, is transient.
//
// # Addresses
//
// URLs come from other people, so an endpoint could be a server inside your own network. Every address is looked at
// after the name was resolved and before it is connected to, so that neither a name that resolves to different addresses
// at different times nor an unusual spelling gets past; each attempt has a connection of its own. Refused is what the IANA registries list as special: loopback,
// private, link-local (and with it the metadata service of clouds), shared, documentation, translated and multicast
// addresses. No proxy of the environment is used.
package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/transports/wire"
)

// Defaults of [Config].
const (
	DefaultTimeout       = 30 * time.Second
	DefaultMaxRetryAfter = time.Hour
	DefaultMaxBody       = 1 << 20
	DefaultUserAgent     = "gorm-outbox"
)

// maxAnswer bounds what is read of an answer's header, and of its body, which is read only because some endpoints undo
// their work when they are cut off while they write; drainTime bounds how long that may take.
const (
	maxAnswer = 64 << 10
	drainTime = 250 * time.Millisecond
)

// Config says how endpoints are called. Only Secrets is required.
type Config struct {
	// Secrets gives the secrets of the delivery's endpoint; it is called for each attempt, from many goroutines at once.
	// Each is "whsec_" and the base64 of 24 to 64 random bytes. The request carries a signature for every one of them, so
	// that an endpoint may change from an old secret to a new one. None: the message is refused, code no_secret. An error
	// is transient, code secrets_error, unless it holds a [policy.Failure], which then decides: an app can refuse the
	// message of an endpoint that it has disabled.
	Secrets func(ctx context.Context, d outbox.Delivery) ([]string, error)

	// Format makes the body. Nil: [wire.StandardWebhooks], which needs a Type. The message's headers are not sent, since
	// they are the app's own; formats may take from them.
	Format wire.Format
	// MaxBody is the most bytes that are sent; a larger body is refused, code body_too_large. Zero: 1 MiB. The
	// specification advises to stay below 20 kB.
	MaxBody int
	// UserAgent is sent with each request. Printable ASCII; empty: "gorm-outbox".
	UserAgent string
	// Timeout is how long one attempt may take; an earlier end of its context, such as the processor's, comes first. At
	// least 1 ms; zero: 30 s.
	Timeout time.Duration

	// PermanentStatuses are the answers that end a message at once, from 300 to 599. They replace the default, which is
	// [DefaultPermanentStatuses]; empty but not nil: only 410, which always does.
	PermanentStatuses []int
	// OnGone is called when an endpoint answers 410: it asks not to be called again, so disable it. The message is
	// discarded whatever comes of the call; a panic is kept in the error's Err. Nil: nothing is called.
	OnGone func(ctx context.Context, d outbox.Delivery)
	// MaxRetryAfter is the longest wait that an endpoint can ask for. Zero: 1 h.
	MaxRetryAfter time.Duration

	// AllowHTTP allows http URLs, which anybody on the way can read and change.
	AllowHTTP bool
	// Ports are what a URL may name, 1 to 65535. Empty: 443, and with AllowHTTP 80.
	Ports []int
	// AllowedNetworks are reached although their addresses are special: an inner network, loopback in tests. An IPv4
	// network is written as one, not as IPv4-mapped IPv6.
	AllowedNetworks []netip.Prefix
	// Resolver looks names up. Nil: [net.DefaultResolver].
	Resolver *net.Resolver
	// TLS is the client's side: roots, own certificates. Nil: the system's roots.
	TLS *tls.Config
	// RoundTripper, instead of AllowedNetworks, Resolver and TLS, makes the requests: for an egress proxy that keeps
	// addresses apart by itself, since the check of addresses is then not made. Redirects are not followed with it either.
	// An outcome without an answer is then always unknown.
	RoundTripper http.RoundTripper
}

// DefaultPermanentStatuses are those by which an endpoint says that it will never take this message: 400, 403, 404, 405,
// 410, 413, 415 and 422.
func DefaultPermanentStatuses() []int { return []int{400, 403, 404, 405, 410, 413, 415, 422} }

// transport is the [outbox.Transport]. Nothing in it changes.
type transport struct {
	Config                 // with its defaults
	foreign   bool         // RoundTripper is the app's
	permanent map[int]bool // PermanentStatuses and 410
}

// New validates cfg and gives the transport. It connects to nothing. The error is [outbox.ErrInvalid], with everything
// that is wrong.
func New(cfg Config) (outbox.Transport, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	t := &transport{Config: cfg.withDefaults(), foreign: cfg.RoundTripper != nil, permanent: map[int]bool{http.StatusGone: true}}
	for _, status := range t.PermanentStatuses {
		t.permanent[status] = true
	}
	if !t.foreign {
		t.RoundTripper = newRoundTripper(cfg)
	}
	return t, nil
}

// Send makes one request at most. The external id is always empty, since endpoints give none.
func (t *transport) Send(ctx context.Context, d outbox.Delivery) (string, error) {
	limited, cancel := context.WithTimeout(ctx, t.Timeout)
	defer cancel()
	request, err := t.request(limited, d)
	if err != nil {
		return "", atEnd(ctx, limited, err)
	}
	response, err := t.do(request, cancel)
	if err != nil {
		return "", atEnd(ctx, limited, err)
	}
	return "", t.judge(ctx, response, d)
}

// request prepares the whole request, so that what is refused is refused before anything is sent.
func (t *transport) request(ctx context.Context, d outbox.Delivery) (*http.Request, error) {
	if err := t.checkURL(d.Recipient); err != nil {
		return nil, err
	}
	w, err := t.encode(d)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, d.Recipient, bytes.NewReader(w.Body))
	if err != nil {
		return nil, refused("bad_url")
	}
	request.GetBody = nil // without it net/http cannot send the body a second time: one attempt is one request
	if err := t.setHeaders(request.Header, w); err != nil {
		return nil, err
	}
	return request, t.sign(ctx, request.Header, d, w.Body)
}

// do makes the request and gives the answer, its body read and closed. cancel ends the request.
func (t *transport) do(request *http.Request, cancel func()) (*http.Response, error) {
	if err := request.Context().Err(); err != nil {
		return nil, noAnswer(err, false)
	}
	var sent atomic.Bool
	sent.Store(t.foreign) // a foreign RoundTripper need not tell
	// From the headers on an endpoint may have the request; WroteRequest would be too late, as an answer can come first.
	trace := &httptrace.ClientTrace{WroteHeaders: func() { sent.Store(true) }}
	ctx := withAttempt(httptrace.WithClientTrace(request.Context(), trace))
	response, err := t.RoundTripper.RoundTrip(request.WithContext(ctx))
	if err != nil {
		return nil, noAnswer(err, sent.Load())
	}
	drain(response, cancel)
	return response, nil
}

// drain reads and closes the body. The status has said everything, so that what fails here changes nothing.
func drain(response *http.Response, cancel func()) {
	if response.StatusCode != http.StatusSwitchingProtocols { // whose body is the connection, and ends with no context
		late := time.AfterFunc(drainTime, cancel)
		defer late.Stop()
		_, _ = io.CopyN(io.Discard, response.Body, maxAnswer)
	}
	_ = response.Body.Close()
}
