// Package smtp sends e-mails through a mail server, with github.com/wneessen/go-mail: [New] gives the sender for
// email.New.
//
// Each e-mail is a connection of its own with one recipient. SMTP knows no idempotency key, so a mail whose acceptance
// was not heard is sent again, and may arrive twice. All copies carry the same Message-ID, made of the provider key, by
// which mailboxes that look at it keep one; it is also the id that the outbox stores. Nothing else says that the server
// has already taken a mail: name topics for which twice is worse than never in ProcessorConfig.AtMostOnce.
package smtp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/transports/email"
)

// TLSMode says how a connection is encrypted.
type TLSMode string

// The modes. The zero value of [Config] is StartTLS.
const (
	StartTLS    TLSMode = "starttls" // connect in the clear and refuse to go on without STARTTLS; port 587
	ImplicitTLS TLSMode = "tls"      // TLS from the first byte; port 465
	NoTLS       TLSMode = "none"     // in the clear, for a server on this machine or in a network of one's own; port 25
)

// Mechanism is how a client proves who it is.
type Mechanism string

// The mechanisms. The zero value of [Config] chooses of those that the server offers, in this order, and never XOAUTH2.
const (
	ScramSHA256 Mechanism = "SCRAM-SHA-256"
	ScramSHA1   Mechanism = "SCRAM-SHA-1"
	Plain       Mechanism = "PLAIN"
	Login       Mechanism = "LOGIN"
	CramMD5     Mechanism = "CRAM-MD5"
	XOAuth2     Mechanism = "XOAUTH2" // Password is the access token
)

// Config says how to reach a mail server. Only Host is required.
type Config struct {
	// Host is the server's name, as in its certificate.
	Host string
	// Port is 1 to 65535; zero: 587, 465 or 25, as TLS says.
	Port int
	// TLS is how the connection is encrypted; empty: [StartTLS].
	TLS TLSMode
	// TLSConfig is for the handshake; it is copied. Nil: TLS 1.2 or newer and the system's roots.
	TLSConfig *tls.Config
	// Username and Password prove who the client is. Empty: the server does not ask. With [NoTLS] they are refused, except
	// for a server on this machine.
	Username, Password string
	// Mechanism is how they do so; empty: the best that the server offers.
	Mechanism Mechanism
	// Hello is the name by which the client greets; empty: the machine's.
	Hello string
	// Dial connects; nil: a [net.Dialer].
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// New gives the sender. The error is an [outbox.ErrInvalid] with everything that is wrong with cfg.
//
// Failures are sorted by the server's reply and its enhanced code (RFC 3463): 4yz is transient and 5yz permanent,
// but a server that refuses by its greeting says nothing about the message, and 552 to a recipient may mean a full
// queue. A server that cannot be reached, or is lost, is transient; the outcome is unknown if that was after the end of
// the mail had been written, and not before.
func New(cfg Config) (email.Sender, error) {
	cfg = cfg.withDefaults()
	if err := cfg.problems(); err != nil {
		return nil, fmt.Errorf("%w: smtp: %w", outbox.ErrInvalid, err)
	}
	tlsConfig := &tls.Config{MinVersion: tls.VersionTLS12}
	if cfg.TLSConfig != nil {
		tlsConfig = cfg.TLSConfig.Clone()
	}
	if tlsConfig.ServerName == "" {
		tlsConfig.ServerName = cfg.Host
	}
	cfg.TLSConfig = tlsConfig
	return &sender{cfg}, nil
}

var defaultPorts = map[TLSMode]int{StartTLS: 587, ImplicitTLS: 465, NoTLS: 25}

func (c Config) withDefaults() Config {
	if c.TLS == "" {
		c.TLS = StartTLS
	}
	if c.Port == 0 {
		c.Port = defaultPorts[c.TLS]
	}
	if c.Hello == "" {
		c.Hello = "localhost"
		if name, err := os.Hostname(); err == nil && oneWord(name) {
			c.Hello = name
		}
	}
	if c.Dial == nil {
		c.Dial = (&net.Dialer{}).DialContext
	}
	return c
}

// problems judges a configuration that has its defaults. It quotes neither the username nor the password.
func (c Config) problems() error {
	var found []error
	addf := func(format string, args ...any) { found = append(found, fmt.Errorf(format, args...)) }
	_, knownTLS := defaultPorts[c.TLS]
	switch {
	case c.Host == "":
		addf("Host is empty")
	case !oneWord(c.Host) || strings.ContainsAny(c.Host, "/@"):
		addf("Host is %q, must be the name of a server", c.Host)
	}
	if !knownTLS {
		addf("TLS is %q, must be %s, %s or %s", c.TLS, StartTLS, ImplicitTLS, NoTLS)
	}
	if knownTLS && (c.Port < 1 || c.Port > 65535) {
		addf("Port is %d, must be 1 to 65535", c.Port)
	}
	if c.Password != "" && c.Username == "" {
		addf("Password is given without a Username")
	}
	if strings.ContainsAny(c.Username+c.Password, "\x00\r\n") {
		addf("Username and Password must not hold a line break or a NUL")
	}
	if c.Mechanism != "" && c.auth(c.Mechanism) == nil {
		addf("Mechanism is %q, which is not known", c.Mechanism)
	}
	if c.Mechanism != "" && c.Username == "" {
		addf("Mechanism is given without a Username")
	}
	if c.Username != "" && c.TLS == NoTLS && !loopback(c.Host) {
		addf("with TLS %q the password would travel in the clear", NoTLS)
	}
	if !oneWord(c.Hello) {
		addf("Hello is %q, must be a name without spaces", c.Hello)
	}
	return errors.Join(found...)
}

// oneWord reports whether s can stand in a command as it is.
func oneWord(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f })
}

func loopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.IsLoopback()
}

// patience bounds a conversation whose context has no end of its own.
const patience = 5 * time.Minute

type sender struct{ Config }

// Send makes one conversation.
func (s *sender) Send(ctx context.Context, e email.Email) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	id := messageID(e)
	mime, err := encode(e, id, time.Now())
	if err != nil {
		return "", refusedHere("encode")
	}
	c := &conversation{Config: s.Config, at: stageDial}
	if err := c.deliver(ctx, e, mime); err != nil {
		return "", c.failure(ctx, err)
	}
	return "<" + id + ">", nil
}
