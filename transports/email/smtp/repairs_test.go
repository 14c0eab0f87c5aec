package smtp_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox/policy"
	"github.com/gorm-outbox/outbox/transports/email/smtp"
	"github.com/stretchr/testify/require"
)

// drip says a byte now and then until the client goes away.
func (s script) drip() {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		s.silence()
	}()
	for {
		select {
		case <-tick.C:
			_, _ = s.Conn.Write([]byte("2"))
		case <-gone:
			return
		}
	}
}

// The client library dials under the context and talks without it.
func TestEndOfContextEndsTheConversation(t *testing.T) {
	after := func(word string, then func(script)) func(script) {
		return func(s script) {
			if s.upTo(word) {
				then(s)
			}
		}
	}
	for name, c := range map[string]struct {
		server  func(script)
		mode    smtp.TLSMode
		unknown bool
	}{
		"no greeting":         {server: script.silence, mode: smtp.NoTLS},
		"no handshake":        {server: script.silence, mode: smtp.ImplicitTLS},
		"greeting in drips":   {server: script.drip, mode: smtp.NoTLS},
		"silence after EHLO":  {server: after("EHLO", script.silence), mode: smtp.NoTLS},
		"silence after MAIL":  {server: after("MAIL", script.silence), mode: smtp.NoTLS},
		"silence after RCPT":  {server: after("RCPT", script.silence), mode: smtp.NoTLS},
		"silence after DATA":  {server: after("DATA", script.silence), mode: smtp.NoTLS},
		"silence after dot":   {server: after(".\r\n", script.silence), mode: smtp.NoTLS, unknown: true},
		"drips after the dot": {server: after(".\r\n", script.drip), mode: smtp.NoTLS, unknown: true},
	} {
		t.Run(name, func(t *testing.T) {
			sender := newSender(t, smtp.Config{Port: startScript(t, c.server), TLS: c.mode})
			ctx := briefly(t)
			ended := make(chan time.Time, 1)
			context.AfterFunc(ctx, func() { ended <- time.Now() })

			_, err := sender.Send(ctx, mail())

			require.Less(t, time.Since(<-ended), 100*time.Millisecond)
			requireFailure(t, err, policy.Transient, policy.Failure{
				Category: policy.CategoryTimeout, Code: "timeout", OutcomeUnknown: c.unknown,
			})
		})
	}
}

// A server that stops reading holds the client in a write.
func TestEndOfContextEndsAWrite(t *testing.T) {
	reached, stopped := make(chan struct{}), make(chan struct{})
	port := startScript(t, func(s script) {
		_ = s.Conn.(*net.TCPConn).SetReadBuffer(4096)
		if s.upTo("DATA") {
			close(reached)
			s.say("354 go on")
			<-stopped
		}
	})
	t.Cleanup(func() { close(stopped) })
	sender := newSender(t, smtp.Config{Port: port, TLS: smtp.NoTLS, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		if err == nil {
			err = conn.(*net.TCPConn).SetWriteBuffer(4096)
		}
		return conn, err
	}})
	e := mail()
	e.Text = strings.Repeat("a line of text that fills the buffers of both sides\n", 20_000)
	_, err := sender.Send(briefly(t), e)
	<-reached
	requireFailure(t, err, policy.Transient, policy.Failure{Category: policy.CategoryTimeout, Code: "timeout"})
}

func TestCanceledContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	port := startScript(t, func(s script) {
		cancel()
		s.silence()
	})
	_, err := plainSender(t, port).Send(ctx, mail())
	requireFailure(t, err, policy.Transient, policy.Failure{Category: policy.CategoryTimeout, Code: "canceled"})
}

// The client library calls a lost connection permanent.
func TestLossOfTheConnectionIsTransient(t *testing.T) {
	for word, unknown := range map[string]bool{"EHLO": false, "MAIL": false, "RCPT": false, "DATA": false, ".\r\n": true} {
		port := startScript(t, func(s script) { s.upTo(word) })
		_, err := plainSender(t, port).Send(context.Background(), mail())
		requireFailure(t, err, policy.Transient, policy.Failure{
			Category: policy.CategoryNetwork, Code: "connection_lost", OutcomeUnknown: unknown,
		})
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	_, err = plainSender(t, listener.Addr().(*net.TCPAddr).Port).Send(context.Background(), mail())
	requireFailure(t, err, policy.Transient, policy.Failure{Category: policy.CategoryNetwork, Code: "connect"})
}

// The server has taken the mail: an error for what comes after would send it again.
func TestWhatComesAfterAcceptanceDoesNotMatter(t *testing.T) {
	for name, then := range map[string]func(script){
		"closed":   func(script) {},
		"reset":    func(s script) { _ = s.Conn.(*net.TCPConn).SetLinger(0) },
		"refused":  func(s script) { s.hear("QUIT"); s.say("500 what?") },
		"nonsense": func(s script) { s.say("§§§") },
		"silent":   script.silence,
	} {
		t.Run(name, func(t *testing.T) {
			port := startScript(t, func(s script) {
				if s.upTo(".\r\n") {
					s.say("250 2.0.0 queued")
					then(s)
				}
			})
			began := time.Now()
			id, err := plainSender(t, port).Send(context.Background(), mail())
			require.NoError(t, err)
			require.NotEmpty(t, id)
			require.Less(t, time.Since(began), 3*time.Second)
		})
	}
}

// Another yes than 250 is a yes.
func TestAnyYesIsAcceptance(t *testing.T) {
	port := startScript(t, func(s script) {
		if s.upTo(".\r\n") {
			s.say("252 perhaps")
		}
	})
	_, err := plainSender(t, port).Send(context.Background(), mail())
	require.NoError(t, err)
}

// Several recipients in one mail would be refused together.
func TestOneRecipientPerMail(t *testing.T) {
	server := startServer(t, false, nil)
	_, err := plainSender(t, server.port).Send(context.Background(), mail())
	require.NoError(t, err)
	require.Equal(t, []string{"ana@example.test"}, server.got()[0].to)
}

// Replies before MAIL reach the caller by another way than those after it.
func TestRepliesBeforeTheMail(t *testing.T) {
	hello := func(extensions ...string) func(script) bool {
		return func(s script) bool {
			s.say("220 mail.example")
			ok := s.hear("EHLO")
			s.say("250-mail.example", strings.Join(append(extensions, "250 SIZE 1000000"), "\r\n"))
			return ok
		}
	}
	refuse := func(first func(script) bool, word string, replies ...string) func(script) {
		return func(s script) {
			if first(s) && s.hear(word) {
				s.say(replies...)
				s.silence()
			}
		}
	}
	auth := smtp.Config{TLS: smtp.NoTLS, Username: username, Password: password}
	network, credentials := policy.CategoryNetwork, policy.CategoryCredentials
	for name, c := range map[string]struct {
		server   func(script)
		cfg      smtp.Config
		category policy.Category
		class    policy.Class
		code     string
	}{
		"greeting 554": {func(s script) { s.say("554 5.7.1 go away"); s.silence() }, smtp.Config{TLS: smtp.NoTLS}, network, policy.Transient, "554 5.7.1"},
		"greeting 421": {func(s script) { s.say("421 busy"); s.silence() }, smtp.Config{TLS: smtp.NoTLS}, network, policy.Transient, "421"},
		"EHLO 421": {func(s script) {
			s.say("220 hi")
			s.hear("EHLO")
			s.say("421 4.3.2 busy")
			s.hear("HELO")
			s.say("421 4.3.2 busy")
		},
			smtp.Config{TLS: smtp.NoTLS}, network, policy.Transient, "421 4.3.2"},
		"STARTTLS 454": {refuse(hello("250-STARTTLS"), "STARTTLS", "454 4.7.0 not now"), smtp.Config{}, network, policy.Transient, "454 4.7.0"},
		"AUTH 535":     {refuse(hello("250-AUTH PLAIN"), "AUTH", "535 5.7.8 no", "501 aborted", "221 bye"), auth, credentials, policy.Permanent, "535 5.7.8"},
		"AUTH 534":     {refuse(hello("250-AUTH PLAIN"), "AUTH", "534 5.7.9 too weak", "501 aborted", "221 bye"), auth, credentials, policy.Permanent, "534 5.7.9"},
		"AUTH 454":     {refuse(hello("250-AUTH PLAIN"), "AUTH", "454 4.7.0 later", "501 aborted", "221 bye"), auth, network, policy.Transient, "454 4.7.0"},
		"AUTH 550":     {refuse(hello("250-auth plain", "250-AUTH PLAIN"), "AUTH", "550 no", "501 aborted", "221 bye"), auth, credentials, policy.Permanent, "550"},
	} {
		t.Run(name, func(t *testing.T) {
			c.cfg.Port = startScript(t, c.server)
			_, err := newSender(t, c.cfg).Send(context.Background(), mail())
			requireFailure(t, err, c.class, policy.Failure{Category: c.category, Code: c.code})
		})
	}
}

// Empty and senseless replies make the client library's helpers index an empty text.
func TestGarbageFromTheServer(t *testing.T) {
	var conversation atomic.Uint64
	replies := []string{"", "\r\n", "250", "2", "250-", "-", "999 x", "000", "220\x00", "25\xff ok", "354", "550", "550 \r\n", "4", "334 ===", "235",
		"250-AUTH SCRAM-SHA-256 SCRAM-SHA-1 CRAM-MD5\r\n250 x", "334 cj0sPTtTaT0=", "334 cj1hLHM9YixpPWM=", "220 ok", "250 ok", "250-\r\n250-\r\n250 "}
	cfg := smtp.Config{TLS: smtp.NoTLS, Username: username, Password: password}
	cfg.Port = startScript(t, func(s script) {
		random := rand.New(rand.NewPCG(1, conversation.Add(1)))
		for range 12 {
			s.say(replies[random.IntN(len(replies))])
		}
	})
	for i := range 150 {
		cfg.Mechanism = []smtp.Mechanism{"", smtp.ScramSHA256, smtp.ScramSHA1, smtp.CramMD5}[i%4]
		sender := newSender(t, cfg)
		require.NotPanics(t, func() {
			_, err := sender.Send(briefly(t), mail())
			if err != nil {
				_, ok := policy.AsFailure(err)
				require.True(t, ok, err)
				require.NotContains(t, fmt.Sprintf("%+v", err), password)
			}
		})
	}
}

// A server that never ends its reply is not collected in memory.
func TestEndlessReply(t *testing.T) {
	port := startScript(t, func(s script) {
		line := bytes.Repeat([]byte("220-endless\r\n"), 1000)
		for {
			if _, err := s.Conn.Write(line); err != nil {
				return
			}
		}
	})
	_, err := plainSender(t, port).Send(context.Background(), mail())
	requireFailure(t, err, policy.Transient, policy.Failure{Category: policy.CategoryNetwork, Code: "protocol"})
}
