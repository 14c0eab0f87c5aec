package webhook_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox/policy"
	"github.com/gorm-outbox/outbox/transports/webhook"
	"github.com/stretchr/testify/require"
)

// counting gives a server on loopback that nobody may connect to, and how many did.
func counting(t *testing.T, network, address string) (port int, connections *atomic.Int64) {
	l, err := net.Listen(network, address)
	if err != nil {
		t.Skipf("no %s here: %v", network, err)
	}
	connections = new(atomic.Int64)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			connections.Add(1)
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-ended })
	return l.Addr().(*net.TCPAddr).Port, connections
}

func TestBlockedAddresses(t *testing.T) {
	port, connections := counting(t, "tcp4", "127.0.0.1:0")
	for host, code := range map[string]string{
		"127.0.0.1": "blocked_address", "127.1.2.3": "blocked_address", "10.0.0.1": "blocked_address", "0.0.0.0": "blocked_address",
		"169.254.169.254": "blocked_address", "localhost": "blocked_address", "[::1]": "blocked_address", "[::]": "blocked_address",
		"[::ffff:127.0.0.1]": "blocked_address", "[::ffff:7f00:1]": "blocked_address", "[64:ff9b::7f00:1]": "blocked_address",
		"[fe80::1]": "blocked_address", "[::1%25lo]": "blocked_address", "[::ffff:127.0.0.1%25lo]": "blocked_address",
		"[2002:7f00:1::]": "blocked_address", "[2001:0:7f00:1::]": "blocked_address", "[fd00:ec2::254]": "blocked_address",
		// Full-width digits, which IDNA makes plain ones.
		"\uff11\uff12\uff17.0.0.\uff11": "blocked_address", "\uff11\uff12\uff17.0.0.1": "bad_url",
		"2130706433": "bad_url", "0x7f000001": "bad_url", "0x7f.0.0.1": "bad_url", "0177.0.0.1": "bad_url",
		"017700000001": "bad_url", "127.1": "bad_url", "127.0.0.1.": "bad_url", "127.0.0.0x1": "bad_url",
	} {
		t.Run(host, func(t *testing.T) {
			cfg := webhook.Config{Secrets: fixed(secret), Ports: []int{port}, AllowHTTP: true}
			for _, scheme := range []string{"https", "http"} {
				err := send(t, newTransport(t, cfg), fmt.Sprintf("%s://%s:%d/", scheme, host, port))
				require.Equal(t, policy.Failure{Category: policy.CategoryRejected, Code: code}, failure(t, err))
				require.Equal(t, policy.Permanent, policy.Classify(err))
			}
			require.Zero(t, connections.Load())
		})
	}
}

func TestBlockedIPv6(t *testing.T) {
	port, connections := counting(t, "tcp6", "[::1]:0")
	cfg := webhook.Config{Secrets: fixed(secret), Ports: []int{port}}
	for _, host := range []string{"[::1]", "[::1%25lo]", "[0:0:0:0:0:0:0:1]"} {
		err := send(t, newTransport(t, cfg), fmt.Sprintf("https://%s:%d/", host, port))
		require.Equal(t, "blocked_address", failure(t, err).Code)
	}
	require.Zero(t, connections.Load())
}

func TestURLs(t *testing.T) {
	e := newEndpoint(t)
	cfg := webhook.Config{Secrets: fixed(secret), AllowedNetworks: loopback}
	transport := newTransport(t, cfg)
	host := strings.TrimPrefix(e.URL, "https://")
	for recipient, code := range map[string]string{
		"": "bad_url", "example.com": "bad_url", "//example.com/": "bad_url", "/hooks": "bad_url", "https:": "bad_url", "https://": "bad_url",
		"https:example.com": "bad_url", "https:///a": "bad_url", "https://:443/": "bad_url", "ftp://example.com": "bad_url",
		"file:///etc/passwd": "bad_url", "gopher://example.com": "bad_url", "mailto:a@b.example": "bad_url", "https://exa mple.com": "bad_url",
		"https://example.com\r\nHost: x": "bad_url", "https://example.com/\x00": "bad_url", "https://[::1": "bad_url", "https://%zz": "bad_url",
		"https://user@example.com": "bad_url", "https://user:pass@example.com": "bad_url", "https://@example.com": "bad_url",
		"https://example.com:port": "bad_url", "http://example.com": "scheme_not_allowed", "http://" + host: "scheme_not_allowed",
		e.URL: "port_not_allowed", "https://example.com:0": "port_not_allowed", "https://example.com:80": "port_not_allowed",
		"https://example.com:99999999999999999999": "port_not_allowed", "https://example.com:22": "port_not_allowed",
	} {
		err := send(t, transport, recipient)
		require.Equal(t, policy.Failure{Category: policy.CategoryRejected, Code: code}, failure(t, err), recipient)
		require.Equal(t, policy.Permanent, policy.Classify(err))
	}
	require.Empty(t, e.received())
}

// TestRebinding has a name resolve to an allowed address first and to another one later.
func TestRebinding(t *testing.T) {
	e := newEndpointOn(t, "127.0.0.2:0")
	dns := newNameserver(t, "127.0.0.2")
	cfg := e.config()
	cfg.Resolver = dns.resolver()
	cfg.AllowedNetworks = []netip.Prefix{netip.MustParsePrefix("127.0.0.2/32")}
	e.setAnswer(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Connection", "close") })
	transport := newTransport(t, cfg)
	recipient := fmt.Sprintf("https://example.com:%d/", e.port())
	require.NoError(t, send(t, transport, recipient))
	for _, address := range []string{"127.0.0.1", "10.0.0.1", "169.254.169.254", "0.0.0.0", "100.64.0.1"} {
		dns.set(address)
		f := failure(t, send(t, transport, recipient))
		require.Equal(t, policy.Failure{Category: policy.CategoryRejected, Code: "blocked_address"}, f, address)
	}
	dns.set("127.0.0.2")
	require.NoError(t, send(t, transport, recipient))
	require.Len(t, e.received(), 2)
}

// TestRedirects has the guard out of the way: what keeps the second server alone is that nothing is followed.
func TestRedirects(t *testing.T) {
	inner := newEndpoint(t)
	for _, status := range []int{301, 302, 303, 307, 308} {
		e := newEndpoint(t)
		e.setAnswer(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, inner.URL, status) })
		cfg := e.config()
		cfg.Ports = append(cfg.Ports, inner.port())
		f := failure(t, send(t, newTransport(t, cfg), e.URL))
		require.Equal(t, policy.Failure{Category: policy.CategoryRejected, Code: "redirect", Class: policy.Transient}, f)
		require.Len(t, e.received(), 1)
	}
	require.Empty(t, inner.received())
}

func TestTLSIsVerified(t *testing.T) {
	e := newEndpoint(t)
	cfg := e.config()
	for name, config := range map[string]*tls.Config{
		"unknown authority": nil,
		"no roots":          {RootCAs: x509.NewCertPool()},
		"another name":      {RootCAs: cfg.TLS.RootCAs, ServerName: "other.test"},
	} {
		cfg.TLS = config
		f := failure(t, send(t, newTransport(t, cfg), e.URL))
		require.Equal(t, policy.Failure{Category: policy.CategoryNetwork, Code: "tls"}, f, name)
	}
	require.Empty(t, e.received())
}

// proxy is an app's own way out.
type proxy struct {
	http.RoundTripper
	used atomic.Int64
}

func (p *proxy) RoundTrip(r *http.Request) (*http.Response, error) {
	p.used.Add(1)
	return p.RoundTripper.RoundTrip(r)
}

func TestRoundTripper(t *testing.T) {
	e := newEndpoint(t)
	own := &proxy{RoundTripper: e.Client().Transport}
	transport := newTransport(t, webhook.Config{Secrets: fixed(secret), Ports: []int{e.port()}, RoundTripper: own})
	require.NoError(t, send(t, transport, e.URL))
	e.setAnswer(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) })
	require.Equal(t, "redirect", failure(t, send(t, transport, e.URL)).Code)
	require.Equal(t, int64(2), own.used.Load())

	e.Close()
	f := failure(t, send(t, transport, e.URL))
	unknown := policy.Failure{Category: policy.CategoryNetwork, Code: "no_answer", OutcomeUnknown: true}
	require.Equal(t, unknown, f, "it need not tell whether it sent")
	ctx, cancel := context.WithTimeout(context.Background(), time.Nanosecond)
	defer cancel()
	<-ctx.Done()
	_, err := transport.Send(ctx, delivery(e.URL))
	require.Equal(t, policy.Failure{Category: policy.CategoryTimeout, Code: "timeout"}, failure(t, err))
}
