package email

import (
	"context"
	"net/mail"
	"time"
)

// Message is what [Render] makes of a delivery: everything but the recipient.
type Message struct {
	Subject string // one line; required
	HTML    string // one of HTML and Text is required; with both, the recipient's program chooses
	Text    string // plain text

	From    string            // mailbox of the sender; empty: Config.From. Tenants may have their own
	ReplyTo string            // mailbox for replies; empty: the sender's
	Headers map[string]string // further headers by name, such as List-Unsubscribe; those that a sender writes itself are refused
}

// Email is what a [Sender] gets: one e-mail to one recipient. All of it has been checked: no header and no address
// holds a line break, and addresses have neither quotes nor spaces.
type Email struct {
	From    mail.Address      // the sender's mailbox
	To      mail.Address      // the only recipient
	ReplyTo mail.Address      // its Address is empty where replies go to From
	Subject string            // not empty
	HTML    string            // may be empty, then Text is not
	Text    string            // may be empty, then HTML is not
	Headers map[string]string // further headers by name; nil without

	TenantID    string // whose message it is; empty where the app has no tenants
	MessageID   string // UUIDv7 of the message, the same on every attempt; not the header Message-ID
	ProviderKey string // what to hand the provider as idempotency key: visible ASCII, 1 to 256 bytes, the same on every attempt
	Reference   string // what to give a provider that hands it back in status webhooks; see outbox.RecordReceipt
	Attempt     int    // this attempt, from 1
	// UnknownSince is when the first earlier attempt whose outcome is unknown began; zero: there is none. See
	// outbox.Delivery.
	UnknownSince time.Time
}

// Sender takes an e-mail to a provider. Send is called from many goroutines at once, and must stop when its context
// ends. It gives the provider's id for the e-mail, which may be empty; nil means accepted. A [policy.Failure] says what
// went wrong and whether trying again can help; every other error is transient.
//
// [policy.Failure]: https://pkg.go.dev/github.com/gorm-outbox/outbox/policy#Failure
type Sender interface {
	Send(ctx context.Context, e Email) (id string, err error)
}

// SenderFunc makes a function a [Sender].
type SenderFunc func(ctx context.Context, e Email) (id string, err error)

// Send calls f.
func (f SenderFunc) Send(ctx context.Context, e Email) (id string, err error) { return f(ctx, e) }
