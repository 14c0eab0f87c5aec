// Package resend sends e-mails through the HTTP API of Resend (https://resend.com), and takes what Resend reports about
// them later: [New] gives the sender for email.New, [StatusHandler] the endpoint for Resend's webhooks.
//
// Every attempt carries the message's provider key as Idempotency-Key and the same body, so a repeat is recognised and
// sends nothing. Resend forgets keys after 24 hours. An attempt that comes more than [KeyWindow] after one whose outcome
// is unknown could double the mail, so it is not made: the message ends as discarded, idempotency_conflict/
// key_window_passed, for a person to decide. Choose MaxAttempts and the backoff so that the attempts fit into a day.
//
// Resend limits the requests of a team, to 2 a second by default: wrap the transport in outbox.Limit.
package resend

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/mail"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/gorm-outbox/outbox/transports/email"
)

// DefaultBaseURL is where Resend's API is.
const DefaultBaseURL = "https://api.resend.com"

// KeyWindow is for how long after an attempt of unknown outcome its key is relied upon: Resend's 24 hours, less a margin
// for clocks that differ and for the attempt itself.
const KeyWindow = 23 * time.Hour

// TagName is the tag by which webhooks name the record; its value is Delivery.Reference.
const TagName = "outbox"

// maxKey is the longest idempotency key that Resend takes.
const maxKey = 256

// Config says how to reach Resend. Only APIKey is required.
type Config struct {
	// APIKey is the secret of the account, "re_…". It needs the permission to send.
	APIKey string
	// BaseURL is where the API is; empty: [DefaultBaseURL]. It must be https, except on this machine.
	BaseURL string
	// Client makes the requests. It is copied, and the copy follows no redirects. Nil: a client with its own connections
	// that gives up after a minute.
	Client *http.Client
}

// New gives the sender. The error is an [outbox.ErrInvalid] with everything that is wrong with cfg.
//
// Failures are sorted by the name that Resend gives them, and by the status where it gives none: what only time can
// mend is transient, a refused message, key or account is permanent. A mail of which Resend was told, but whose answer
// did not come, is of unknown outcome.
func New(cfg Config) (email.Sender, error) {
	var problems []error
	if cfg.APIKey == "" {
		problems = append(problems, errors.New("APIKey is empty"))
	} else if !visibleASCII(cfg.APIKey) {
		problems = append(problems, errors.New("APIKey holds a space, a line break or another character that no key has"))
	}
	if cfg.BaseURL == "" {
		cfg.BaseURL = DefaultBaseURL
	}
	if err := checkBaseURL(cfg.BaseURL); err != nil {
		problems = append(problems, fmt.Errorf("BaseURL: %w", err))
	}
	if len(problems) > 0 {
		return nil, fmt.Errorf("%w: resend: %w", outbox.ErrInvalid, errors.Join(problems...))
	}
	client := http.Client{Transport: newTransport(), Timeout: time.Minute}
	if cfg.Client != nil {
		client = *cfg.Client
	}
	// A POST may arrive behind a redirect as an empty GET, whose 200 would count as sent; and the key is for nobody else.
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &sender{key: cfg.APIKey, url: strings.TrimRight(cfg.BaseURL, "/") + "/emails", client: &client}, nil
}

// checkBaseURL does not quote the URL, which may hold a password by mistake.
func checkBaseURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		return errors.New("must be an absolute https URL")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return errors.New("must have no user, query or fragment")
	case u.Scheme == "http" && !loopback(u.Hostname()):
		return errors.New("must be https: the API key would travel in the clear")
	}
	return nil
}

func loopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.IsLoopback()
}

func visibleASCII(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < '!' || r > '~' })
}

// newTransport gives connections of its own: those of http.DefaultTransport are the app's to close and to change.
func newTransport() *http.Transport {
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout:   10 * time.Second,
		ForceAttemptHTTP2:     true,
		MaxIdleConns:          20,
		MaxIdleConnsPerHost:   20,
		IdleConnTimeout:       90 * time.Second,
		ExpectContinueTimeout: time.Second,
	}
}

type sender struct {
	key    string
	url    string
	client *http.Client
}

// Send makes one request.
func (s *sender) Send(ctx context.Context, e email.Email) (string, error) {
	switch {
	case e.ProviderKey == "" || len(e.ProviderKey) > maxKey || !visibleASCII(e.ProviderKey):
		return "", &policy.Failure{Category: policy.CategoryRejected, Code: "invalid_idempotency_key"}
	case !e.UnknownSince.IsZero() && time.Since(e.UnknownSince) > KeyWindow:
		return "", &policy.Failure{
			Category: policy.CategoryIdempotencyConflict, Class: policy.Permanent, Code: "key_window_passed", OutcomeUnknown: true,
		}
	}
	body, err := encode(e)
	if err != nil {
		return "", &policy.Failure{Category: policy.CategoryRejected, Code: "encode"}
	}
	a := &attempt{}
	request, err := http.NewRequestWithContext(a.traced(ctx), http.MethodPost, s.url, bytes.NewReader(body))
	if err != nil {
		return "", &policy.Failure{Category: policy.CategoryRejected, Code: "request"}
	}
	// Without it a request that broke off is an error. With it, and an Idempotency-Key, net/http would quietly make
	// another one, and one attempt would be two.
	request.GetBody = nil
	request.Header.Set("Authorization", "Bearer "+s.key)
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json")
	request.Header.Set("User-Agent", "gorm-outbox")
	request.Header.Set("Idempotency-Key", e.ProviderKey)
	response, err := s.client.Do(request)
	if err != nil {
		return "", a.failure(ctx, err)
	}
	defer response.Body.Close()
	return a.answer(ctx, response)
}

// body is what Resend takes. The order of its fields and of the headers is fixed, so that a message has the same bytes
// on every attempt: Resend refuses another body under the same key.
type body struct {
	From    string            `json:"from"`
	To      string            `json:"to"`
	ReplyTo string            `json:"reply_to,omitempty"`
	Subject string            `json:"subject"`
	HTML    string            `json:"html,omitempty"`
	Text    string            `json:"text,omitempty"`
	Headers map[string]string `json:"headers,omitempty"`
	Tags    []tag             `json:"tags,omitempty"`
}

type tag struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

func encode(e email.Email) ([]byte, error) {
	b := body{From: mailbox(e.From), To: mailbox(e.To), Subject: e.Subject, HTML: e.HTML, Text: e.Text, Headers: e.Headers}
	if e.ReplyTo.Address != "" {
		b.ReplyTo = mailbox(e.ReplyTo)
	}
	if taggable(e.Reference) {
		b.Tags = []tag{{Name: TagName, Value: e.Reference}}
	}
	return json.Marshal(b)
}

// taggable reports whether Resend takes s as a tag's value. Every Delivery.Reference is one.
func taggable(s string) bool {
	return s != "" && len(s) <= 256 && !strings.ContainsFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-')
	})
}

var quote = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

// mailbox writes an address in the clear: JSON needs no encoded words.
func mailbox(a mail.Address) string {
	if a.Name == "" {
		return a.Address
	}
	return `"` + quote.Replace(a.Name) + `" <` + a.Address + ">"
}
