package smtp

import (
	"bytes"
	"crypto/sha256"
	"encoding/base32"
	netmail "net/mail"
	"strings"
	"time"

	"github.com/gorm-outbox/outbox/transports/email"
	"github.com/wneessen/go-mail"
)

// messageID is the same for every attempt at a message, and different for any two messages.
func messageID(e email.Email) string {
	sum := sha256.Sum256([]byte(e.ProviderKey))
	local := strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:]))
	domain := e.From.Address[strings.LastIndexByte(e.From.Address, '@')+1:]
	if !oneWord(domain) { // an id is ASCII, whatever the address is
		domain = "outbox.invalid"
	}
	return local + "@" + domain
}

// encode writes the mail as it goes over the wire.
func encode(e email.Email, id string, now time.Time) ([]byte, error) {
	m := mail.NewMsg(mail.WithNoDefaultUserAgent())
	m.SetAddrHeaderFromMailAddress(mail.HeaderFrom, address(e.From))
	m.SetAddrHeaderFromMailAddress(mail.HeaderTo, address(e.To))
	if e.ReplyTo.Address != "" {
		m.SetAddrHeaderFromMailAddress(mail.HeaderReplyTo, address(e.ReplyTo))
	}
	m.SetMessageIDWithValue(id)
	m.SetDateWithValue(now)
	m.Subject(squeeze(e.Subject))
	for name, value := range e.Headers {
		m.SetGenHeader(mail.Header(name), squeeze(value))
	}
	if e.Text != "" {
		m.SetBodyString(mail.TypeTextPlain, e.Text)
	}
	switch {
	case e.HTML != "" && e.Text != "":
		m.AddAlternativeString(mail.TypeTextHTML, e.HTML)
	case e.HTML != "":
		m.SetBodyString(mail.TypeTextHTML, e.HTML)
	}
	var wire bytes.Buffer
	_, err := m.WriteTo(&wire)
	return wire.Bytes(), err
}

func address(a netmail.Address) *netmail.Address {
	return &netmail.Address{Name: squeeze(a.Name), Address: a.Address}
}

// squeeze makes one space of many. Headers are folded at spaces, and a long run of them would become a line that looks
// empty, which some servers take for the end of the headers.
func squeeze(s string) string {
	words := strings.FieldsFunc(s, func(r rune) bool { return r == ' ' || r == '\t' })
	return strings.Join(words, " ")
}
