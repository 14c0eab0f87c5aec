package kafka

import (
	"context"
	"errors"
	"time"

	"github.com/gorm-outbox/outbox/policy"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// operatorDelay is the least wait where somebody has to mend the set-up first: an event must not be dropped for it, and
// asking more often does not help.
const operatorDelay = time.Minute

// failure says what an error means. It quotes none.
func failure(ctx context.Context, err error) error {
	var broker *kerr.Error
	switch {
	case errors.As(err, &broker):
		return brokerFailure(broker)
	case ctx.Err() != nil:
		return &policy.Failure{Category: policy.CategoryTimeout, Code: "timeout", OutcomeUnknown: true, Err: ctx.Err()}
	case errors.Is(err, kgo.ErrClientClosed): // of what was on its way nothing is known
		return unknown("client_closed")
	case errors.Is(err, kgo.ErrRecordTimeout):
		return unknown("record_timeout")
	case errors.Is(err, kgo.ErrRecordRetries):
		return unknown("record_retries")
	default: // among others, another message of the same batch whose time was up
		return unknown("not_produced")
	}
}

// answered says whether an error is a broker's answer.
func answered(err error) bool {
	var broker *kerr.Error
	return errors.As(err, &broker)
}

// unreached says why no broker is there. Nothing has been produced.
func unreached(err error) error {
	var broker *kerr.Error
	if errors.As(err, &broker) {
		f := brokerFailure(broker)
		f.OutcomeUnknown = false
		return f
	}
	return &policy.Failure{Category: policy.CategoryNetwork, Code: "no_connection"}
}

// brokerFailure goes by the broker's own code.
func brokerFailure(err *kerr.Error) *policy.Failure {
	switch err {
	case kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.InvalidRecord, kerr.PolicyViolation:
		return &policy.Failure{Category: policy.CategoryRejected, Code: err.Message}
	case kerr.TopicAuthorizationFailed, kerr.ClusterAuthorizationFailed, kerr.GroupAuthorizationFailed,
		kerr.TransactionalIDAuthorizationFailed, kerr.DelegationTokenAuthorizationFailed,
		kerr.SaslAuthenticationFailed, kerr.UnsupportedSaslMechanism, kerr.IllegalSaslState, kerr.SecurityDisabled:
		return &policy.Failure{
			Category: policy.CategoryCredentials, Code: err.Message, Class: policy.Transient, RetryAfter: operatorDelay,
		}
	case kerr.UnknownTopicOrPartition, kerr.UnknownTopicID, kerr.InvalidTopicException:
		return operators(err.Message)
	default:
		return unknown(err.Message)
	}
}

// operators is a fault of the set-up: nothing has been stored.
func operators(code string) *policy.Failure {
	return &policy.Failure{Category: policy.CategoryNetwork, Code: code, RetryAfter: operatorDelay}
}

// unknown is a fault after which the brokers may have the record.
func unknown(code string) *policy.Failure {
	return &policy.Failure{Category: policy.CategoryNetwork, Code: code, OutcomeUnknown: true}
}
