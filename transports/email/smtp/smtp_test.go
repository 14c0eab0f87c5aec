package smtp_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"mime/quotedprintable"
	"net"
	netmail "net/mail"
	"strings"
	"testing"

	"github.com/emersion/go-sasl"
	gosmtp "github.com/emersion/go-smtp"
	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/gorm-outbox/outbox/transports/email"
	"github.com/gorm-outbox/outbox/transports/email/smtp"
	"github.com/stretchr/testify/require"
)

func TestSendByEachMode(t *testing.T) {
	for _, mode := range []smtp.TLSMode{smtp.StartTLS, smtp.ImplicitTLS, smtp.NoTLS} {
		t.Run(string(mode), func(t *testing.T) {
			server := startServer(t, mode == smtp.ImplicitTLS, nil)
			sender := newSender(t, smtp.Config{Port: server.port, TLS: mode, TLSConfig: server.roots})

			id, err := sender.Send(context.Background(), mail())

			require.NoError(t, err)
			require.Len(t, server.got(), 1)
			got := server.got()[0]
			require.Equal(t, "orders@shop.example", got.from)
			require.Equal(t, []string{"ana@example.test"}, got.to)
			require.Equal(t, mode != smtp.NoTLS, got.tls)
			require.Equal(t, id, got.message(t).Header.Get("Message-Id"))
		})
	}
}

func TestSendLogsIn(t *testing.T) {
	mechanisms := map[string]func(s *session) sasl.Server{
		"PLAIN": func(s *session) sasl.Server {
			return sasl.NewPlainServer(func(_, name, pass string) error { return s.login(name, pass) })
		},
		"LOGIN":   func(s *session) sasl.Server { return &loginServer{session: s} },
		"XOAUTH2": func(s *session) sasl.Server { return &oauthServer{s} },
	}
	for _, mechanism := range []smtp.Mechanism{"", smtp.Plain, smtp.Login, smtp.XOAuth2} {
		for _, right := range []bool{true, false} {
			server := startServer(t, false, nil)
			server.auth = mechanisms
			cfg := smtp.Config{Port: server.port, TLSConfig: server.roots, Username: username, Password: password, Mechanism: mechanism}
			if !right {
				cfg.Password = "wrong"
			}
			_, err := newSender(t, cfg).Send(context.Background(), mail())

			if right {
				require.NoError(t, err, mechanism)
				require.Equal(t, username, server.got()[0].user)
				continue
			}
			f, _ := policy.AsFailure(err)
			require.Equal(t, policy.CategoryCredentials, f.Category, mechanism)
			require.Equal(t, policy.Permanent, policy.Classify(err))
			require.Equal(t, "535 5.7.8", f.Code)
			require.Empty(t, server.got())
		}
	}
}

// loginServer speaks LOGIN, which go-sasl has no server for.
type loginServer struct {
	*session
	name string
	step int
}

func (l *loginServer) Next(response []byte) (challenge []byte, done bool, err error) {
	l.step++
	switch l.step {
	case 1:
		return []byte("Username:"), false, nil
	case 2:
		l.name = string(response)
		return []byte("Password:"), false, nil
	default:
		return nil, true, l.login(l.name, string(response))
	}
}

type oauthServer struct{ *session }

func (o *oauthServer) Next(response []byte) (challenge []byte, done bool, err error) {
	name, token, _ := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(string(response), "user="), "\x01\x01"), "\x01auth=Bearer ")
	return nil, true, o.login(name, token)
}

func TestSendWithoutWhatItNeeds(t *testing.T) {
	bare := startServer(t, false, func(s *gosmtp.Server) { s.TLSConfig = nil })
	certified := startServer(t, false, nil)
	for name, c := range map[string]struct {
		cfg      smtp.Config
		to       string
		category policy.Category
		class    policy.Class
		code     string
	}{
		"no STARTTLS":         {smtp.Config{Port: bare.port}, "", policy.CategoryNetwork, policy.Transient, "starttls_missing"},
		"unknown certificate": {smtp.Config{Port: certified.port}, "", policy.CategoryNetwork, policy.Transient, "tls"},
		"no TLS at all": {
			smtp.Config{Port: bare.port, TLS: smtp.ImplicitTLS}, "", policy.CategoryNetwork, policy.Transient, "tls",
		},
		"another name": {
			smtp.Config{Port: certified.port, TLSConfig: &tls.Config{RootCAs: certified.roots.RootCAs, ServerName: "other.test"}}, "",
			policy.CategoryNetwork, policy.Transient, "tls",
		},
		"no AUTH": {
			smtp.Config{Port: certified.port, TLSConfig: certified.roots, Username: username, Password: password}, "",
			policy.CategoryCredentials, policy.Transient, "auth_missing",
		},
		"no SMTPUTF8": {
			smtp.Config{Port: bare.port, TLS: smtp.NoTLS}, "peña@example.test", policy.CategoryNumber, policy.Permanent, "smtputf8_missing",
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := mail()
			if c.to != "" {
				e.To.Address = c.to
			}
			_, err := newSender(t, c.cfg).Send(context.Background(), e)
			requireFailure(t, err, c.class, policy.Failure{Category: c.category, Code: c.code})
		})
	}
	require.Empty(t, bare.got())
	require.Empty(t, certified.got())
}

// requireFailure compares what decides about a message.
func requireFailure(t testing.TB, err error, class policy.Class, want policy.Failure) {
	t.Helper()
	require.Error(t, err)
	f, ok := policy.AsFailure(err)
	require.True(t, ok, err)
	require.Equal(t, class, policy.Classify(err), err)
	require.Equal(t, want.Category, f.Category, err)
	require.Equal(t, want.Code, f.Code)
	require.Equal(t, want.OutcomeUnknown, f.OutcomeUnknown, err)
	require.Equal(t, want.RetryAfter, f.RetryAfter, err)
	require.Equal(t, want.RetryAfter > 0, f.RetryAlone && f.RetryAfter > 0, "others need not wait: %v", err)
	require.NoError(t, f.Err, "nothing of the server's is passed on")
}

func TestSendUTF8AddressOnlyWhereNeeded(t *testing.T) {
	server := startServer(t, false, func(s *gosmtp.Server) { s.EnableSMTPUTF8 = true })
	e := mail()
	_, err := plainSender(t, server.port).Send(context.Background(), e)
	require.NoError(t, err)
	e.To.Address = "peña@example.test"
	_, err = plainSender(t, server.port).Send(context.Background(), e)
	require.NoError(t, err)

	require.False(t, server.got()[0].utf8)
	require.True(t, server.got()[1].utf8)
	require.Equal(t, []string{"peña@example.test"}, server.got()[1].to)
}

func TestMail(t *testing.T) {
	server := startServer(t, false, nil)
	e := mail()
	e.From.Name, e.ReplyTo = "Café", netmail.Address{Name: "Help", Address: "help@shop.example"}
	e.Subject, e.Text, e.HTML = "¡Gracias! "+strings.Repeat("ñ ", 80), "Hola\n.\nAdiós", "<p>Hola</p>"
	e.Headers = map[string]string{"X-Order": "4711", "List-Unsubscribe": "<https://shop.example/u?t=1>"}

	_, err := plainSender(t, server.port).Send(context.Background(), e)
	require.NoError(t, err)

	m := server.got()[0].message(t)
	decoded := func(name string) string {
		text, err := new(mime.WordDecoder).DecodeHeader(m.Header.Get(name))
		require.NoError(t, err)
		return text
	}
	require.Equal(t, strings.TrimSpace(e.Subject), decoded("Subject"))
	require.Equal(t, "Café <orders@shop.example>", strings.ReplaceAll(decoded("From"), `"`, ""))
	require.Equal(t, `"Help" <help@shop.example>`, decoded("Reply-To"))
	require.Equal(t, "<ana@example.test>", decoded("To"))
	require.Equal(t, "4711", m.Header.Get("X-Order"))
	require.Equal(t, "<https://shop.example/u?t=1>", m.Header.Get("List-Unsubscribe"))
	_, err = m.Header.Date()
	require.NoError(t, err)
	require.Empty(t, m.Header.Get("User-Agent"))

	kind, parameters, err := mime.ParseMediaType(m.Header.Get("Content-Type"))
	require.NoError(t, err)
	require.Equal(t, "multipart/alternative", kind)
	parts := multipart.NewReader(m.Body, parameters["boundary"])
	for _, want := range []struct{ kind, text string }{{"text/plain", "Hola\r\n.\r\nAdiós"}, {"text/html", "<p>Hola</p>"}} {
		part, err := parts.NextPart()
		require.NoError(t, err)
		require.True(t, strings.HasPrefix(part.Header.Get("Content-Type"), want.kind))
		text, err := io.ReadAll(part) // NextPart has undone the quoted-printable
		require.NoError(t, err)
		require.Equal(t, want.text, strings.TrimSuffix(string(text), "\r\n"))
	}
}

func TestMailOfOnePart(t *testing.T) {
	server := startServer(t, false, nil)
	for kind, e := range map[string]email.Email{
		"text/plain": {Text: "¡Hola!"}, "text/html": {HTML: "¡Hola!"},
	} {
		e.From, e.To, e.Subject = mail().From, mail().To, "Hi"
		_, err := plainSender(t, server.port).Send(context.Background(), e)
		require.NoError(t, err)
		got := server.got()
		m := got[len(got)-1].message(t)
		require.True(t, strings.HasPrefix(m.Header.Get("Content-Type"), kind), m.Header)
		text, err := io.ReadAll(quotedprintable.NewReader(m.Body))
		require.NoError(t, err)
		require.Equal(t, "¡Hola!", strings.TrimSpace(string(text)))
	}
}

// A run of spaces must not fold into a line that looks like the end of the headers.
func TestMailWithRunsOfSpaces(t *testing.T) {
	server := startServer(t, false, nil)
	e := mail()
	e.Subject = "a" + strings.Repeat(" ", 500) + "X-Injected: b"
	e.From.Name = "Shop" + strings.Repeat(" ", 500) + "X-Injected: b"
	e.Headers = map[string]string{"X-Note": "a" + strings.Repeat(" ", 500) + "b"}
	_, err := plainSender(t, server.port).Send(context.Background(), e)
	require.NoError(t, err)

	head, _, _ := strings.Cut(server.got()[0].content, "\r\n\r\n")
	for _, line := range strings.Split(head, "\r\n") {
		require.NotEmpty(t, strings.TrimSpace(line))
	}
	require.Empty(t, server.got()[0].message(t).Header.Get("X-Injected"))
}

func TestMessageIDIsThatOfTheKey(t *testing.T) {
	server := startServer(t, false, nil)
	send := func(key, from string) string {
		e := mail()
		e.ProviderKey, e.From.Address = key, from
		id, err := plainSender(t, server.port).Send(context.Background(), e)
		require.NoError(t, err)
		got := server.got()
		require.Equal(t, id, got[len(got)-1].message(t).Header.Get("Message-Id"))
		return id
	}
	first := send("tenant:1", "a@shop.example")
	require.Equal(t, first, send("tenant:1", "a@shop.example"))
	require.Regexp(t, `^<[a-z2-7]{52}@shop\.example>$`, first)
	require.NotEqual(t, first, send("tenant:2", "a@shop.example"))
	require.NotEqual(t, first, send("other:1", "a@shop.example"))
}

func TestNewRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		cfg  smtp.Config
		says []string
	}{
		"nothing":   {smtp.Config{}, []string{"Host is empty"}},
		"host":      {smtp.Config{Host: "smtp://a b"}, []string{"Host"}},
		"port":      {smtp.Config{Host: "h", Port: 70000}, []string{"Port is 70000"}},
		"negative":  {smtp.Config{Host: "h", Port: -1}, []string{"Port is -1"}},
		"mode":      {smtp.Config{Host: "h", TLS: "ssl"}, []string{"TLS"}},
		"clear":     {smtp.Config{Host: "mail.example", TLS: smtp.NoTLS, Username: "u", Password: password}, []string{"in the clear"}},
		"no name":   {smtp.Config{Host: "h", Password: password}, []string{"Username"}},
		"mechanism": {smtp.Config{Host: "h", Username: "u", Mechanism: "NTLM"}, []string{"Mechanism"}},
		"lines":     {smtp.Config{Host: "h", Username: "u\r\nQUIT", Password: password}, []string{"line break"}},
		"hello":     {smtp.Config{Host: "h", Hello: "a\r\nb"}, []string{"Hello"}},
		"all": {
			smtp.Config{Port: 70000, Hello: "a b", Password: password}, []string{"Host", "Port", "Hello", "Username"},
		},
	} {
		_, err := smtp.New(c.cfg)
		require.ErrorIs(t, err, outbox.ErrInvalid, name)
		for _, text := range c.says {
			require.ErrorContains(t, err, text, name)
		}
		require.NotContains(t, err.Error(), password)
	}
}

func TestSendDialsAsTold(t *testing.T) {
	var address string
	dial := func(_ context.Context, network, a string) (net.Conn, error) {
		address = network + " " + a
		return nil, errors.New("dial: no route to " + password)
	}
	_, err := newSender(t, smtp.Config{Host: "mail.example", Dial: dial}).Send(context.Background(), mail())

	require.Equal(t, "tcp mail.example:587", address)
	requireFailure(t, err, policy.Transient, policy.Failure{Category: policy.CategoryNetwork, Code: "connect"})
	require.NotContains(t, err.Error(), password)
}
