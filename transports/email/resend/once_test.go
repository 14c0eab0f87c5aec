package resend_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/gorm-outbox/outbox/policy"
	"github.com/stretchr/testify/require"
)

// TestOneAttemptIsOneRequest has a server that answers the first request on a connection and breaks the connection when it
// has read the second: what net/http repeats by itself where the body can be had again and there is an Idempotency-Key.
func TestOneAttemptIsOneRequest(t *testing.T) {
	var requests atomic.Int64
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var open sync.WaitGroup
	open.Add(1)
	go func() {
		defer open.Done()
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			open.Add(1)
			go func() {
				defer open.Done()
				defer conn.Close()
				serveOnce(conn, &requests)
			}()
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		open.Wait()
	})
	sender := newSender(t, "http://"+listener.Addr().String())

	_, err = sender.Send(context.Background(), message())
	require.NoError(t, err)
	require.EqualValues(t, 1, requests.Load())

	_, err = sender.Send(context.Background(), message())
	requireFailure(t, err, policy.Transient, policy.Failure{Category: policy.CategoryNetwork, Code: "connection_lost", OutcomeUnknown: true})
	require.EqualValues(t, 2, requests.Load(), "the second attempt was one request")
}

// serveOnce answers one request, and reads another one and breaks off.
func serveOnce(conn net.Conn, requests *atomic.Int64) {
	reader := bufio.NewReader(conn)
	for answered := false; ; answered = true {
		request, err := http.ReadRequest(reader)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, request.Body)
		requests.Add(1)
		if answered {
			return
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n{\"id\":\"one\"}")
	}
}
