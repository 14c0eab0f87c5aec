package smtp

import (
	"context"
	"errors"
	"io"
	"net"
	"net/textproto"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gorm-outbox/outbox/policy"
)

// fullWait is the least wait where a server is full or wants to see whether the client comes back (greylisting).
const fullWait = 5 * time.Minute

// failure is what an error at this stage means. Neither the server's text nor go-mail's is passed on: both quote
// addresses.
func (c *conversation) failure(ctx context.Context, err error) error {
	var reply *textproto.Error
	f := &policy.Failure{Category: policy.CategoryNetwork, OutcomeUnknown: c.at == stageEnd}
	switch {
	case errors.As(err, &reply):
		return refusal(c.at, reply.Code, reply.Msg)
	case errors.Is(ctx.Err(), context.Canceled):
		f.Category, f.Code = policy.CategoryTimeout, "canceled"
	case ctx.Err() != nil:
		f.Category, f.Code = policy.CategoryTimeout, "timeout"
	case errors.Is(err, errNoStartTLS):
		f.Code = "starttls_missing"
	case errors.Is(err, errNoAuth): // somebody has to look, but it is no refusal of the password, and may be mended soon
		f.Category, f.Class, f.Code = policy.CategoryCredentials, policy.Transient, "auth_missing"
	case errors.Is(err, errNoUTF8):
		return &policy.Failure{Category: policy.CategoryNumber, Code: "smtputf8_missing"}
	case c.at == stageDial:
		f.Code = "connect"
	case c.at == stageTLS:
		f.Code = "tls"
	case lost(err):
		f.Code = "connection_lost"
	default: // the server says what makes no sense, or too much
		f.Code = "protocol"
	}
	return f
}

func lost(err error) bool {
	var network *net.OpError
	return errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed)
}

// refusedHere is the failure of an e-mail that cannot be written down.
func refusedHere(code string) error {
	return &policy.Failure{Category: policy.CategoryRejected, Code: code}
}

// enhanced is the code of RFC 3463 with which a reply begins.
var enhanced = regexp.MustCompile(`^[245]\.[0-9]{1,3}\.[0-9]{1,3}\b`)

// refusal sorts a reply. Its first digit decides whether trying again can help, the rest of it what kind of failure it is.
func refusal(at stage, code int, text string) error {
	status := enhanced.FindString(text)
	f := &policy.Failure{Code: strings.TrimSpace(strconv.Itoa(code) + " " + status), Class: policy.Transient}
	if code/100 == 5 && at != stageGreeting && !(code == 552 && at == stageRecipient && !strings.HasPrefix(status, "5.")) {
		f.Class = policy.Permanent
	}
	switch {
	case at == stageGreeting: // it does not want to talk, or not to us, or not now; it has not seen the message
		f.Category = policy.CategoryNetwork
	case code/100 == 4:
		f.Category, f.RetryAfter = busy(code, status)
		f.RetryAlone = true // it is about this recipient, as far as anybody can tell
	case code/100 == 5:
		f.Category = refused(at, code, status)
	default: // a yes or a question where it makes no sense
		f.Category, f.OutcomeUnknown = policy.CategoryNetwork, at == stageEnd
	}
	return f
}

// busy sorts the replies of a server that cannot now.
func busy(code int, status string) (policy.Category, time.Duration) {
	full := slices.Contains([]string{"4.2.2", "4.3.1", "4.5.3"}, status)
	greylisted := (code == 450 || code == 451) && strings.HasPrefix(status, "4.7.")
	if code == 452 || full || greylisted {
		return policy.CategoryRateLimited, fullWait
	}
	return policy.CategoryNetwork, 0
}

// exactly are the enhanced codes that mean one thing, whatever the reply.
var exactly = map[string]policy.Category{
	"5.7.8": policy.CategoryCredentials, "5.7.9": policy.CategoryCredentials, "5.7.11": policy.CategoryCredentials,
	"5.1.7": policy.CategoryCredentials, "5.1.8": policy.CategoryCredentials, // the sender's address
	"5.1.0": policy.CategoryNumber, "5.1.1": policy.CategoryNumber, "5.1.2": policy.CategoryNumber, "5.1.3": policy.CategoryNumber,
	"5.1.4": policy.CategoryNumber, "5.1.5": policy.CategoryNumber, "5.1.6": policy.CategoryNumber, "5.1.10": policy.CategoryNumber,
	"5.2.1": policy.CategoryNumber, "5.2.2": policy.CategoryNumber, "5.4.1": policy.CategoryNumber, "5.4.4": policy.CategoryNumber,
	"5.2.3": policy.CategoryRejected, "5.3.4": policy.CategoryRejected, // too large
}

// refused sorts the replies of a server that will not.
func refused(at stage, code int, status string) policy.Category {
	category, exact := exactly[status]
	switch {
	case at == stageAuth, slices.Contains([]int{530, 534, 535, 538}, code):
		return policy.CategoryCredentials
	case at == stageSender && (status == "5.7.1" || category == policy.CategoryNumber):
		return policy.CategoryCredentials // no recipient has been named yet: it is the sender who is not wanted
	case exact:
		return category
	case code == 552 && at == stageRecipient && status == "":
		return policy.CategoryRateLimited // too many recipients for now (RFC 5321, 4.5.3.1.10), or a full mailbox
	case slices.Contains([]int{550, 551, 553, 556}, code) && status == "":
		return numberAt(at)
	default:
		return policy.CategoryRejected
	}
}

// numberAt says whose address is refused by a reply without an enhanced code.
func numberAt(at stage) policy.Category {
	switch at {
	case stageSender:
		return policy.CategoryCredentials
	case stageHello, stageTLS:
		return policy.CategoryRejected
	default:
		return policy.CategoryNumber
	}
}
