package email

import (
	"errors"
	"net/mail"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/gorm-outbox/outbox/policy"
)

// MaxSize is how many bytes an e-mail may have before it is encoded, all its parts together. Most servers refuse 25
// MiB, and what is encoded for the wire grows by a third or more.
const MaxSize = 10 << 20

// maxAddress is how many bytes the protocol leaves for an address.
const maxAddress = 254

// What is wrong with an address. The texts do not quote it: it is private.
var (
	errAddress = errors.New("not a mailbox")
	errControl = errors.New("holds a line break or another control character")
	errQuoted  = errors.New("an address with quotes, spaces or brackets before the @ is not supported")
	errLong    = errors.New("longer than an address may be")
)

// parseAddress reads one mailbox, with or without a name. Addresses that need quoting are refused: they are legal and
// hardly exist, and every program on the way that forgets the quotes reads another address.
func parseAddress(text string) (mail.Address, error) {
	if hasControl(text) || !utf8.ValidString(text) {
		return mail.Address{}, errControl
	}
	parsed, err := mail.ParseAddress(text)
	if err != nil {
		return mail.Address{}, errAddress
	}
	if hasControl(parsed.Name) || !utf8.ValidString(parsed.Name) { // it may have come in an encoded word
		return mail.Address{}, errControl
	}
	at := strings.LastIndexByte(parsed.Address, '@')
	if at < 1 || strings.ContainsAny(parsed.Address[:at], " \t\"(),:;<>@[\\]") {
		return mail.Address{}, errQuoted
	}
	if len(parsed.Address) > maxAddress {
		return mail.Address{}, errLong
	}
	return *parsed, nil
}

// hasControl finds the characters by which text leaves its header.
func hasControl(text string) bool {
	return strings.ContainsFunc(text, func(r rune) bool { return r != '\t' && unicode.IsControl(r) })
}

// unfit is the failure of a rendered message that cannot be sent as it is.
func unfit(code string, cause error) error {
	return &policy.Failure{Category: policy.CategoryTemplate, Code: code, Err: cause}
}

// check judges all of the message but its addresses.
func (m Message) check() error {
	size := len(m.Subject) + len(m.HTML) + len(m.Text)
	for name, value := range m.Headers {
		if err := checkHeader(name, value); err != nil {
			return err
		}
		size += len(name) + len(value)
	}
	switch {
	case size > MaxSize:
		return &policy.Failure{Category: policy.CategoryRejected, Code: "too_large"}
	case !utf8.ValidString(m.Subject) || !utf8.ValidString(m.HTML) || !utf8.ValidString(m.Text):
		return unfit("invalid_utf8", nil)
	case hasControl(m.Subject) || hasControl(m.From) || hasControl(m.ReplyTo):
		return unfit("header_injection", errControl)
	case strings.TrimSpace(m.Subject) == "":
		return unfit("empty_subject", nil)
	case m.HTML == "" && m.Text == "":
		return unfit("empty_body", nil)
	}
	return nil
}

func checkHeader(name, value string) error {
	switch {
	case hasControl(name) || hasControl(value):
		return unfit("header_injection", errControl)
	case !utf8.ValidString(value):
		return unfit("invalid_utf8", nil)
	case name == "" || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == ':' }):
		return unfit("header_name", nil)
	case reserved(name):
		return unfit("header_reserved", nil)
	}
	return nil
}

// reserved tells the headers that say who gets what: a Bcc that a template could add would be a second recipient.
func reserved(name string) bool {
	name = strings.ToLower(name)
	switch name {
	case "from", "sender", "to", "cc", "bcc", "reply-to", "subject", "date", "message-id", "mime-version", "return-path",
		"received", "dkim-signature":
		return true
	}
	return strings.HasPrefix(name, "content-") || strings.HasPrefix(name, "resent-") || strings.HasPrefix(name, "resend-")
}
