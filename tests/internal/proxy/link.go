package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
)

// link is one client's connection and, once dialled, its connection to the server: they end together.
type link struct {
	stop context.CancelFunc // ends the dialling and the delays

	mu    sync.Mutex
	ended bool
	conns []*net.TCPConn
}

// newLink returns the link of a client, and the context that ends when the link does.
func newLink(client *net.TCPConn) (*link, context.Context) {
	ctx, stop := context.WithCancel(context.Background())
	return &link{stop: stop, conns: []*net.TCPConn{client}}, ctx
}

// join adds the server's connection; a link that was cut meanwhile takes it along and says false.
func (l *link) join(server *net.TCPConn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		reset(server)
		return false
	}
	l.conns = append(l.conns, server)
	return true
}

// cut resets both connections: their peers get an error, not an end of stream.
func (l *link) cut() { l.end(reset) }

// close ends both connections in order, so that what was written to them still arrives.
func (l *link) close() { l.end(func(conn *net.TCPConn) { _ = conn.Close() }) }

func (l *link) end(one func(*net.TCPConn)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return
	}
	l.ended = true
	l.stop()
	for _, conn := range l.conns {
		one(conn)
	}
}

// pump forwards the chunks that pass, and the end of the stream; any other error cuts the link.
func (l *link) pump(to, from *net.TCPConn, pass func(chunk []byte) bool) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 && pass(buf[:n]) {
			if _, err := to.Write(buf[:n]); err != nil {
				l.cut()
				return
			}
		}
		if errors.Is(err, io.EOF) {
			_ = to.CloseWrite() // fails only when the link is gone
			return
		}
		if err != nil {
			l.cut()
			return
		}
	}
}

// reset closes a connection without a farewell (RST instead of FIN), whatever is still on its way.
func reset(conn *net.TCPConn) {
	_ = conn.SetLinger(0) // fails, as Close does, only on a connection that is closed already
	_ = conn.Close()
}
