package proxy_test

import (
	"bytes"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox/tests/internal/proxy"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must happen; a passing test never waits that long.
const patience = 10 * time.Second

func TestForwardsBothWays(t *testing.T) {
	p := start(t, echoServer(t))
	a, b := dial(t, p), dial(t, p)

	say(t, a, "from a")
	say(t, b, "from b")
	hear(t, b, "from b")
	hear(t, a, "from a")
}

func TestForwardsMoreThanItsBuffer(t *testing.T) {
	conn := dial(t, start(t, echoServer(t)))
	sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	go func() {
		_, _ = conn.Write(sent)
		_ = conn.CloseWrite()
	}()

	got, err := io.ReadAll(conn)

	require.NoError(t, err)
	require.True(t, bytes.Equal(sent, got))
}

func TestForwardsTheEndOfTheStream(t *testing.T) {
	conn := dial(t, start(t, echoServer(t)))
	say(t, conn, "last words")
	require.NoError(t, conn.CloseWrite())

	got, err := io.ReadAll(conn)

	require.NoError(t, err)
	require.Equal(t, "last words", string(got), "what was on its way arrives after the client's end of stream")
}

func TestCut(t *testing.T) {
	p := start(t, echoServer(t))
	before := exchange(t, dial(t, p))

	p.Cut()

	requireReset(t, before)
	exchange(t, dial(t, p))
}

func TestRefuse(t *testing.T) {
	p := start(t, echoServer(t))
	before := exchange(t, dial(t, p))

	p.Refuse(true)
	requireTurnedAway(t, p)
	exchange(t, before)

	p.Refuse(false)
	exchange(t, dial(t, p))
}

func TestSwallowReplies(t *testing.T) {
	received := make(chan string, 10)
	p := start(t, server(t, func(conn net.Conn) {
		buf := make([]byte, 100)
		for {
			n, err := conn.Read(buf)
			if err != nil {
				return
			}
			if _, err := conn.Write(buf[:n]); err != nil {
				return
			}
			received <- string(buf[:n])
		}
	}))
	conn := exchange(t, dial(t, p))
	require.Equal(t, "ping", <-received)

	p.SwallowReplies(true)
	say(t, conn, "lost")
	require.Equal(t, "lost", <-received, "the server hears the client")
	requireSilence(t, conn)

	p.SwallowReplies(false)
	exchange(t, dial(t, p))
}

func TestSwallowFromTheObserver(t *testing.T) {
	p := start(t, echoServer(t))
	conn := exchange(t, dial(t, p))
	p.OnClient(func(chunk []byte) {
		if bytes.Contains(chunk, []byte("commit")) {
			p.SwallowReplies(true)
		}
	})

	say(t, conn, "insert")
	hear(t, conn, "insert")
	say(t, conn, "commit")
	requireSilence(t, conn)
}

func TestObserverMayCut(t *testing.T) {
	p := start(t, echoServer(t))
	conn := exchange(t, dial(t, p))
	var seen atomic.Int64
	p.OnClient(func([]byte) {
		seen.Add(1)
		p.Cut()
	})
	say(t, conn, "last")
	requireReset(t, conn)

	p.OnClient(nil)
	exchange(t, dial(t, p))
	require.EqualValues(t, 1, seen.Load())
}

func TestDelay(t *testing.T) {
	const delay = 50 * time.Millisecond
	p := start(t, echoServer(t))
	conn := exchange(t, dial(t, p))

	p.Delay(delay)
	began := time.Now()
	exchange(t, conn)
	require.GreaterOrEqual(t, time.Since(began), 2*delay, "there and back")

	p.Delay(0)
	exchange(t, conn)
}

func TestCutEndsADelay(t *testing.T) {
	p := start(t, echoServer(t))
	conn := exchange(t, dial(t, p))
	held := make(chan struct{})
	p.OnClient(func([]byte) { close(held) })
	p.Delay(time.Hour)
	say(t, conn, "held")
	<-held

	p.Cut()

	requireReset(t, conn)
}

func TestTargetThatIsDown(t *testing.T) {
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, gone.Close())

	requireTurnedAway(t, start(t, gone.Addr().String()))
}

func TestClose(t *testing.T) {
	p := start(t, echoServer(t))
	conn := exchange(t, dial(t, p))

	p.Close()
	p.Close()

	requireReset(t, conn)
	_, err := net.Dial("tcp", p.Addr())
	require.Error(t, err)
}

func TestSwitchesUnderLoad(t *testing.T) {
	p := start(t, echoServer(t))
	done := make(chan struct{})
	const clients = 8
	for range clients {
		go func() {
			defer func() { done <- struct{}{} }()
			for range 50 {
				conn, err := net.Dial("tcp", p.Addr())
				if err != nil {
					continue
				}
				_, _ = conn.Write([]byte("x"))
				_, _ = conn.Read(make([]byte, 1))
				_ = conn.Close()
			}
		}()
	}
	for ended := 0; ended < clients; {
		p.Refuse(true)
		p.OnClient(func([]byte) {})
		p.Cut()
		p.Refuse(false)
		p.OnClient(nil)
		select {
		case <-done:
			ended++
		case <-time.After(time.Millisecond):
		}
	}
}

func start(t *testing.T, target string) *proxy.Proxy {
	t.Helper()
	p, err := proxy.New(target)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p
}

func echoServer(t *testing.T) string {
	return server(t, func(conn net.Conn) { _, _ = io.Copy(conn, conn) })
}

// server serves every connection with f and closes it afterwards; it ends with the test.
func server(t *testing.T, f func(net.Conn)) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				f(conn)
			}()
		}
	}()
	return listener.Addr().String()
}

func dial(t *testing.T, p *proxy.Proxy) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", p.Addr())
	require.NoError(t, err)
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	t.Cleanup(func() { _ = conn.Close() })
	return conn.(*net.TCPConn)
}

func say(t *testing.T, conn net.Conn, words string) {
	t.Helper()
	_, err := conn.Write([]byte(words))
	require.NoError(t, err)
}

func hear(t *testing.T, conn net.Conn, words string) {
	t.Helper()
	got := make([]byte, len(words))
	_, err := io.ReadFull(conn, got)
	require.NoError(t, err)
	require.Equal(t, words, string(got))
}

func exchange(t *testing.T, conn *net.TCPConn) *net.TCPConn {
	t.Helper()
	say(t, conn, "ping")
	hear(t, conn, "ping")
	return conn
}

func requireReset(t *testing.T, conn net.Conn) {
	t.Helper()
	_, err := conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET)
}

// requireTurnedAway fails unless a new client is reset, be it while it connects or at its first read.
func requireTurnedAway(t *testing.T, p *proxy.Proxy) {
	t.Helper()
	conn, err := net.Dial("tcp", p.Addr())
	if err != nil {
		require.ErrorIs(t, err, syscall.ECONNRESET)
		return
	}
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	requireReset(t, conn)
}

// requireSilence waits a moment for an answer that must not come: too short a moment cannot fail a sound proxy.
func requireSilence(t *testing.T, conn net.Conn) {
	t.Helper()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	_, err := conn.Read(make([]byte, 1))
	var timeout net.Error
	require.ErrorAs(t, err, &timeout)
	require.True(t, timeout.Timeout(), err)
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(patience)))
}
