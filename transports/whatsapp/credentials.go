package whatsapp

import (
	"fmt"
	"io"
	"log/slog"
	"regexp"
)

// Credentials say whose WhatsApp a message is sent from. They do not show their token: not when printed or logged, nor
// when marshalled.
type Credentials struct {
	// PhoneNumberID is the provider's id of the sending number, not the number itself. Letters, digits, '-' and '_'.
	PhoneNumberID string
	// Token opens the number: with Kapso the API key of the project, with Meta an access token. Visible ASCII, at
	// most 4096.
	Token string
}

const redacted = "whatsapp.Credentials(redacted)"

// String gives a fixed text.
func (Credentials) String() string { return redacted }

// GoString gives a fixed text, for %#v.
func (Credentials) GoString() string { return redacted }

// Format writes a fixed text, whatever the verb: %x or %d would otherwise spell the fields out.
func (Credentials) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// LogValue gives a fixed text, for log/slog.
func (Credentials) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText gives a fixed text, for JSON and other encodings.
func (Credentials) MarshalText() ([]byte, error) { return []byte(redacted), nil }

var (
	phoneNumberID = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`) // it becomes part of the path
	visible       = regexp.MustCompile(`^[!-~]+$`)              // it becomes a header
)

const maxToken = 4096 // bytes

// Validate reports what is wrong with credentials that cannot be put into a request at all, without quoting them: call
// it when an account is saved. The error is [outbox.ErrInvalid].
func (c Credentials) Validate() error {
	var problems []string
	if !phoneNumberID.MatchString(c.PhoneNumberID) {
		problems = append(problems, "PhoneNumberID is not 1 to 64 letters, digits, hyphens and underscores")
	}
	if !visible.MatchString(c.Token) || len(c.Token) > maxToken {
		problems = append(problems, fmt.Sprintf("Token is empty, longer than %d bytes, or has a character that no header carries", maxToken))
	}
	return invalid(problems)
}
