package transporttest

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestProxy(t *testing.T) {
	heard := make(chan struct{}, 10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		heard <- struct{}{}
		_, _ = io.WriteString(w, "hello")
	}))
	defer server.Close()
	p := NewProxy(t, server.Listener.Addr().String())

	conn, err := net.Dial("tcp", p.Addr())
	require.NoError(t, err)
	defer conn.Close() //nolint:errcheck // the proxy may have
	ask := func() { _, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n") }
	answer := func() error {
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err == nil {
			_, err = io.Copy(io.Discard, response.Body)
		}
		return err
	}
	ask()
	require.NoError(t, answer())
	<-heard

	p.Hold()
	ask()
	<-heard // the request arrives
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(20*time.Millisecond)))
	require.Error(t, answer(), "an answer although it is held back")
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(patience)))
	p.Pass()
	require.NoError(t, answer())

	p.Refuse()
	require.ErrorIs(t, answer(), io.ErrUnexpectedEOF)
	_, err = http.Get("http://" + p.Addr())
	require.Error(t, err)
	p.Pass()
	response, err := http.Get("http://" + p.Addr())
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
}
