package resend

import (
	"encoding/json"
	"errors"
	"regexp"
	"time"

	"github.com/gorm-outbox/outbox"
)

// event is what a webhook holds, as far as it matters here.
type event struct {
	Type      string `json:"type"`
	CreatedAt string `json:"created_at"` // of the event; the one in data is of the mail
	Data      struct {
		EmailID string          `json:"email_id"`
		Tags    json.RawMessage `json:"tags"`
		Bounce  struct {
			Type    string `json:"type"`    // Permanent, Transient, Undetermined
			SubType string `json:"subType"` // General, Suppressed, MailboxFull, …
		} `json:"bounce"`
		Failed struct {
			Reason string `json:"reason"` // reached_daily_quota, …
		} `json:"failed"`
	} `json:"data"`
}

var errEvent = errors.New("no event of Resend's")

// parseEvent reads a webhook. relevant is false for an event that says nothing about the fate of a mail: sent, opened,
// clicked, delivery_delayed, everything about domains and contacts, and what Resend may add.
func parseEvent(text []byte) (r outbox.ProviderReceipt, relevant bool, err error) {
	var kind struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(text, &kind); err != nil || kind.Type == "" {
		return r, false, errEvent
	}
	var e event
	decode := func() error { return json.Unmarshal(text, &e) } // only of events whose shape is known
	switch kind.Type {
	case "email.delivered":
		r.Status, err = outbox.ReceiptDelivered, decode()
	case "email.complained":
		r.Status, err = outbox.ReceiptComplained, decode()
	case "email.bounced":
		r.Status, err = outbox.ReceiptBounced, decode()
		r.Code = plain(e.Data.Bounce.Type)
		if subType := plain(e.Data.Bounce.SubType); subType != "" {
			r.Code += "/" + subType
		}
	case "email.failed":
		r.Status, err = outbox.ReceiptFailed, decode()
		r.Code = plain(e.Data.Failed.Reason)
	case "email.suppressed": // the address is on Resend's list of those not to be written to
		r.Status, r.Code, err = outbox.ReceiptFailed, "suppressed", decode()
	default:
		return r, false, nil
	}
	if err != nil {
		return r, false, errEvent
	}
	r.ExternalID, r.Reference = e.Data.EmailID, reference(e.Data.Tags)
	if r.At, err = time.Parse(time.RFC3339, e.CreatedAt); err != nil || r.ExternalID == "" && r.Reference == "" {
		return r, false, errEvent
	}
	return r, true, nil
}

// plainCode is what a reason may look like: a word. Resend also gives the mail server's own text, which quotes addresses.
var plainCode = regexp.MustCompile(`^[A-Za-z0-9_-]{1,31}$`)

func plain(code string) string {
	if !plainCode.MatchString(code) {
		return ""
	}
	return code
}

// reference finds our tag. Resend takes tags as a list and gives them back as an object; its documents show both.
func reference(tags json.RawMessage) string {
	var object map[string]json.RawMessage
	if json.Unmarshal(tags, &object) == nil {
		var value string
		_ = json.Unmarshal(object[TagName], &value) // absent, or no text: not ours
		return value
	}
	var list []tag
	_ = json.Unmarshal(tags, &list)
	for _, t := range list {
		if t.Name == TagName {
			return t.Value
		}
	}
	return ""
}
