package smtp_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"net"
	"net/http/httptest"
	netmail "net/mail"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/emersion/go-sasl"
	gosmtp "github.com/emersion/go-smtp"
	"github.com/gorm-outbox/outbox/transports/email"
	"github.com/gorm-outbox/outbox/transports/email/smtp"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	username = "shop"
	password = "pass-word-4711"
)

// letter is a mail as the server got it.
type letter struct {
	from    string
	to      []string
	user    string // who had logged in
	tls     bool
	utf8    bool
	content string
}

// message parses the content.
func (l letter) message(t testing.TB) *netmail.Message {
	t.Helper()
	m, err := netmail.ReadMessage(strings.NewReader(l.content))
	require.NoError(t, err)
	return m
}

// mailServer is a real server whose answers a test chooses.
type mailServer struct {
	host    string
	port    int
	roots   *tls.Config // for clients
	mu      sync.Mutex
	letters []letter
	onMail  error
	onRcpt  error
	onData  func(conn net.Conn) error // after the mail was read
	auth    map[string]func(s *session) sasl.Server
}

// startServer starts a server that accepts everything. change, which may be nil, comes before the start.
func startServer(t testing.TB, implicitTLS bool, change func(*gosmtp.Server)) *mailServer {
	t.Helper()
	certified := httptest.NewUnstartedServer(nil)
	certified.StartTLS()
	serverTLS := &tls.Config{Certificates: certified.TLS.Certificates}
	roots := x509.NewCertPool()
	roots.AddCert(certified.Certificate())
	certified.Close()

	m := &mailServer{host: "127.0.0.1", roots: &tls.Config{RootCAs: roots}}
	server := gosmtp.NewServer(gosmtp.BackendFunc(func(c *gosmtp.Conn) (gosmtp.Session, error) {
		return &session{server: m, conn: c}, nil
	}))
	server.Domain, server.AllowInsecureAuth, server.TLSConfig = "mail.example", true, serverTLS
	server.ErrorLog = log.New(io.Discard, "", 0)
	if change != nil {
		change(server)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	m.port = listener.Addr().(*net.TCPAddr).Port
	if implicitTLS {
		listener = tls.NewListener(listener, serverTLS)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-ended
	})
	return m
}

func (m *mailServer) got() []letter {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]letter(nil), m.letters...)
}

// set changes how the server answers from now on.
func (m *mailServer) set(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
}

type session struct {
	server *mailServer
	conn   *gosmtp.Conn
	letter letter
}

func (s *session) Reset()        { s.letter = letter{user: s.letter.user} }
func (s *session) Logout() error { return nil }

func (s *session) Mail(from string, o *gosmtp.MailOptions) error {
	s.letter.from, s.letter.utf8 = from, o.UTF8
	s.server.mu.Lock()
	defer s.server.mu.Unlock()
	return s.server.onMail
}

func (s *session) Rcpt(to string, _ *gosmtp.RcptOptions) error {
	s.letter.to = append(s.letter.to, to)
	s.server.mu.Lock()
	defer s.server.mu.Unlock()
	return s.server.onRcpt
}

func (s *session) Data(r io.Reader) error {
	content, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	s.letter.content = string(content)
	_, s.letter.tls = s.conn.TLSConnectionState()
	s.server.mu.Lock()
	s.server.letters = append(s.server.letters, s.letter)
	then := s.server.onData
	s.server.mu.Unlock()
	if then != nil {
		return then(s.conn.Conn())
	}
	return nil
}

func (s *session) AuthMechanisms() []string {
	var names []string
	for name := range s.server.auth {
		names = append(names, name)
	}
	return names
}

func (s *session) Auth(mechanism string) (sasl.Server, error) {
	make, ok := s.server.auth[mechanism]
	if !ok {
		return nil, gosmtp.ErrAuthUnknownMechanism
	}
	return make(s), nil
}

// login judges a name and a password.
func (s *session) login(name, pass string) error {
	if name != username || pass != password {
		return gosmtp.ErrAuthFailed
	}
	s.letter.user = name
	return nil
}

// script is a server that speaks word by word what a test says.
type script struct {
	net.Conn
	*bufio.Reader
}

func (s script) say(lines ...string) {
	_, _ = io.WriteString(s.Conn, strings.Join(lines, "\r\n")+"\r\n") // the client may be gone
}

// hear reads lines until one begins with the word, and reports whether it came.
func (s script) hear(word string) bool {
	for {
		line, err := s.Reader.ReadString('\n')
		if err != nil {
			return false
		}
		if strings.HasPrefix(line, word) {
			return true
		}
	}
}

// silence lasts until the client goes away.
func (s script) silence() { _, _ = io.Copy(io.Discard, s.Reader) }

// upTo speaks well until the client has said the word.
func (s script) upTo(word string) bool {
	s.say("220 mail.example")
	for _, step := range []struct{ word, reply string }{
		{"EHLO", "250 mail.example"}, {"MAIL", "250 2.1.0 ok"}, {"RCPT", "250 2.1.5 ok"}, {"DATA", "354 go on"}, {".\r\n", "250 2.0.0 queued"},
	} {
		if !s.hear(step.word) {
			return false
		}
		if step.word == word {
			return true
		}
		s.say(step.reply)
	}
	return true
}

// startScript serves every connection by handle, and gives the port. Connections are closed when handle returns and at
// the end of the test.
func startScript(t testing.TB, handle func(script)) (port int) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var open sync.WaitGroup
	var conns sync.Map
	open.Add(1)
	go func() {
		defer open.Done()
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conns.Store(conn, true)
			open.Add(1)
			go func() {
				defer open.Done()
				defer conn.Close()
				handle(script{conn, bufio.NewReader(conn)})
			}()
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		conns.Range(func(conn, _ any) bool { _ = conn.(net.Conn).Close(); return true })
		open.Wait()
	})
	return listener.Addr().(*net.TCPAddr).Port
}

func newSender(t testing.TB, cfg smtp.Config) email.Sender {
	t.Helper()
	if cfg.Host == "" {
		cfg.Host = "127.0.0.1"
	}
	sender, err := smtp.New(cfg)
	require.NoError(t, err)
	return sender
}

// plainSender speaks to a port without TLS.
func plainSender(t testing.TB, port int) email.Sender {
	t.Helper()
	return newSender(t, smtp.Config{Port: port, TLS: smtp.NoTLS})
}

// mail is one that any server takes.
func mail() email.Email {
	return email.Email{
		From: netmail.Address{Name: "Shop", Address: "orders@shop.example"}, To: netmail.Address{Address: "ana@example.test"},
		Subject: "Your order", Text: "Thank you.", ProviderKey: "tenant:key-1", MessageID: "m-1", Reference: "1-m-1", Attempt: 1,
	}
}

// briefly is a context that ends soon.
func briefly(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}
