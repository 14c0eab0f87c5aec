package whatsapp

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"regexp"
	"strconv"
	"time"

	"github.com/gorm-outbox/outbox"
)

// receipt is a status that says what became of a message.
type receipt struct {
	outbox.ProviderReceipt
	key string // the same whenever the status comes
}

// event holds statuses where Kapso puts them: all that the message has had so far.
type event struct {
	Message json.RawMessage
}

// readReceipts finds the statuses in a webhook, Meta's or Kapso's. It is false for what is no JSON object; what does not
// look as expected in it is passed over, since there are webhooks of other kinds, and more to come.
func readReceipts(body []byte) (receipts []receipt, ok bool) {
	var webhook struct {
		Entry json.RawMessage // Meta
		Data  json.RawMessage // Kapso, several events
		event                 // Kapso, one event
	}
	if err := json.Unmarshal(body, &webhook); err != nil || string(bytes.TrimSpace(body)) == "null" {
		return nil, false
	}
	for _, entry := range list[struct{ Changes json.RawMessage }](webhook.Entry) {
		for _, change := range list[struct{ Value json.RawMessage }](entry.Changes) {
			value := decoded[struct{ Statuses json.RawMessage }](change.Value)
			receipts = append(receipts, readStatuses(value.Statuses)...)
		}
	}
	for _, e := range append(list[event](webhook.Data), webhook.event) {
		message := decoded[struct{ Kapso json.RawMessage }](e.Message)
		kapso := decoded[struct{ Statuses json.RawMessage }](message.Kapso)
		receipts = append(receipts, readStatuses(kapso.Statuses)...)
	}
	return receipts, true
}

// decoded gives the value that the JSON fits, or the zero value.
func decoded[T any](raw json.RawMessage) T {
	var v, none T
	if err := json.Unmarshal(raw, &v); err != nil {
		return none
	}
	return v
}

// list gives those elements of an array that fit, each judged by itself.
func list[T any](raw json.RawMessage) []T {
	var fit []T
	for _, element := range decoded[[]json.RawMessage](raw) {
		var v T
		if err := json.Unmarshal(element, &v); err == nil {
			fit = append(fit, v)
		}
	}
	return fit
}

// status is one status as Meta makes it and Kapso passes it on.
type status struct {
	ID        json.RawMessage
	Status    json.RawMessage
	Timestamp json.RawMessage
	Reference json.RawMessage `json:"biz_opaque_callback_data"`
	Errors    json.RawMessage
}

func readStatuses(raw json.RawMessage) []receipt {
	var receipts []receipt
	for _, s := range list[status](raw) {
		if r, ok := s.receipt(); ok {
			receipts = append(receipts, r)
		}
	}
	return receipts
}

// reported are the statuses that say something about what becomes of a message. "sent" says only that the provider has it.
var reported = map[string]outbox.ReceiptStatus{
	"delivered": outbox.ReceiptDelivered,
	"read":      outbox.ReceiptDelivered,
	"failed":    outbox.ReceiptFailed,
}

var (
	// ours is what outbox.Delivery.Reference looks like.
	ours = regexp.MustCompile(`^[0-9]{1,19}-[0-9a-f-]{36}$`)
	// plain is what can be a key as it is.
	plain = regexp.MustCompile(`^[!-~]{1,200}$`)
)

// lastSecond is where the year 9999 ends, beyond which databases and JSON have no times.
const lastSecond = 253402300799

// receipt makes of a status what the outbox records, unless it says nothing.
func (s status) receipt() (receipt, bool) {
	id, name := text(s.ID), text(s.Status)
	what, known := reported[name]
	seconds, err := strconv.ParseInt(written(s.Timestamp), 10, 64)
	if id == "" || !known || err != nil || seconds <= 0 || seconds > lastSecond {
		return receipt{}, false
	}
	r := receipt{
		ProviderReceipt: outbox.ProviderReceipt{ExternalID: id, Status: what, At: time.Unix(seconds, 0).UTC()},
		key:             id + ":" + name + ":" + strconv.FormatInt(seconds, 10),
	}
	if !plain.MatchString(r.key) {
		sum := sha256.Sum256([]byte(r.key))
		r.key = hex.EncodeToString(sum[:])
	}
	if reference := text(s.Reference); ours.MatchString(reference) {
		r.Reference = reference
	}
	if failures := list[struct{ Code json.RawMessage }](s.Errors); what == outbox.ReceiptFailed && len(failures) > 0 {
		r.Code = code(failures[0].Code)
	}
	return r, true
}

// written gives a number's digits, also those of one that is written as a text.
func written(raw json.RawMessage) string {
	if s := text(raw); s != "" {
		return s
	}
	return string(raw)
}

// code gives an error's code, if it is a code and not a text.
func code(raw json.RawMessage) string {
	said := written(raw)
	if _, err := strconv.Atoi(said); err == nil || name.MatchString(said) && said != "null" {
		return said
	}
	return ""
}
