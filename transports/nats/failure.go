package nats

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/gorm-outbox/outbox/policy"
	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// operatorDelay is the least wait where somebody has to mend the set-up first: an event must not be dropped for it, and
// asking more often does not help.
const operatorDelay = time.Minute

// The server's codes for what is wrong with the message itself.
const (
	codeMessageTooLarge = jetstream.JSErrCodeStreamMessageExceedsMaximum
	codeHeadersTooLarge = jetstream.ErrorCode(10097)
)

// failure says what an error means. It quotes none: they name subjects, which may be a recipient's.
func (t *Transport) failure(ctx context.Context, subject string, err error) error {
	var api *jetstream.APIError
	switch {
	case errors.As(err, &api):
		code := strconv.Itoa(int(api.ErrorCode))
		if api.ErrorCode == codeMessageTooLarge || api.ErrorCode == codeHeadersTooLarge {
			return rejected(code)
		}
		return &policy.Failure{Category: policy.CategoryNetwork, Code: code, OutcomeUnknown: api.Code >= 500}
	case errors.Is(err, client.ErrMaxPayload):
		return rejected("max_payload")
	case errors.Is(err, client.ErrBadSubject):
		return rejected("bad_subject")
	case errors.Is(err, jetstream.ErrNoStreamResponse):
		return &policy.Failure{Category: policy.CategoryNetwork, Code: "no_stream", RetryAfter: operatorDelay}
	case errors.Is(err, client.ErrConnectionClosed), errors.Is(err, client.ErrConnectionDraining):
		return &policy.Failure{Category: policy.CategoryNetwork, Code: "closed", OutcomeUnknown: true}
	case ctx.Err() != nil:
		return t.unanswered(ctx, subject)
	default:
		return &policy.Failure{Category: policy.CategoryNetwork, Code: "no_answer", OutcomeUnknown: true}
	}
}

// unanswered also finds a missing permission, of which the server tells the connection and not the publisher.
func (t *Transport) unanswered(ctx context.Context, subject string) error {
	last := t.cfg.JetStream.Conn().LastError()
	if errors.Is(last, client.ErrPermissionViolation) && strings.Contains(strings.ToLower(last.Error()), strings.ToLower(`"`+subject+`"`)) {
		return credentials("permission_violation")
	}
	return &policy.Failure{Category: policy.CategoryTimeout, Code: "timeout", OutcomeUnknown: true, Err: ctx.Err()}
}

// offline says why there is no connection. Nothing has been sent.
func offline(conn *client.Conn) error {
	last := conn.LastError()
	for code, refusal := range map[string]error{
		"authorization": client.ErrAuthorization, "auth_expired": client.ErrAuthExpired,
		"auth_revoked": client.ErrAuthRevoked, "account_auth_expired": client.ErrAccountAuthExpired,
	} {
		if errors.Is(last, refusal) {
			return credentials(code)
		}
	}
	if conn.IsClosed() { // for good: the app has closed it, or the client has given up
		return &policy.Failure{Category: policy.CategoryNetwork, Code: "closed", RetryAfter: operatorDelay}
	}
	return &policy.Failure{Category: policy.CategoryNetwork, Code: "disconnected"}
}

func credentials(code string) error {
	return &policy.Failure{
		Category: policy.CategoryCredentials, Code: code, Class: policy.Transient, RetryAfter: operatorDelay,
	}
}
