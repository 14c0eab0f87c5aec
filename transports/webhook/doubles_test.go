package webhook_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/gorm-outbox/outbox/transports/webhook"
	"github.com/stretchr/testify/require"
)

const (
	secret    = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	oldSecret = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
	patience  = 20 * time.Second // how long what must happen is waited for
)

// loopback is allowed where a test means to reach its own server.
var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}

// endpoint is a server on loopback that remembers what it was sent.
type endpoint struct {
	*httptest.Server
	mu       sync.Mutex
	requests []received
	answer   http.HandlerFunc
}

type received struct {
	header http.Header
	body   string
	path   string
}

func newEndpoint(t testing.TB) *endpoint { return newEndpointOn(t, "127.0.0.1:0") }

func newEndpointOn(t testing.TB, address string) *endpoint {
	e := &endpoint{answer: func(http.ResponseWriter, *http.Request) {}}
	e.Server = httptest.NewUnstartedServer(e)
	l, err := net.Listen("tcp", address)
	require.NoError(t, err)
	_ = e.Listener.Close()
	e.Listener = l
	e.Config.ErrorLog = log.New(io.Discard, "", 0)
	e.StartTLS()
	t.Cleanup(e.Close)
	return e
}

func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	e.mu.Lock()
	e.requests = append(e.requests, received{r.Header.Clone(), string(body), r.URL.RequestURI()})
	answer := e.answer
	e.mu.Unlock()
	answer(w, r)
}

func (e *endpoint) setAnswer(answer http.HandlerFunc) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.answer = answer
}

func (e *endpoint) received() []received {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]received(nil), e.requests...)
}

// config reaches the endpoint, by address or as example.com, for which it has a certificate.
func (e *endpoint) config() webhook.Config {
	roots := x509.NewCertPool()
	roots.AddCert(e.Certificate())
	return webhook.Config{
		Secrets: fixed(secret), Ports: []int{e.port()}, AllowedNetworks: loopback, TLS: &tls.Config{RootCAs: roots},
	}
}

func (e *endpoint) port() int { return portOf(e.URL) }

func portOf(text string) int {
	u, err := url.Parse(text)
	if err != nil {
		panic(err)
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		panic(err)
	}
	return port
}

func fixed(secrets ...string) func(context.Context, outbox.Delivery) ([]string, error) {
	return func(context.Context, outbox.Delivery) ([]string, error) { return secrets, nil }
}

func newTransport(t testing.TB, cfg webhook.Config) outbox.Transport {
	t.Helper()
	transport, err := webhook.New(cfg)
	require.NoError(t, err)
	return transport
}

func delivery(recipient string) outbox.Delivery {
	return outbox.Delivery{
		ID: 7, TenantID: "acme", Topic: "webhook", Type: "order.created", Recipient: recipient,
		Payload:   json.RawMessage(`{"order":"confidential-order"}`),
		MessageID: "0195a0a0-0000-7000-8000-000000000001", ProviderKey: "acme:order-7", Attempt: 1, MaxAttempts: 8,
		EnqueuedAt: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC),
	}
}

// send calls with all the time that is needed.
func send(t testing.TB, transport outbox.Transport, recipient string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	id, err := transport.Send(ctx, delivery(recipient))
	require.NoError(t, ctx.Err(), "Send takes too long")
	require.Empty(t, id)
	return err
}

func failure(t testing.TB, err error) policy.Failure {
	t.Helper()
	require.Error(t, err)
	f, ok := policy.AsFailure(err)
	require.True(t, ok, "no policy.Failure: %v", err)
	return f
}

// nameserver answers every question for an IPv4 address with the one that is set, and knows no IPv6 address.
type nameserver struct {
	net.PacketConn
	address atomic.Pointer[netip.Addr]
	asked   atomic.Int64
}

func newNameserver(t testing.TB, address string) *nameserver {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	n := &nameserver{PacketConn: conn}
	n.set(address)
	ended := make(chan struct{})
	go func() { defer close(ended); n.serve() }()
	t.Cleanup(func() { _ = conn.Close(); <-ended })
	return n
}

func (n *nameserver) set(address string) {
	a := netip.MustParseAddr(address)
	n.address.Store(&a)
}

func (n *nameserver) resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", n.LocalAddr().String())
	}}
}

func (n *nameserver) serve() {
	buf := make([]byte, 1500)
	for {
		size, from, err := n.ReadFrom(buf)
		if err != nil {
			return
		}
		n.asked.Add(1)
		_, _ = n.WriteTo(n.reply(buf[:size]), from)
	}
}

// reply echoes the question and, to one for an A record, adds the answer.
func (n *nameserver) reply(query []byte) []byte {
	end := 12
	for query[end] != 0 {
		end += int(query[end]) + 1
	}
	kind := query[end+2]
	reply := append([]byte(nil), query[:end+5]...)
	copy(reply[2:12], []byte{0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0})
	if kind == 1 {
		reply[7] = 1
		reply = append(reply, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4)
		reply = append(reply, n.address.Load().AsSlice()...)
	}
	return reply
}
