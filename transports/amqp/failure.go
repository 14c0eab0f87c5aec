package amqp

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/gorm-outbox/outbox/policy"
	client "github.com/rabbitmq/amqp091-go"
)

// operatorDelay is the least wait where somebody has to mend the set-up first: an event must not be dropped for it, and
// asking more often does not help.
const operatorDelay = time.Minute

// brokerFailure goes by the broker's own code. Its text, which names exchanges and users, is left out.
func brokerFailure(code int) *policy.Failure {
	f := &policy.Failure{Category: policy.CategoryNetwork, Code: strconv.Itoa(code)}
	switch code {
	// RabbitMQ answers 406 to a message over its max_message_size.
	case client.ContentTooLarge, client.PreconditionFailed:
		f.Category = policy.CategoryRejected
	case client.AccessRefused, client.NotAllowed:
		f.Category, f.Class, f.RetryAfter = policy.CategoryCredentials, policy.Transient, operatorDelay
	case client.NotFound, client.NoRoute:
		f.RetryAfter = operatorDelay
	default:
		f.OutcomeUnknown = true
	}
	return f
}

// dialFailure says why there is no connection. Nothing has been sent.
func dialFailure(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return unsent("no_connection")
	}
	return channelFailure(err)
}

// channelFailure says why a connection or a channel does not open. Nothing has been sent.
func channelFailure(err error) error {
	var broker *client.Error
	// Without Server it is the client's word, of which only that the login failed says more than "no connection".
	if !errors.As(err, &broker) || !broker.Server && broker.Code != client.AccessRefused {
		return network("no_connection")
	}
	f := brokerFailure(broker.Code)
	f.OutcomeUnknown = false
	return f
}

// publishFailure is of a message that may have left in part.
func publishFailure(err error) error {
	if errors.Is(err, client.ErrClosed) {
		return network("disconnected")
	}
	return unknown("disconnected")
}

// network is a fault before anything was sent.
func network(code string) error {
	return &policy.Failure{Category: policy.CategoryNetwork, Code: code}
}

// unknown is a fault after which the broker may have the message.
func unknown(code string) error {
	return &policy.Failure{Category: policy.CategoryNetwork, Code: code, OutcomeUnknown: true}
}

// unsent is the end of an attempt's time before anything was sent. It does not wrap the context's error, by which the
// processor would take the outcome for unknown.
func unsent(code string) error {
	return &policy.Failure{Category: policy.CategoryTimeout, Code: code}
}

// unanswered is the end of an attempt's time while the message was on its way.
func unanswered(ctx context.Context) error {
	return &policy.Failure{Category: policy.CategoryTimeout, Code: "timeout", OutcomeUnknown: true, Err: ctx.Err()}
}

func rejected(code string) error {
	return &policy.Failure{Category: policy.CategoryRejected, Code: code}
}
