// Package proxy is a TCP proxy that breaks connections on demand, for tests of what a program does when its network or
// its server fails. It stands between the program and the server, both on this machine:
//
//	p, err := proxy.New("127.0.0.1:5432")
//	...
//	defer p.Close()
//	connect(p.Addr())
//	p.Cut()
//
// A lost answer to a COMMIT, the fault that makes a client doubt what it did, is set up with OnClient:
//
//	p.OnClient(func(chunk []byte) {
//		if bytes.Contains(bytes.ToLower(chunk), []byte("commit")) {
//			p.SwallowReplies(true)
//		}
//	})
package proxy

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// dialTimeout bounds how long a client waits for a target that does not answer.
const dialTimeout = 5 * time.Second

// Proxy forwards connections to one target. Every method may be called at any time and from any goroutine; the switches
// act on the connections of the moment as well as on later ones.
type Proxy struct {
	target   string
	listener *net.TCPListener
	work     sync.WaitGroup // the accept loop and one goroutine per link

	swallow  atomic.Bool
	delay    atomic.Int64 // a time.Duration
	onClient atomic.Pointer[func(chunk []byte)]

	mu     sync.Mutex
	refuse bool
	closed bool // for good
	links  map[*link]struct{}
}

// New starts a proxy for the server at target (host:port), on a free loopback port. The target need not be up: it is
// dialled for each client, and a client whose target does not answer is cut.
func New(target string) (*Proxy, error) {
	listener, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, fmt.Errorf("proxy: listen for clients of %s: %w", target, err)
	}
	p := &Proxy{target: target, listener: listener, links: map[*link]struct{}{}}
	p.work.Go(p.accept)
	return p, nil
}

// Addr returns the address to connect to instead of the target's.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Cut resets every connection, on both sides, before it returns. Clients may connect again at once unless Refuse is on.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.cut()
	}
}

// Refuse says whether new clients are turned away: they are accepted, because the port stays ours, and reset at once.
// Those connected stay connected.
func (p *Proxy) Refuse(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = on
}

// SwallowReplies says whether what the server sends is thrown away; what clients send still reaches it. Replies that
// were swallowed do not come later, so a client that missed some is of use again only after a Cut.
func (p *Proxy) SwallowReplies(on bool) { p.swallow.Store(on) }

// Delay holds back every chunk, in both directions, for d before it is forwarded; zero forwards at once. A chunk is what
// one read gave, and the next one is not read before: a longer exchange pays the delay several times.
func (p *Proxy) Delay(d time.Duration) { p.delay.Store(int64(d)) }

// OnClient has f see every chunk that a client sends, before it is forwarded: a switch set in f is in force when the
// server gets the chunk. A nil f ends that. f runs on a goroutine of the client's connection, so it may run for several
// clients at once; it must neither keep the chunk, nor count on one statement being one chunk, nor call Close.
func (p *Proxy) OnClient(f func(chunk []byte)) {
	if f == nil {
		p.onClient.Store(nil)
		return
	}
	p.onClient.Store(&f)
}

// Close cuts every connection, frees the port and returns when all goroutines of the proxy have ended.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	_ = p.listener.Close() // fails only when it is closed already
	p.Cut()
	p.work.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.AcceptTCP()
		if err != nil {
			return // Close was called
		}
		l, ctx := newLink(client)
		if !p.admit(l) {
			l.cut()
			continue
		}
		p.work.Go(func() {
			defer p.dismiss(l)
			p.serve(ctx, l, client)
		})
	}
}

// admit puts the link under the switches, from before its target is dialled: a Cut reaches it even then.
func (p *Proxy) admit(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuse || p.closed {
		return false
	}
	p.links[l] = struct{}{}
	return true
}

func (p *Proxy) dismiss(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
}

// serve forwards in both directions until each side has said its last word or the link is cut.
func (p *Proxy) serve(ctx context.Context, l *link, client *net.TCPConn) {
	defer l.close()
	dialer := net.Dialer{Timeout: dialTimeout}
	conn, err := dialer.DialContext(ctx, "tcp", p.target)
	if err != nil {
		l.cut()
		return
	}
	server := conn.(*net.TCPConn)
	if !l.join(server) {
		return
	}
	var directions sync.WaitGroup
	directions.Go(func() { l.pump(server, client, func(chunk []byte) bool { return p.toServer(ctx, chunk) }) })
	directions.Go(func() { l.pump(client, server, func([]byte) bool { return p.toClient(ctx) }) })
	directions.Wait()
}

// toServer shows a client's chunk to the observer and says whether to forward it.
func (p *Proxy) toServer(ctx context.Context, chunk []byte) bool {
	if f := p.onClient.Load(); f != nil {
		(*f)(chunk)
	}
	return p.hold(ctx)
}

// toClient says whether to forward a reply; it asks after the delay, so that a reply on its way can still be swallowed.
func (p *Proxy) toClient(ctx context.Context) bool {
	return p.hold(ctx) && !p.swallow.Load()
}

// hold waits out the delay; it says false when the link is cut before that, and its chunk with it.
func (p *Proxy) hold(ctx context.Context) bool {
	d := time.Duration(p.delay.Load())
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
