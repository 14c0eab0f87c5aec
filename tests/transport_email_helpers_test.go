package tests

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/transports/email"
	"github.com/gorm-outbox/outbox/transports/email/resend"
	"github.com/gorm-outbox/outbox/transports/email/smtp"
	"github.com/stretchr/testify/require"
)

// mails is the topic of the e-mails in these tests.
const mails = "email"

// tcpServer serves every connection by handle, which ends when the client or the test does, and gives the address.
func tcpServer(t testing.TB, handle func(conn net.Conn, r *bufio.Reader)) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var running sync.WaitGroup
	var conns sync.Map
	running.Add(1)
	go func() {
		defer running.Done()
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conns.Store(conn, true)
			running.Add(1)
			go func() {
				defer running.Done()
				defer conn.Close()
				handle(conn, bufio.NewReader(conn))
			}()
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		conns.Range(func(conn, _ any) bool { _ = conn.(net.Conn).Close(); return true })
		running.Wait()
	})
	return listener.Addr().String()
}

// silent says nothing until the client is gone.
func silent(_ net.Conn, r *bufio.Reader) { _, _ = io.Copy(io.Discard, r) }

// dripping says a byte of the text each second until the client is gone.
func dripping(text string) func(net.Conn, *bufio.Reader) {
	return func(conn net.Conn, r *bufio.Reader) {
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			silent(conn, r)
		}()
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for i := range len(text) {
			_, _ = io.WriteString(conn, text[i:i+1])
			select {
			case <-tick.C:
			case <-gone:
				return
			}
		}
		<-gone
	}
}

// asked serves once an HTTP request has come.
func asked(then func(net.Conn, *bufio.Reader)) func(net.Conn, *bufio.Reader) {
	return func(conn net.Conn, r *bufio.Reader) {
		if _, err := http.ReadRequest(r); err == nil {
			then(conn, r)
		}
	}
}

// headersOnly begins an HTTP answer and leaves it at that.
func headersOnly(conn net.Conn, r *bufio.Reader) {
	_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n")
	silent(conn, r)
}

// smtpUpTo speaks SMTP well until the client has said the word, and then no more. An empty word: to the end.
func smtpUpTo(word string) func(net.Conn, *bufio.Reader) {
	replies := map[string]string{"DATA": "354 go on", "QUIT": "221 bye", ".": "250 2.0.0 queued"}
	return func(conn net.Conn, r *bufio.Reader) {
		_, _ = io.WriteString(conn, "220 mail.example\r\n")
		for inMail := false; ; {
			line, err := r.ReadString('\n')
			if err != nil {
				return
			}
			said, _, _ := strings.Cut(strings.TrimSpace(line), " ")
			if inMail && said != "." {
				continue
			}
			if inMail = said == "DATA"; said == word {
				silent(conn, r)
				return
			}
			reply, ok := replies[said]
			if !ok {
				reply = "250 ok"
			}
			_, _ = io.WriteString(conn, reply+"\r\n")
		}
	}
}

// resendAt speaks to Resend's double at an address.
func resendAt(t testing.TB, address string) outbox.Transport {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(client.CloseIdleConnections)
	sender, err := resend.New(resend.Config{APIKey: "re_test", BaseURL: "http://" + address, Client: client})
	require.NoError(t, err)
	return emailsBy(t, sender)
}

// smtpAt speaks to a mail server at an address.
func smtpAt(t testing.TB, address string) outbox.Transport {
	t.Helper()
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	sender, err := smtp.New(smtp.Config{Host: "mail.example", TLS: smtp.NoTLS, Dial: dial})
	require.NoError(t, err)
	return emailsBy(t, sender)
}

func emailsBy(t testing.TB, sender email.Sender) outbox.Transport {
	t.Helper()
	render := func(_ context.Context, d outbox.Delivery) (email.Message, error) {
		return email.Message{
			Subject: "About " + d.Type, Text: string(d.Payload), HTML: "<p>" + d.MessageID + "</p>",
			Headers: map[string]string{"X-A": "1", "X-B": "2", "X-C": "3", "X-D": "4"},
		}, nil
	}
	transport, err := email.New(email.Config{From: "Shop <orders@shop.example>", Render: render, Sender: sender})
	require.NoError(t, err)
	return transport
}

// resendDouble honours idempotency keys as Resend does. While it is slow it accepts as ever, but does not say so.
type resendDouble struct {
	*httptest.Server
	mu       sync.Mutex
	slow     bool
	requests map[string][]string // bodies by key, of all requests
	sent     map[string]string   // body by key, of the mails that were sent
}

func newResendDouble(t testing.TB) *resendDouble {
	d := &resendDouble{requests: map[string][]string{}, sent: map[string]string{}}
	d.Server = httptest.NewServer(d)
	t.Cleanup(d.Close)
	return d
}

func (d *resendDouble) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key := r.Header.Get("Idempotency-Key")
	read, _ := io.ReadAll(r.Body)
	body := string(read)
	d.mu.Lock()
	d.requests[key] = append(d.requests[key], body)
	first, known := d.sent[key]
	if !known {
		d.sent[key] = body
	}
	slow := d.slow
	d.mu.Unlock()
	switch {
	case slow:
		<-r.Context().Done()
	case known && first != body:
		w.WriteHeader(http.StatusConflict)
		_, _ = io.WriteString(w, `{"name":"invalid_idempotent_request"}`)
	default:
		_, _ = fmt.Fprintf(w, `{"id":"mail of %s"}`, key)
	}
}

func (d *resendDouble) setSlow(slow bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.slow = slow
}

func (d *resendDouble) address() string { return d.Listener.Addr().String() }
