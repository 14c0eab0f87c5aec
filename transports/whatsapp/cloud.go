package whatsapp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gorm-outbox/outbox/policy"
)

// Where the API is. Both speak the same protocol.
const (
	KapsoURL = "https://api.kapso.ai/meta/whatsapp/v24.0" // takes AuthAPIKey
	MetaURL  = "https://graph.facebook.com/v24.0"         // takes AuthBearer
)

// Auth is how a token is shown to the provider.
type Auth string

// The ways to show a token.
const (
	AuthAPIKey Auth = "api_key" // header X-API-Key: Kapso
	AuthBearer Auth = "bearer"  // header Authorization: Meta
)

// CloudConfig says where the Cloud API is. Its zero value is Kapso.
type CloudConfig struct {
	// BaseURL is the API's address with its version. https, or http on loopback. Empty: KapsoURL.
	BaseURL string
	// Auth is how tokens are shown. Empty: AuthAPIKey. Meta takes AuthBearer only, and Cloud refuses another for its
	// address.
	Auth Auth
	// Client makes the requests; its CheckRedirect is not asked, since no redirect is followed. Nil: one of Cloud's own,
	// which gives up after 60 s where the context does not earlier.
	Client *http.Client
}

// Cloud gives a [Sender] for the WhatsApp Cloud API, as Kapso and Meta have it. It makes one request for each message.
// The error is [outbox.ErrInvalid], with everything that is wrong.
func Cloud(cfg CloudConfig) (Sender, error) {
	if cfg.BaseURL == "" {
		cfg.BaseURL = KapsoURL
	}
	if cfg.Auth == "" {
		cfg.Auth = AuthAPIKey
	}
	base, problems := checkBase(cfg.BaseURL)
	switch {
	case cfg.Auth != AuthAPIKey && cfg.Auth != AuthBearer:
		problems = append(problems, "Auth must be AuthAPIKey or AuthBearer")
	case base != nil && base.Hostname() == "graph.facebook.com" && cfg.Auth != AuthBearer:
		problems = append(problems, "Auth must be AuthBearer for Meta")
	}
	if err := invalid(problems); err != nil {
		return nil, err
	}
	client := &http.Client{Transport: newTransport(), Timeout: time.Minute}
	if cfg.Client != nil {
		own := *cfg.Client
		client = &own
	}
	// A POST may arrive behind a redirect as an empty GET, whose 200 would count as sent; and the token is for this address.
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return cloud{base: strings.TrimRight(cfg.BaseURL, "/"), auth: cfg.Auth, client: client}, nil
}

// checkBase keeps tokens from going over the network in the clear.
func checkBase(text string) (base *url.URL, problems []string) {
	base, err := url.Parse(text)
	if err != nil || base.Hostname() == "" || base.User != nil || base.RawQuery != "" || base.Fragment != "" {
		return nil, []string{"BaseURL must be an absolute URL without user, query and fragment"}
	}
	host := base.Hostname()
	local := host == "localhost" || net.ParseIP(host).IsLoopback()
	if base.Scheme != "https" && !(base.Scheme == "http" && local) {
		problems = append(problems, fmt.Sprintf("BaseURL begins with %q, must be https, or http on loopback", base.Scheme))
	}
	return base, problems
}

// newTransport keeps idle connections for less time than servers do: to send a request just as the other side hangs up
// is to lose the answer, and what became of the message is then unknown.
func newTransport() *http.Transport {
	return &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		ForceAttemptHTTP2:      true,
		TLSHandshakeTimeout:    10 * time.Second,
		IdleConnTimeout:        30 * time.Second,
		MaxIdleConns:           100,
		MaxIdleConnsPerHost:    20,
		MaxResponseHeaderBytes: maxAnswer,
	}
}

type cloud struct {
	base   string
	auth   Auth
	client *http.Client
}

// maxAnswer is how much of an answer is read.
const maxAnswer = 64 << 10

// Send makes one request. Go's client repeats a POST by itself only where nothing of it was written, which is as good as
// once: it would take an Idempotency-Key header for more, and there is none.
func (c cloud) Send(ctx context.Context, credentials Credentials, m Message) (string, error) {
	if ctx.Err() != nil {
		return "", unasked(ctx)
	}
	var sent progress
	request, err := c.request(httptrace.WithClientTrace(ctx, sent.trace()), credentials, m)
	if err != nil { // not for want of anything the caller checks
		return "", &policy.Failure{Category: policy.CategoryRejected, Code: "request", Err: errors.New("whatsapp: the request cannot be made")}
	}
	response, err := c.client.Do(request)
	if err != nil {
		return "", noAnswer(ctx, err, sent.unknown())
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	switch status := response.StatusCode; {
	case status/100 == 2: // also if what follows was lost
		return readID(body), nil
	case err != nil: // it refuses, but the reason was lost; the status alone may be wrong about the class
		return "", noAnswer(ctx, err, status >= 500)
	default:
		return "", readRefusal(body).failure(status, response.Header, m, time.Now())
	}
}

func (c cloud) request(ctx context.Context, credentials Credentials, m Message) (*http.Request, error) {
	body, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	address := c.base + "/" + url.PathEscape(credentials.PhoneNumberID) + "/messages"
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json")
	if c.auth == AuthBearer {
		request.Header.Set("Authorization", "Bearer "+credentials.Token)
	} else {
		request.Header.Set("X-API-Key", credentials.Token)
	}
	return request, nil
}

// progress is how far a request got. The client reports it from goroutines of its own.
type progress struct{ began, wrote atomic.Bool }

func (p *progress) trace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		GetConn:      func(string) { p.began.Store(true) },
		WroteHeaders: func() { p.wrote.Store(true) },
	}
}

// unknown reports whether the provider may have the message. Headers come before the body, so what has not even written
// them has not sent it. A client that does not report its progress proves nothing.
func (p *progress) unknown() bool { return p.wrote.Load() || !p.began.Load() }

// noAnswer is the failure of a request that brought none. Its cause is kept only where it is an address of ours that
// could not be reached: what a client says otherwise may hold anything.
func noAnswer(ctx context.Context, err error, unknown bool) error {
	f := &policy.Failure{Category: policy.CategoryNetwork, Code: "no_connection", OutcomeUnknown: unknown}
	var timeout net.Error
	switch {
	case ctx.Err() != nil:
		f.Category, f.Code = policy.CategoryTimeout, timeoutCode(ctx)
		return f
	case errors.As(err, &timeout) && timeout.Timeout():
		f.Category, f.Code = policy.CategoryTimeout, "timeout"
	case unknown:
		f.Code = "no_answer"
	}
	f.Err = errors.New("whatsapp: no answer")
	var reach *net.OpError
	if !unknown && errors.As(err, &reach) {
		f.Err = reach
	}
	return f
}
