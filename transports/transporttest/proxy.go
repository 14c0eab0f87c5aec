package transporttest

import (
	"net"
	"sync"
	"testing"
)

// Proxy stands between a transport and a real server on loopback, and makes the network behave as a test needs it. It
// passes everything on until it is told otherwise.
type Proxy struct {
	server   string // address
	listener net.Listener
	running  sync.WaitGroup

	mu            sync.Mutex
	moved         *sync.Cond // held, refusing or ended has changed
	held          bool       // what the server says is kept back
	refuse, ended bool
	links         map[net.Conn]net.Conn // the client's side to the server's
}

// NewProxy gives a proxy for the server at this address, which ends with the test.
func NewProxy(t testing.TB, server string) *Proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("transporttest: %v", err)
	}
	p := &Proxy{server: server, listener: listener, links: map[net.Conn]net.Conn{}}
	p.moved = sync.NewCond(&p.mu)
	p.running.Add(1)
	go p.accept()
	t.Cleanup(func() {
		p.set(func() { p.ended = true })
		_ = listener.Close()
		p.Cut()
		p.running.Wait()
	})
	return p
}

// Addr is where the transport connects to.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Pass makes it pass everything on, with what it has kept back.
func (p *Proxy) Pass() { p.set(func() { p.held, p.refuse = false, false }) }

// Hold makes it keep back what the server says. What the client says still arrives: a request is carried out whose
// answer nobody hears.
func (p *Proxy) Hold() { p.set(func() { p.held, p.refuse = true, false }) }

// Refuse makes it close every connection, those that exist and new ones.
func (p *Proxy) Refuse() {
	p.set(func() { p.held, p.refuse = false, true })
	p.Cut()
}

// Cut closes the connections that exist.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for client, server := range p.links {
		_ = client.Close()
		_ = server.Close()
	}
}

func (p *Proxy) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	p.moved.Broadcast()
}

func (p *Proxy) accept() {
	defer p.running.Done()
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.server)
		if err != nil {
			_ = client.Close()
			continue
		}
		p.link(client, server)
	}
}

// link lets the two sides talk until one of them closes.
func (p *Proxy) link(client, server net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuse || p.ended {
		_ = client.Close()
		_ = server.Close()
		return
	}
	p.links[client] = server
	p.running.Add(2)
	go p.copy(server, client, func() {})
	go p.copy(client, server, p.wait)
}

// copy passes on what it reads, each piece when before lets it.
func (p *Proxy) copy(to, from net.Conn, before func()) {
	defer p.running.Done()
	defer p.unlink(to, from)
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			before()
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// wait returns when nothing is kept back any more.
func (p *Proxy) wait() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.held && !p.ended {
		p.moved.Wait()
	}
}

func (p *Proxy) unlink(a, b net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = a.Close()
	_ = b.Close()
	delete(p.links, a)
	delete(p.links, b)
}
