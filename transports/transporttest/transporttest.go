// Package transporttest is the contract of a transport: what the outbox relies on, whatever the provider. A test of a
// transport calls [Run] with a way to make the provider's double behave:
//
//	func TestContract(t *testing.T) {
//		transporttest.Run(t, transporttest.Case{New: newTransport, Delivery: valid, Secrets: []string{apiKey}})
//	}
//
// Run it with the race detector. It needs nothing but the standard library.
package transporttest

import (
	"testing"

	"github.com/gorm-outbox/outbox"
)

// Case is a transport under test.
type Case struct {
	// New gives a fresh transport and the double that it speaks to, a real server on loopback wherever the protocol
	// allows. Both end with t.Cleanup. The double accepts until it is told otherwise. Required.
	New func(t *testing.T) (outbox.Transport, *Provider)
	// Delivery is one that the provider accepts. It needs at least MessageID and ProviderKey; give it a recipient and a
	// payload whose texts are found nowhere else, since no error may quote them. Required.
	Delivery outbox.Delivery
	// Secrets are texts that no error may quote: API keys, passwords, signing secrets. Texts of the payload and the
	// recipient are among them anyway.
	Secrets []string

	NoID      bool // the provider gives no id for a message it accepts
	NoKey     bool // the protocol has no place for the provider key
	NoRefusal bool // nothing that the provider answers is permanent: Provider.Refuse is nil
	NoHang    bool // the double cannot be made to hang: Provider.Hang is nil
}

// Provider steers a provider's double. Each of the first four holds until the next is called. A double that refuses or
// fails should quote what it was sent, credentials included, as careless providers do: that is how the contract sees
// whether a transport passes it on.
type Provider struct {
	// Accept makes it take every message.
	Accept func()
	// Refuse makes it refuse every message for good, as one that is malformed.
	Refuse func()
	// Fail makes it fail in a way that passes: a busy server, a connection that is cut.
	Fail func()
	// Hang makes it take what it is sent and not answer for as long as the caller waits. What it starts for a caller must
	// end when the caller's connection or request does, or it looks like a leak of the transport's.
	Hang func()
	// Keys gives one entry for each attempt that has reached the provider, in order and whatever became of it: the key
	// by which the provider recognises a repeat, or with Case.NoKey anything.
	Keys func() []string
}

// Run checks, as subtests of t, that the transport
//   - accepts: gives the provider's id, with one request for each call (success);
//   - does not call the provider when its context has ended already, and returns at once (ended);
//   - marks what is permanent and what is transient, with a category and a code, and recovers (permanent, transient);
//   - returns within [Prompt] of the end of its context, however long the provider takes, and says that the outcome is
//     unknown where the provider had been reached (hang);
//   - serves many callers at once (concurrent);
//   - hands over the same key on every attempt and every worker, and another for every other message (key);
//   - survives deliveries that make no sense (garbage);
//   - leaves no goroutine, neither after a call nor after its end (goroutines);
//   - quotes neither secrets nor the recipient nor the payload in an error, wherever in its tree (private).
//
// No other test may run at the same time, since goroutines are counted.
func Run(t *testing.T, c Case) {
	t.Helper()
	if problem := c.problem(); problem != "" {
		t.Fatal("transporttest: " + problem)
	}
	for _, check := range []struct {
		name string
		run  func(t *testing.T, c Case)
		not  bool // not applicable, as the case says
	}{
		{name: "success", run: checkSuccess},
		{name: "ended", run: checkEnded},
		{name: "permanent", run: checkPermanent, not: c.NoRefusal},
		{name: "transient", run: checkTransient},
		{name: "hang", run: checkHang, not: c.NoHang},
		{name: "concurrent", run: checkConcurrent},
		{name: "key", run: checkKey, not: c.NoKey},
		{name: "garbage", run: checkGarbage},
		{name: "goroutines", run: checkGoroutines},
		{name: "private", run: checkPrivate},
	} {
		if !check.not {
			t.Run(check.name, func(t *testing.T) { check.run(t, c) })
		}
	}
}

// problem is what keeps the case from being checked, if anything.
func (c Case) problem() string {
	switch {
	case c.New == nil:
		return "Case.New is nil"
	case c.Delivery.MessageID == "" || c.Delivery.ProviderKey == "":
		return "Case.Delivery needs a MessageID and a ProviderKey"
	default:
		return ""
	}
}

// open gives a transport and a double that can do what the case promises.
func (c Case) open(t *testing.T) (outbox.Transport, *Provider) {
	t.Helper()
	transport, p := c.New(t)
	switch {
	case transport == nil || p == nil:
		t.Fatal("transporttest: Case.New gave nil")
	case p.Accept == nil || p.Fail == nil || p.Keys == nil:
		t.Fatal("transporttest: Provider needs Accept, Fail and Keys")
	case (p.Refuse == nil) != c.NoRefusal:
		t.Fatal("transporttest: give Provider.Refuse, or set Case.NoRefusal")
	case (p.Hang == nil) != c.NoHang:
		t.Fatal("transporttest: give Provider.Hang, or set Case.NoHang")
	}
	return transport, p
}
