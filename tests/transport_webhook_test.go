package tests

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/gorm-outbox/outbox/transports/webhook"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stretchr/testify/require"
)

const (
	hookSecret    = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	hookOldSecret = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
)

// hooks is an endpoint on loopback with a real certificate chain. The last part of a path says how it answers.
type hooks struct {
	*httptest.Server
	mu       sync.Mutex
	requests []hook
	redirect string // where 3xx point to
	ended    chan struct{}
}

type hook struct {
	path   string
	header http.Header
	body   []byte
}

func newHooks(t testing.TB) *hooks {
	h := &hooks{ended: make(chan struct{})}
	h.Server = httptest.NewTLSServer(h)
	t.Cleanup(func() { close(h.ended); h.Close() })
	return h
}

func (h *hooks) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	h.mu.Lock()
	h.requests = append(h.requests, hook{r.URL.Path, r.Header.Clone(), body})
	h.mu.Unlock()
	how := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	status, err := strconv.Atoi(how)
	switch {
	case how == "silence":
		select {
		case <-r.Context().Done():
		case <-h.ended:
		}
		panic(http.ErrAbortHandler) // to return would be an answer, if the caller is only just hanging up
	case how == "reset":
		conn, _, _ := http.NewResponseController(w).Hijack()
		_ = conn.(*tls.Conn).NetConn().(*net.TCPConn).SetLinger(0)
		_ = conn.Close()
	case err == nil && status/100 == 3:
		http.Redirect(w, r, h.redirect, status)
	case err == nil:
		w.WriteHeader(status)
	}
}

// received gives the requests so far.
func (h *hooks) received() []hook {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]hook(nil), h.requests...)
}

func (h *hooks) port() int { return h.Listener.Addr().(*net.TCPAddr).Port }

// config is of a worker for which the endpoint is as on the internet.
func (h *hooks) config() webhook.Config {
	roots := x509.NewCertPool()
	roots.AddCert(h.Certificate())
	return webhook.Config{
		Secrets:         func(context.Context, outbox.Delivery) ([]string, error) { return []string{hookSecret}, nil },
		AllowedNetworks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
		Ports:           []int{h.port()}, TLS: &tls.Config{RootCAs: roots},
	}
}

// deliverHooks enqueues a message to each URL, runs one round, and gives the records by URL.
func (r *rig) deliverHooks(cfg webhook.Config, urls ...string) map[string]outbox.Record {
	r.Helper()
	transport, err := webhook.New(cfg)
	require.NoError(r, err)
	for _, url := range urls {
		r.enqueue(1, outbox.Message{Type: "order.created", Recipient: url, Payload: map[string]int{"order": 7}})
	}
	p := r.processor(r.open(), outbox.ProcessorConfig{Transports: map[string]outbox.Transport{orders: transport}})
	require.Equal(r, len(urls), p.ProcessOnce(r.Context()).Claimed)
	records := map[string]outbox.Record{}
	for _, record := range r.records() {
		records[record.Recipient] = record
	}
	return records
}

// requireEnd checks where a record stands after its first attempt.
func requireEnd(t testing.TB, record outbox.Record, status outbox.Status, category policy.Category, code string) {
	t.Helper()
	require.Equal(t, status, record.Status, record.Recipient)
	require.Equal(t, 1, record.Attempts, record.Recipient)
	if category == "" {
		require.Nil(t, record.LastErrorCategory, record.Recipient)
		return
	}
	require.Equal(t, string(category), *record.LastErrorCategory, record.Recipient)
	require.Equal(t, code, *record.LastErrorCode, record.Recipient)
}

func TestC36_RedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	r, inner, outer := newRig(t), newHooks(t), newHooks(t)
	outer.redirect = inner.URL + "/200"
	cfg := outer.config()
	cfg.Ports = append(cfg.Ports, inner.port())

	records := r.deliverHooks(cfg, outer.URL+"/301", outer.URL+"/302", outer.URL+"/303", outer.URL+"/307", outer.URL+"/308")

	for _, record := range records {
		requireEnd(t, record, outbox.StatusPending, policy.CategoryRejected, "redirect")
	}
	require.Len(t, outer.received(), 5)
	require.Empty(t, inner.received())
}

func TestC36_InnerAddressesAreRefusedBeforeTheyAreConnectedTo(t *testing.T) {
	t.Parallel()
	r, inner := newRig(t), newHooks(t)
	connected := make(chan net.Addr, 100)
	inner.Config.ConnState = func(conn net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connected <- conn.RemoteAddr()
		}
	}
	cfg := inner.config()
	cfg.AllowedNetworks = nil
	cfg.Resolver = resolvesToLoopback(t)
	at := func(host string) string { return fmt.Sprintf("https://%s:%d/200", host, inner.port()) }
	blocked := []string{
		at("127.0.0.1"), at("10.0.0.1"), at("169.254.169.254"), at("[::1]"), at("[::ffff:127.0.0.1]"), at("[fe80::1%25lo]"),
		at("0.0.0.0"), at("localhost"), at("hooks.example.com"),
	}
	spelled := []string{at("2130706433"), at("0x7f000001"), at("0177.0.0.1"), at("127.1"), at("user:pass@127.0.0.1")}

	records := r.deliverHooks(cfg, append(blocked, spelled...)...)

	for _, url := range blocked {
		requireEnd(t, records[url], outbox.StatusDiscarded, policy.CategoryRejected, "blocked_address")
	}
	for _, url := range spelled {
		requireEnd(t, records[url], outbox.StatusDiscarded, policy.CategoryRejected, "bad_url")
	}
	require.Empty(t, connected)
	require.Empty(t, inner.received())
}

func TestC36_InnerAddressesCanBeAllowed(t *testing.T) {
	t.Parallel()
	r, inner := newRig(t), newHooks(t)
	cfg := inner.config()
	cfg.Resolver = resolvesToLoopback(t)
	byAddress, byName := inner.URL+"/200", fmt.Sprintf("https://example.com:%d/200", inner.port())
	records := r.deliverHooks(cfg, byAddress, byName)
	requireEnd(t, records[byAddress], outbox.StatusSent, "", "")
	requireEnd(t, records[byName], outbox.StatusSent, "", "")
	require.Len(t, inner.received(), 2)
}

// resolvesToLoopback looks names up at a server that gives 127.0.0.1 for each: what an attacker's would do.
func resolvesToLoopback(t testing.TB) *net.Resolver {
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		query := make([]byte, 1500)
		for {
			n, from, err := server.ReadFrom(query)
			if err != nil {
				return
			}
			_, _ = server.WriteTo(answerLoopback(query[:n]), from)
		}
	}()
	t.Cleanup(func() { _ = server.Close(); <-ended })
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", server.LocalAddr().String())
	}}
}

// answerLoopback repeats the question of a DNS query and answers it if it asks for an IPv4 address.
func answerLoopback(query []byte) []byte {
	end := 12
	for query[end] != 0 {
		end += int(query[end]) + 1
	}
	answer := append([]byte(nil), query[:end+5]...)
	copy(answer[2:12], []byte{0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0})
	if query[end+2] == 1 {
		answer[7] = 1
		answer = append(answer, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4, 127, 0, 0, 1)
	}
	return answer
}

func TestC37_AnswersAreToldApart(t *testing.T) {
	t.Parallel()
	r, h := newRig(t), newHooks(t)
	closed := httptest.NewTLSServer(http.NotFoundHandler())
	closed.Close()
	cfg := h.config()
	cfg.Ports = append(cfg.Ports, closed.Listener.Addr().(*net.TCPAddr).Port)
	cfg.Timeout = time.Second
	gone := make(chan string, 10)
	cfg.OnGone = func(_ context.Context, d outbox.Delivery) { gone <- d.Recipient }
	type end struct {
		status   outbox.Status
		category policy.Category
		code     string
	}
	want := map[string]end{
		h.URL + "/reset":   {outbox.StatusPending, policy.CategoryNetwork, "no_answer"},
		h.URL + "/silence": {outbox.StatusPending, policy.CategoryTimeout, "timeout"},
		closed.URL:         {outbox.StatusPending, policy.CategoryNetwork, "connect"},
		h.URL + "/410":     {outbox.StatusDiscarded, policy.CategoryRejected, "gone"},
		h.URL + "/429":     {outbox.StatusPending, policy.CategoryRateLimited, "429"},
	}
	add := func(e end, statuses ...string) {
		for _, status := range statuses {
			if e.category != "" {
				e.code = status
			}
			want[h.URL+"/"+status] = e
		}
	}
	add(end{status: outbox.StatusSent}, "200", "202", "204")
	add(end{status: outbox.StatusPending, category: policy.CategoryNetwork}, "408", "425", "500", "502", "503", "504")
	add(end{status: outbox.StatusDiscarded, category: policy.CategoryRejected}, "400", "403", "404", "413", "422")
	urls := make([]string, 0, len(want))
	for url := range want {
		urls = append(urls, url)
	}

	records := r.deliverHooks(cfg, urls...)

	for url, e := range want {
		requireEnd(t, records[url], e.status, e.category, e.code)
	}
	require.Len(t, h.received(), len(want)-1, "one request each, and none to the closed server")
	require.Equal(t, h.URL+"/410", wait(r, "OnGone", gone))
	require.Empty(t, gone)
}

// TestWebhookSignatures has the official library verify two attempts at one message, during a change of secrets.
func TestWebhookSignatures(t *testing.T) {
	t.Parallel()
	r, h := newRig(t), newHooks(t)
	cfg := h.config()
	var asked []outbox.Delivery
	cfg.Secrets = func(_ context.Context, d outbox.Delivery) ([]string, error) {
		asked = append(asked, d) // one delivery at a time
		return []string{hookOldSecret, hookSecret}, nil
	}
	transport, err := webhook.New(cfg)
	require.NoError(t, err)
	receipt := r.enqueue(1, outbox.Message{
		Type: "order.created", TenantID: "acme", Recipient: h.URL + "/503", Payload: map[string]string{"name": "<Ñandú> & \u2028"},
	})[0]
	p := r.processor(r.open(), outbox.ProcessorConfig{Transports: map[string]outbox.Transport{orders: transport}})
	p.ProcessOnce(t.Context())
	r.makeDue()
	p.ProcessOnce(t.Context())

	all := h.received()
	require.Len(t, all, 2)
	require.Equal(t, all[0].body, all[1].body)
	for _, got := range all {
		require.Equal(t, receipt.MessageID, got.header.Get("webhook-id"))
		for _, secret := range []string{hookSecret, hookOldSecret} {
			verifier, err := standardwebhooks.NewWebhook(secret)
			require.NoError(t, err)
			require.NoError(t, verifier.Verify(got.body, got.header))
			require.Error(t, verifier.Verify(append(got.body, ' '), got.header))
		}
		stranger, err := standardwebhooks.NewWebhook("whsec_" + strings.Repeat("A", 32))
		require.NoError(t, err)
		require.Error(t, stranger.Verify(got.body, got.header))
	}
	require.Len(t, asked, 2, "the secrets are looked up for each attempt")
	require.Equal(t, "acme", asked[0].TenantID)
}
