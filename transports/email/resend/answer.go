package resend

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/gorm-outbox/outbox/policy"
)

// maxAnswer is how much of an answer is read.
const maxAnswer = 64 << 10

// attempt knows how far a request has come.
type attempt struct {
	connected atomic.Bool
}

// traced watches for the connection: without one nothing has been sent. Whether all of the request went out over it is
// not asked, since Resend may act on what it has.
func (a *attempt) traced(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { a.connected.Store(true) },
	})
}

// failure is that of a request without an answer. The error of net/http is not passed on: it may quote anything.
func (a *attempt) failure(ctx context.Context, err error) error {
	f := &policy.Failure{Category: policy.CategoryTimeout, Code: "timeout", OutcomeUnknown: a.connected.Load()}
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		f.Code = "canceled"
	case late(ctx, err):
	case f.OutcomeUnknown:
		f.Category, f.Code = policy.CategoryNetwork, "connection_lost"
	default:
		f.Category, f.Code = policy.CategoryNetwork, "connect"
	}
	return f
}

// late tells an error that means that time was up: the attempt's or the client's.
func late(ctx context.Context, err error) bool {
	var network net.Error
	return err != nil && (ctx.Err() != nil || errors.As(err, &network) && network.Timeout())
}

// answer reads what Resend says. A mail that was accepted stays so if the rest of the answer cannot be read; but where
// it does not come in time, another attempt under the same key brings the id and sends nothing.
func (a *attempt) answer(ctx context.Context, response *http.Response) (string, error) {
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	var said struct{ ID, Name string }
	_ = json.Unmarshal(text, &said) // what does not parse says nothing; a proxy's error page need not be JSON
	if response.StatusCode/100 == 2 {
		if late(ctx, err) {
			return "", a.failure(ctx, err)
		}
		return said.ID, nil
	}
	return "", refusal(response.StatusCode, said.Name, retryAfter(response.Header.Get("Retry-After"), time.Now()))
}

// maxRetryAfter bounds what a header can ask for: a quota of a day is over after one.
const maxRetryAfter = 24 * time.Hour

// retryAfter reads a header in seconds or as a date. Zero: it does not say.
func retryAfter(text string, now time.Time) time.Duration {
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		return min(time.Duration(seconds)*time.Second, maxRetryAfter)
	}
	if at, err := http.ParseTime(text); err == nil {
		return min(max(at.Sub(now), 0), maxRetryAfter)
	}
	return 0
}
