package transporttest

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/gorm-outbox/outbox"
)

// checkPrivate provokes every kind of error and reads all of it.
func checkPrivate(t *testing.T, c Case) {
	transport, p := c.open(t)
	private := append(texts(c.Delivery), c.Secrets...)

	ended, cancel := context.WithCancel(context.Background())
	cancel()
	checkQuotes(t, "an ended context", call(ended, t, transport, c.Delivery).err, private)
	p.Fail()
	checkQuotes(t, "a failure", send(t, transport, c.Delivery).err, private)
	if !c.NoRefusal {
		p.Refuse()
		checkQuotes(t, "a refusal", send(t, transport, c.Delivery).err, private)
	}
	for name, d := range garbage(c.Delivery) {
		checkQuotes(t, "garbage, "+name, send(t, transport, d).err, private)
	}
	if !c.NoHang {
		p.Hang()
		checkQuotes(t, "no answer", brief(t, transport, c.Delivery).err, private)
	}
}

// checkQuotes looks for private texts in an error and in all that it wraps.
func checkQuotes(t *testing.T, of string, err error, private []string) {
	t.Helper()
	for _, said := range sayings(err) {
		for _, secret := range private {
			if quotes(said, secret) {
				t.Errorf("the error of %s quotes %q: %s", of, secret, said)
				return
			}
		}
	}
}

func quotes(said, secret string) bool {
	said = strings.ToLower(said)
	return slices.ContainsFunc(spellings(secret), func(s string) bool { return strings.Contains(said, strings.ToLower(s)) })
}

// sayings is everything that an error and its causes say.
func sayings(err error) []string {
	if err == nil {
		return nil
	}
	said := []string{err.Error(), fmt.Sprintf("%+v", err)}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		said = append(said, sayings(e.Unwrap())...)
	case interface{ Unwrap() []error }:
		for _, cause := range e.Unwrap() {
			said = append(said, sayings(cause)...)
		}
	}
	return said
}

// spellings are the ways in which a text may be written in an address or a header.
func spellings(text string) []string {
	return []string{text, url.QueryEscape(text), url.PathEscape(text), base64.StdEncoding.EncodeToString([]byte(text))}
}

// shortest is the length from which a text of the payload is looked for: shorter ones are found anywhere.
const shortest = 4

// texts are what of a delivery nobody else may read: the recipient, and every text in the payload.
func texts(d outbox.Delivery) []string {
	var payload any
	_ = json.Unmarshal(d.Payload, &payload) // what is no JSON has no texts
	var found []string
	for _, text := range append(leaves(payload), d.Recipient) {
		if len(text) >= shortest {
			found = append(found, text)
		}
	}
	return found
}

func leaves(value any) []string {
	var found []string
	switch v := value.(type) {
	case string:
		return []string{v}
	case []any:
		for _, part := range v {
			found = append(found, leaves(part)...)
		}
	case map[string]any:
		for _, part := range v {
			found = append(found, leaves(part)...)
		}
	}
	return found
}
