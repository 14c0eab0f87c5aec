package outbox

import (
	"context"
	"encoding/json"

	"github.com/gorm-outbox/outbox/policy"
)

// Transport delivers messages of one topic. Send is called from many goroutines at once. It must stop when its
// context ends, and gives back the provider's id for the message, which may be empty.
//
// Nil means accepted: the message is sent and never tried again. An error that holds a [policy.Failure] says what
// went wrong and whether trying again can help; every other error is transient. One that holds the end of its context
// counts as a timeout, after which the provider may have the message. Delivery is at least once, so Send
// must hand d.ProviderKey to a provider that knows idempotency keys, or be harmless when repeated.
type Transport interface {
	Send(ctx context.Context, d Delivery) (externalID string, err error)
}

// TransportFunc makes a function a [Transport].
type TransportFunc func(ctx context.Context, d Delivery) (string, error)

// Send calls f.
func (f TransportFunc) Send(ctx context.Context, d Delivery) (string, error) { return f(ctx, d) }

// Decode unmarshals the payload. One that does not fit T will not fit it next time either: the error is a permanent
// failure, category payload.
func Decode[T any](d Delivery) (T, error) {
	var v T
	if err := json.Unmarshal(d.Payload, &v); err != nil {
		return v, &policy.Failure{Category: policy.CategoryPayload, Code: "decode", Err: err}
	}
	return v, nil
}

// Handle makes a [Transport] of a handler for a typed payload, as consumers of domain events are. A payload that does
// not fit T is discarded without a call.
func Handle[T any](handler func(ctx context.Context, v T, d Delivery) error) Transport {
	return TransportFunc(func(ctx context.Context, d Delivery) (string, error) {
		v, err := Decode[T](d)
		if err != nil {
			return "", err
		}
		return "", handler(ctx, v, d)
	})
}
