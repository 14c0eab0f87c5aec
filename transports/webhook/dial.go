package webhook

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"syscall"
	"time"
)

const (
	minTimeout = time.Millisecond
	// connectTimeout is for the name, the connection and TLS together.
	connectTimeout = 10 * time.Second
)

// errTLS marks a handshake that failed; the cause would name the host.
var errTLS = errors.New("webhook: TLS handshake")

// dialer connects to addresses that are reachable, and to no other.
type dialer struct {
	net.Dialer
	tls *tls.Config
}

// newRoundTripper gives what makes the requests. It knows no proxy: the address that is checked would be the proxy's. It
// keeps no connection: one that the endpoint closes just then costs an attempt, and net/http logs, for everybody to
// read, what an endpoint sends on one that is idle. In HTTP/1.1 no request is sent twice by itself.
func newRoundTripper(cfg Config) http.RoundTripper {
	allowed := slices.Clone(cfg.AllowedNetworks)
	d := &dialer{tls: cfg.TLS.Clone()}
	if d.tls == nil {
		d.tls = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	d.Resolver = cfg.Resolver
	d.Control = func(_, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err != nil || !reachable(at.Addr(), allowed) {
			return errBlocked
		}
		return nil
	}
	return &http.Transport{
		DialContext: d.plain, DialTLSContext: d.secure, DisableKeepAlives: true, DisableCompression: true,
		MaxResponseHeaderBytes: maxAnswer,
	}
}

func (d *dialer) plain(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := connecting(ctx)
	defer cancel()
	return d.DialContext(ctx, network, address)
}

func (d *dialer) secure(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := connecting(ctx)
	defer cancel()
	conn, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	config := d.tls.Clone()
	if config.ServerName == "" {
		config.ServerName, _, _ = net.SplitHostPort(address) // net/http always gives host and port
	}
	secured := tls.Client(conn, config)
	if err := secured.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, errTLS
	}
	return secured, nil
}

// attemptKey finds the context of the attempt in a context that net/http has detached from it.
type attemptKey struct{}

func withAttempt(ctx context.Context) context.Context {
	return context.WithValue(ctx, attemptKey{}, ctx)
}

// connecting gives the context for a connection, which ends with the attempt that asked for it. net/http lets it go on
// for a later request, and an address that never answers would pile up goroutines.
func connecting(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	attempt, ok := ctx.Value(attemptKey{}).(context.Context)
	if !ok {
		return ctx, cancel
	}
	stop := context.AfterFunc(attempt, cancel)
	return ctx, func() { stop(); cancel() }
}
