// Package wire says what of a message goes on the wire. Webhooks and brokers share these formats:
//
//   - [Payload]: the payload alone, with nothing around it
//   - [Envelope]: {"id", "type", "occurredAt", "payload"}
//   - [StandardWebhooks]: {"type", "timestamp", "data"}
//   - [CloudEvents] and [StructuredCloudEvents]: CloudEvents 1.0.2
//
// The id is always the message id, which is the same on every attempt and what consumers deduplicate on. Every format
// gives the same bytes for the same message, so that a repeat is a true repeat.
package wire

import (
	"bytes"
	"encoding/json"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
)

// The content types of the formats.
const (
	JSON            = "application/json"
	CloudEventsJSON = "application/cloudevents+json"
)

// Format says what of a delivery goes on the wire. Encode is called once for each attempt, from many goroutines at
// once. Its errors are permanent failures: a message that does not fit its format will not fit it next time either.
type Format interface {
	Encode(d outbox.Delivery) (Wire, error)
}

// FormatFunc makes a function a [Format].
type FormatFunc func(d outbox.Delivery) (Wire, error)

// Encode calls f.
func (f FormatFunc) Encode(d outbox.Delivery) (Wire, error) { return f(d) }

// Wire is an encoded message.
type Wire struct {
	// Body is what is sent; it may share memory with the delivery's payload.
	Body []byte
	// ContentType is the media type of Body.
	ContentType string
	// Attributes go beside the body, each as a header with the protocol's prefix before its name: "ce-" in HTTP, "ce_"
	// in Kafka. Only [CloudEvents] has them; nil for the others. Values may hold any printable Unicode, so HTTP must
	// percent-encode them.
	Attributes map[string]string
}

// The formats without settings.
var (
	// Payload is the payload alone. Neither id nor type are in it: the transport has to carry them beside it.
	Payload Format = FormatFunc(payload)
	// Envelope puts the message's id, its type, when it was enqueued and its payload into one object, under the names
	// "id", "type", "occurredAt" (RFC 3339, UTC) and "payload". A message without a type is refused, code no_type.
	Envelope Format = FormatFunc(envelope)
	// StandardWebhooks is the body that the Standard Webhooks specification recommends: an object of "type", "timestamp"
	// (when the message was enqueued; RFC 3339, UTC) and "data". The id is not in it, since webhook-id carries it. A
	// message without a type is refused, code no_type.
	StandardWebhooks Format = FormatFunc(standardWebhooks)
)

func payload(d outbox.Delivery) (Wire, error) {
	data, err := dataOf(d)
	if err != nil {
		return Wire{}, err
	}
	return Wire{Body: data, ContentType: JSON}, nil
}

func envelope(d outbox.Delivery) (Wire, error) {
	return object(d, func(data json.RawMessage) any {
		return struct {
			ID         string          `json:"id"`
			Type       string          `json:"type"`
			OccurredAt string          `json:"occurredAt"`
			Payload    json.RawMessage `json:"payload"`
		}{d.MessageID, d.Type, timestamp(d.EnqueuedAt), data}
	})
}

func standardWebhooks(d outbox.Delivery) (Wire, error) {
	return object(d, func(data json.RawMessage) any {
		return struct {
			Type      string          `json:"type"`
			Timestamp string          `json:"timestamp"`
			Data      json.RawMessage `json:"data"`
		}{d.Type, timestamp(d.EnqueuedAt), data}
	})
}

// object encodes what around puts around the payload.
func object(d outbox.Delivery, around func(data json.RawMessage) any) (Wire, error) {
	if err := identified(d); err != nil {
		return Wire{}, err
	}
	data, err := dataOf(d)
	if err != nil {
		return Wire{}, err
	}
	body, err := encode(around(data))
	if err != nil {
		return Wire{}, err
	}
	return Wire{Body: body, ContentType: JSON}, nil
}

// identified refuses a message that lacks what every envelope must name.
func identified(d outbox.Delivery) error {
	switch {
	case d.Type == "":
		return refused("no_type")
	case d.MessageID == "":
		return refused("no_message_id")
	default:
		return nil
	}
}

// dataOf gives the payload, which is null where there is none, as [outbox.Decode] has it.
func dataOf(d outbox.Delivery) (json.RawMessage, error) {
	if len(d.Payload) == 0 {
		return json.RawMessage("null"), nil
	}
	if !json.Valid(d.Payload) {
		return nil, badPayload()
	}
	return d.Payload, nil
}

// encode marshals v without escaping <, > and &, which are harmless outside of HTML and would alter the payload.
func encode(v any) ([]byte, error) {
	var buf bytes.Buffer
	encoder := json.NewEncoder(&buf)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		return nil, badPayload() // the payload is the only part that can fail
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), nil
}

func timestamp(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

func refused(code string) error {
	return &policy.Failure{Category: policy.CategoryRejected, Code: code}
}

func badPayload() error {
	return &policy.Failure{Category: policy.CategoryPayload, Code: "invalid_json"}
}
