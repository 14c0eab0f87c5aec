package webhook_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/gorm-outbox/outbox/transports/webhook"
	"github.com/stretchr/testify/require"
)

// rawServer hands each connection to handle, which closes it. It gives the URL, and counts the requests that serve read.
type rawServer struct {
	net.Listener
	mu       sync.Mutex
	requests int
	open     map[net.Conn]bool
}

func newRawServer(t *testing.T, handle func(s *rawServer, conn net.Conn)) *rawServer {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &rawServer{Listener: l, open: map[net.Conn]bool{}}
	var all sync.WaitGroup
	all.Add(1)
	go func() {
		defer all.Done()
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.open[conn] = true
			s.mu.Unlock()
			all.Add(1)
			go func() {
				defer all.Done()
				defer conn.Close()
				handle(s, conn)
			}()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		s.mu.Lock()
		for conn := range s.open {
			_ = conn.Close()
		}
		s.mu.Unlock()
		all.Wait()
	})
	return s
}

func (s *rawServer) url() string { return "http://" + s.Addr().String() + "/" }

func (s *rawServer) config() webhook.Config {
	return webhook.Config{
		Secrets: fixed(secret), AllowHTTP: true, Ports: []int{s.Addr().(*net.TCPAddr).Port}, AllowedNetworks: loopback,
	}
}

// read reads one request and says whether there was one.
func (s *rawServer) read(r *bufio.Reader) bool {
	request, err := http.ReadRequest(r)
	if err != nil {
		return false
	}
	_, _ = io.Copy(io.Discard, request.Body)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests++
	return true
}

func (s *rawServer) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests
}

// answers reads a request and writes text.
func answers(text string) func(*rawServer, net.Conn) {
	return func(s *rawServer, conn net.Conn) {
		if s.read(bufio.NewReader(conn)) {
			_, _ = io.WriteString(conn, text)
		}
	}
}

// answersAndStays is answers, the connection left open.
func answersAndStays(text string) func(*rawServer, net.Conn) {
	return func(s *rawServer, conn net.Conn) {
		answers(text)(s, conn)
		_, _ = io.Copy(io.Discard, conn)
	}
}

// drips writes a byte at a time.
func drips(text string) func(*rawServer, net.Conn) {
	return func(s *rawServer, conn net.Conn) {
		s.read(bufio.NewReader(conn))
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			if _, err := io.WriteString(conn, text[i%len(text):i%len(text)+1]); err != nil {
				return
			}
			<-tick.C
		}
	}
}

// TestOneAttemptIsOneRequest breaks connections at every second request, which net/http would send again for some. The
// endpoint would keep its connections; a RoundTripper of the app's does so too.
func TestOneAttemptIsOneRequest(t *testing.T) {
	for name, kept := range map[string]bool{"new connections": false, "kept connections": true} {
		t.Run(name, func(t *testing.T) {
			var reused atomic.Int64
			s := newRawServer(t, func(s *rawServer, conn net.Conn) {
				r := bufio.NewReader(conn)
				for first := true; s.read(r); first = false {
					if !first {
						reused.Add(1)
					}
					if s.count()%2 == 0 {
						_ = conn.(*net.TCPConn).SetLinger(0) // reset
						return
					}
					_, _ = io.WriteString(conn, "HTTP/1.1 204 No Content\r\n\r\n")
				}
			})
			cfg := s.config()
			if kept {
				pool := &http.Transport{}
				t.Cleanup(pool.CloseIdleConnections)
				cfg.AllowedNetworks, cfg.RoundTripper = nil, keyed{pool}
			}
			requireOneEach(t, newTransport(t, cfg), s)
			require.Equal(t, kept, reused.Load() > 0)
		})
	}
}

// keyed adds the header for which net/http takes a POST to be harmless when sent again.
type keyed struct{ http.RoundTripper }

func (k keyed) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Idempotency-Key", "key")
	return k.RoundTripper.RoundTrip(r)
}

// requireOneEach makes attempts, of which every second breaks.
func requireOneEach(t *testing.T, transport outbox.Transport, s *rawServer) {
	t.Helper()
	for i := range 20 {
		err := send(t, transport, s.url())
		require.Equal(t, i+1, s.count())
		if i%2 == 0 {
			require.NoError(t, err)
			continue
		}
		require.Equal(t, policy.Failure{Category: policy.CategoryNetwork, Code: "no_answer", OutcomeUnknown: true}, failure(t, err))
	}
}

func TestBrokenAnswers(t *testing.T) {
	unknown := policy.Failure{Category: policy.CategoryNetwork, Code: "no_answer", OutcomeUnknown: true}
	for name, text := range map[string]string{
		"none": "", "garbage": "\x00\xff\x00\r\n\r\n", "no HTTP": "220 mail.example ESMTP\r\n", "cut": "HTTP/1.1 200 OK\r\nContent-Le",
		"status": "HTTP/1.1 abc OK\r\n\r\n", "endless status": "HTTP/1.1 200 " + string(make([]byte, 1<<20)),
		"header of 1 MiB": "HTTP/1.1 200 OK\r\nA: " + strings.Repeat("a", 1<<20) + "\r\n\r\n",
		"length":          "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			s := newRawServer(t, answers(text))
			require.Equal(t, unknown, failure(t, send(t, newTransport(t, s.config()), s.url())))
			require.Equal(t, 1, s.count())
		})
	}
	for name, text := range map[string]string{
		"body cut short":  "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc",
		"broken chunks":   "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
		"body of 1 MiB":   "HTTP/1.1 200 OK\r\n\r\n" + string(make([]byte, 1<<20)),
		"two answers":     "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 500 No\r\n\r\n",
		"no gzip in gzip": "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
		"hints before":    "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			s := newRawServer(t, answers(text))
			require.NoError(t, send(t, newTransport(t, s.config()), s.url()))
		})
	}
}

// TestSlowBodies has the status come at once and the body never end; the status is all that counts.
func TestSlowBodies(t *testing.T) {
	for name, handle := range map[string]func(*rawServer, net.Conn){
		"none":      answersAndStays("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n"),
		"unending":  answersAndStays("HTTP/1.1 200 OK\r\n\r\nabc"),
		"switching": answersAndStays("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"),
	} {
		t.Run(name, func(t *testing.T) {
			s := newRawServer(t, handle)
			transport := newTransport(t, s.config())
			began := time.Now()
			err := send(t, transport, s.url())
			require.Less(t, time.Since(began), patience/2)
			if name == "switching" {
				require.Equal(t, "101", failure(t, err).Code)
				return
			}
			require.NoError(t, err)
		})
	}
}

func TestHanging(t *testing.T) {
	stays := func(_ *rawServer, conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }
	for name, c := range map[string]struct {
		handle func(*rawServer, net.Conn)
		scheme string
		sent   bool
	}{
		"never greets":   {stays, "https", false},
		"never answers":  {stays, "http", true},
		"half a header":  {answersAndStays("HTTP/1.1 200 OK\r\nContent-"), "http", true},
		"byte by byte":   {drips("HTTP/1.1 200 OK and on and on"), "http", true},
		"hints for ever": {drips("HTTP/1.1 103 Early Hints\r\n\r\n"), "http", true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newRawServer(t, c.handle)
			url := c.scheme + "://" + s.Addr().String()
			cfg := s.config()
			want := policy.Failure{Category: policy.CategoryTimeout, Code: "timeout", OutcomeUnknown: c.sent}
			ctx, cancel := context.WithTimeout(context.Background(), 150*time.Millisecond)
			defer cancel()
			requireEnds(t, ctx, cfg, url, want)

			cfg.Timeout = 150 * time.Millisecond
			requireEnds(t, context.Background(), cfg, url, want)

			cancelled, cancel := context.WithCancel(context.Background())
			time.AfterFunc(150*time.Millisecond, cancel)
			want.Code = "canceled"
			requireEnds(t, cancelled, s.config(), url, want)
		})
	}
}

// requireEnds wants Send to end 150 ms after its beginning, and not much later: a busy machine may be slow.
func requireEnds(t *testing.T, ctx context.Context, cfg webhook.Config, url string, want policy.Failure) {
	t.Helper()
	began := time.Now()
	_, err := newTransport(t, cfg).Send(ctx, delivery(url))
	took := time.Since(began)
	require.Equal(t, want, failure(t, err))
	require.Equal(t, policy.Transient, policy.Classify(err))
	require.Greater(t, took, 100*time.Millisecond)
	require.Less(t, took, 2*time.Second)
}

// TestNothingWasSent has attempts that fail before the request leaves.
func TestNothingWasSent(t *testing.T) {
	s := newRawServer(t, answers(""))
	require.NoError(t, s.Close())
	f := failure(t, send(t, newTransport(t, s.config()), s.url()))
	require.Equal(t, policy.Failure{Category: policy.CategoryNetwork, Code: "connect"}, f)

	refusing := &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		return nil, fmt.Errorf("no nameserver for %s", secret)
	}}
	cfg := s.config()
	cfg.Resolver = refusing
	f = failure(t, send(t, newTransport(t, cfg), fmt.Sprintf("http://hooks.example:%d", cfg.Ports[0])))
	require.Equal(t, policy.Failure{Category: policy.CategoryNetwork, Code: "dns"}, f)

	silent := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	cfg.Resolver, cfg.Timeout = silent, 150*time.Millisecond
	requireEnds(t, context.Background(), cfg, fmt.Sprintf("http://hooks.example:%d", cfg.Ports[0]),
		policy.Failure{Category: policy.CategoryTimeout, Code: "timeout"})
}

// TestNothingIsLogged has an endpoint send what nobody asked for, which net/http logs on a connection that it keeps.
func TestNothingIsLogged(t *testing.T) {
	var logged bytes.Buffer
	log.SetOutput(&logged)
	defer log.SetOutput(os.Stderr)
	s := newRawServer(t, answersAndStays("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 500 "+secret+"\r\n\r\n"))
	require.NoError(t, send(t, newTransport(t, s.config()), s.url()))
	require.NoError(t, s.Close())
	require.Empty(t, logged.String())
}

// TestConnectingEndsWithTheAttempt has a server that never greets: net/http would go on waiting for it.
func TestConnectingEndsWithTheAttempt(t *testing.T) {
	left := make(chan struct{})
	s := newRawServer(t, func(_ *rawServer, conn net.Conn) {
		_, _ = io.Copy(io.Discard, conn)
		close(left)
	})
	ctx, cancel := context.WithTimeout(context.Background(), 150*time.Millisecond)
	defer cancel()
	_, err := newTransport(t, s.config()).Send(ctx, delivery("https://"+s.Addr().String()))
	require.Equal(t, "timeout", failure(t, err).Code)
	select {
	case <-left:
	case <-time.After(5 * time.Second): // it would go on for ten
		require.Fail(t, "the connection outlives its attempt")
	}
}
