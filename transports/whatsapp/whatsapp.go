package whatsapp

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
)

// Config says how messages become WhatsApps. Everything is required. What Credentials and Params give as an error is
// theirs to say: if it holds a [policy.Failure], that decides what becomes of the message.
type Config struct {
	// Credentials looks up whose number a tenant's messages are sent from. Nil credentials mean that the tenant has none
	// and end the message: permanent, category credentials, code no_credentials; and so do those that
	// [Credentials.Validate] refuses, with code invalid_credentials. An error, or a panic, is transient with
	// the code credentials_error, since the place where they are kept will be back. It has to heed its context.
	Credentials func(ctx context.Context, tenantID string) (*Credentials, error)
	// Params fills the template in. An error or a panic ends the message, category template, code render: the same data
	// will not fit next time either. It has to heed its context.
	Params func(ctx context.Context, d outbox.Delivery) (Template, error)
	// Sender hands the message to a provider; see [Cloud].
	Sender Sender
}

// Sender hands one message to a provider, in a single request. It is called from many goroutines at once, must stop when
// its context ends, and marks failures as a transport does.
type Sender interface {
	// Send gives the provider's id for the message, which may be empty.
	Send(ctx context.Context, c Credentials, m Message) (externalID string, err error)
}

// SenderFunc makes a function a [Sender].
type SenderFunc func(ctx context.Context, c Credentials, m Message) (string, error)

// Send calls f.
func (f SenderFunc) Send(ctx context.Context, c Credentials, m Message) (string, error) {
	return f(ctx, c, m)
}

// New gives the transport. The error is [outbox.ErrInvalid], with everything that is missing.
func New(cfg Config) (outbox.Transport, error) {
	var missing []string
	if cfg.Credentials == nil {
		missing = append(missing, "Credentials is nil")
	}
	if cfg.Params == nil {
		missing = append(missing, "Params is nil")
	}
	if f, ok := cfg.Sender.(SenderFunc); cfg.Sender == nil || ok && f == nil {
		missing = append(missing, "Sender is nil; Cloud makes one")
	}
	if err := invalid(missing); err != nil {
		return nil, err
	}
	return transport{cfg}, nil
}

// invalid makes one error of all problems of a configuration.
func invalid(problems []string) error {
	if len(problems) == 0 {
		return nil
	}
	return fmt.Errorf("%w: whatsapp: %s", outbox.ErrInvalid, strings.Join(problems, "; "))
}

type transport struct{ cfg Config }

// Send refuses what cannot succeed before the provider is asked.
func (t transport) Send(ctx context.Context, d outbox.Delivery) (string, error) {
	if ctx.Err() != nil {
		return "", unasked(ctx)
	}
	to, ok := phoneNumber(d.Recipient)
	if !ok {
		return "", &policy.Failure{Category: policy.CategoryNumber, Code: "invalid_number"}
	}
	credentials, err := t.credentials(ctx, d)
	if err != nil {
		return "", err
	}
	template, err := t.template(ctx, d)
	if err != nil {
		return "", err
	}
	if ctx.Err() != nil {
		return "", unasked(ctx)
	}
	return t.cfg.Sender.Send(ctx, credentials, Message{
		To: to, Template: template, Reference: d.Reference(), Attempt: d.Attempt,
	})
}

func (t transport) credentials(ctx context.Context, d outbox.Delivery) (Credentials, error) {
	found, err := guarded("Credentials", func() (*Credentials, error) { return t.cfg.Credentials(ctx, d.TenantID) })
	switch {
	case err != nil:
		return Credentials{}, told(ctx, err, policy.Failure{
			Category: policy.CategoryCredentials, Class: policy.Transient, Code: "credentials_error",
		})
	case found == nil:
		return Credentials{}, &policy.Failure{Category: policy.CategoryCredentials, Code: "no_credentials"}
	}
	if err := found.Validate(); err != nil {
		return Credentials{}, &policy.Failure{Category: policy.CategoryCredentials, Code: "invalid_credentials", Err: err}
	}
	return *found, nil
}

func (t transport) template(ctx context.Context, d outbox.Delivery) (Template, error) {
	template, err := guarded("Params", func() (Template, error) { return t.cfg.Params(ctx, d) })
	if err != nil {
		return Template{}, told(ctx, err, policy.Failure{Category: policy.CategoryTemplate, Code: "render"})
	}
	if template.Name == "" {
		template.Name = d.Type
	}
	if code := template.problem(); code != "" {
		return Template{}, &policy.Failure{Category: policy.CategoryTemplate, Code: code}
	}
	return template, nil
}

// guarded calls a function of the app's, and makes an error of its panic. The value may be private, the stack is not.
func guarded[T any](name string, f func() (T, error)) (v T, err error) {
	defer func() {
		if value := recover(); value != nil {
			err = fmt.Errorf("whatsapp: %s panicked with a %T\n%s", name, value, debug.Stack())
		}
	}()
	return f()
}

// told makes a failure of what a function of the app's gave as an error. One that came because time was up says nothing
// about the message.
func told(ctx context.Context, err error, f policy.Failure) error {
	if _, said := policy.AsFailure(err); said {
		return err
	}
	if ctx.Err() != nil {
		return unasked(ctx)
	}
	f.Err = err
	return &f
}

// unasked is the failure of a message that the provider has not been asked about, because time was up. The context's
// error is not its cause: the processor would take that as an attempt of unknown outcome.
func unasked(ctx context.Context) error {
	return &policy.Failure{Category: policy.CategoryTimeout, Code: timeoutCode(ctx)}
}

func timeoutCode(ctx context.Context) string {
	if errors.Is(ctx.Err(), context.Canceled) {
		return "canceled"
	}
	return "timeout"
}

// The bounds of a number in international form, E.164.
const (
	minDigits = 7
	maxDigits = 15
)

// phoneNumber gives the digits of a number in international form, with or without a plus sign and the punctuation that
// people write. It guesses no country: a number that begins with 0 is a national one, or carries a dialling prefix.
func phoneNumber(s string) (digits string, ok bool) {
	if len(s) > 4*maxDigits {
		return "", false
	}
	s = strings.TrimPrefix(strings.TrimSpace(s), "+")
	digits = strings.Map(func(r rune) rune {
		if strings.ContainsRune(" -.()/", r) {
			return -1
		}
		return r
	}, s)
	if len(digits) < minDigits || len(digits) > maxDigits || digits[0] == '0' {
		return "", false
	}
	for i := 0; i < len(digits); i++ {
		if digits[i] < '0' || digits[i] > '9' {
			return "", false
		}
	}
	return digits, true
}
