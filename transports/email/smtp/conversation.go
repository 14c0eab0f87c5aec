package smtp

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/textproto"
	"strconv"
	"strings"
	"time"

	"github.com/gorm-outbox/outbox/transports/email"
	gomail "github.com/wneessen/go-mail/smtp"
)

// stage is how far a conversation has come: what a failure means depends on it.
type stage int

const (
	stageDial     stage = iota
	stageGreeting       // the server's first words
	stageHello          // EHLO
	stageTLS            // STARTTLS, the handshake, and EHLO once more
	stageAuth
	stageSender    // MAIL FROM
	stageRecipient // RCPT TO
	stageData      // DATA and the mail, but for its end
	stageEnd       // the end has been written, or part of it: from here on the server may have taken the mail
)

// conversation is one connection. Its commands are given one by one and not by go-mail's Client, which dials under the
// context but then talks without it, and whose errors lose at which command and by which reply they came about.
type conversation struct {
	Config
	at stage
}

// Errors of our own: what the server offers is not enough.
var (
	errNoStartTLS = errors.New("smtp: the server does not offer STARTTLS")
	errNoAuth     = errors.New("smtp: the server offers no way to log in that is wanted")
	errNoUTF8     = errors.New("smtp: the address is not ASCII, and the server does not take others")
)

// deliver hands the mail over. Nil means that the server has taken it.
func (c *conversation) deliver(ctx context.Context, e email.Email, mime []byte) error {
	conn, err := c.Dial(ctx, "tcp", net.JoinHostPort(c.Host, strconv.Itoa(c.Port)))
	if err != nil {
		return err
	}
	defer conn.Close()
	// Nothing of what follows knows the context. A closed connection ends it all at once.
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	client, err := c.open(&bounded{Conn: conn, left: maxReplies})
	if err != nil {
		return err
	}
	if err := c.hand(client, e, mime); err != nil {
		return err
	}
	// The mail is the server's now. QUIT is good manners, and whatever comes of it changes nothing.
	_ = conn.SetDeadline(time.Now().Add(quitPatience))
	_ = client.Quit()
	return nil
}

// quitPatience is how long the server may take to say goodbye.
const quitPatience = time.Second

// open greets, encrypts and logs in.
func (c *conversation) open(conn net.Conn) (*gomail.Client, error) {
	if c.TLS == ImplicitTLS {
		c.at = stageTLS
		encrypted := tls.Client(conn, c.TLSConfig)
		if err := encrypted.Handshake(); err != nil {
			return nil, err
		}
		conn = encrypted
	}
	c.at = stageGreeting
	client, err := gomail.NewClient(conn, c.Host)
	if err != nil {
		return nil, err
	}
	c.at = stageHello
	if err := client.Hello(c.Hello); err != nil {
		return nil, err
	}
	if c.TLS == StartTLS {
		c.at = stageTLS
		if ok, _ := client.Extension("STARTTLS"); !ok {
			return nil, errNoStartTLS
		}
		if err := client.StartTLS(c.TLSConfig); err != nil {
			return nil, err
		}
	}
	if c.Username == "" {
		return client, nil
	}
	c.at = stageAuth
	_, offered := client.Extension("AUTH")
	mechanism := c.choose(strings.Fields(strings.ToUpper(offered)))
	if mechanism == "" {
		return nil, errNoAuth
	}
	return client, client.Auth(c.auth(mechanism))
}

// hand gives the server the envelope and the mail.
func (c *conversation) hand(client *gomail.Client, e email.Email, mime []byte) error {
	ascii := oneWord(e.From.Address) && oneWord(e.To.Address)
	if ok, _ := client.Extension("SMTPUTF8"); !ok && !ascii {
		return errNoUTF8
	}
	client.SkipSMTPUTF8(ascii) // asked for without need, it keeps the mail from servers that do not know it
	c.at = stageSender
	if err := client.Mail("<" + e.From.Address + ">"); err != nil {
		return err
	}
	c.at = stageRecipient
	if err := client.Rcpt("<" + e.To.Address + ">"); err != nil {
		return err
	}
	c.at = stageData
	data, err := client.Data()
	if err != nil {
		return err
	}
	if _, err := data.Write(mime); err != nil {
		return err
	}
	c.at = stageEnd
	err = data.Close()
	var reply *textproto.Error
	if errors.As(err, &reply) && reply.Code/100 == 2 { // 250 is what it should be, but any of them is a yes
		return nil
	}
	return err
}

// maxReplies is how much is read of a server in one conversation.
const maxReplies = 256 << 10

var errTalkative = errors.New("smtp: the server says too much")

// bounded reads only so much: the replies of a server are collected in memory, however long they are.
type bounded struct {
	net.Conn
	left int
}

// Read reads on while there is something left.
func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errTalkative
	}
	n, err := b.Conn.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}
