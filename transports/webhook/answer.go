package webhook

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
)

// judge says what an answer means: nil for 2xx, else a failure.
func (t *transport) judge(ctx context.Context, response *http.Response, d outbox.Delivery) error {
	status := response.StatusCode
	if status/100 == 2 {
		return nil
	}
	f := classify(status)
	if t.permanent[status] {
		f.Class = policy.Permanent
	} else {
		f.Class = policy.Transient
		f.RetryAfter = retryAfter(response.Header, time.Now(), t.MaxRetryAfter)
		f.RetryAlone = f.RetryAfter > 0 // other endpoints did not ask for it
	}
	if status == http.StatusGone {
		f.Err = t.gone(ctx, d)
	}
	return f
}

// classify sorts all but 2xx, by who has to do something.
func classify(status int) *policy.Failure {
	f := &policy.Failure{Category: policy.CategoryNetwork, Code: strconv.Itoa(status)}
	switch {
	case status == http.StatusRequestTimeout, status == http.StatusTooEarly, status >= 500:
		f.OutcomeUnknown = true // whoever answered need not know what became of the request behind it
	case status == http.StatusTooManyRequests:
		f.Category = policy.CategoryRateLimited
	case status == http.StatusGone:
		f.Category, f.Code = policy.CategoryRejected, "gone"
	case status/100 == 4:
		f.Category = policy.CategoryRejected
	case status/100 == 3:
		f.Category, f.Code = policy.CategoryRejected, "redirect"
	}
	return f
}

// gone tells the app that the endpoint wants no more. It gives what became of a callback that panicked.
func (t *transport) gone(ctx context.Context, d outbox.Delivery) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = panicked("OnGone", v)
		}
	}()
	if t.OnGone != nil {
		t.OnGone(ctx, d)
	}
	return nil
}

// retryAfter reads the header, in seconds or as a date: 0 without one that makes sense, and never above limit. A date is
// measured against the answer's own clock where it gives one, since the two may be apart from ours.
func retryAfter(h http.Header, now time.Time, limit time.Duration) time.Duration {
	value := strings.TrimSpace(h.Get("Retry-After"))
	if value != "" && strings.Trim(value, "0123456789") == "" {
		seconds, err := strconv.ParseInt(value, 10, 64)
		if err != nil || seconds > int64(limit/time.Second) { // too many digits for a number are too many seconds
			return limit
		}
		return time.Duration(seconds) * time.Second
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	if theirs, err := http.ParseTime(h.Get("Date")); err == nil {
		now = theirs
	}
	return min(max(at.Sub(now), 0), limit)
}

// noAnswer says why there is none. sent is whether the endpoint may have the request; net/http's own words name the
// URL, so they are left out.
func noAnswer(err error, sent bool) error {
	var dns *net.DNSError
	f := &policy.Failure{Category: policy.CategoryNetwork, Code: "connect"}
	switch {
	case errors.Is(err, errBlocked):
		return refused("blocked_address")
	case sent:
		f.Code, f.OutcomeUnknown = "no_answer", true
	case errors.As(err, &dns):
		f.Code = "dns"
	case errors.Is(err, errTLS):
		f.Code = "tls"
	}
	return f
}

// atEnd makes a timeout of a transient failure at the end of the attempt's time. It wraps no context error: the
// processor would take that for an unknown outcome, also where nothing was sent.
func atEnd(ctx, limited context.Context, err error) error {
	if limited.Err() == nil || policy.Classify(err) == policy.Permanent {
		return err
	}
	before, _ := policy.AsFailure(err)
	f := &policy.Failure{Category: policy.CategoryTimeout, Code: "timeout", OutcomeUnknown: before.OutcomeUnknown}
	if errors.Is(ctx.Err(), context.Canceled) {
		f.Code = "canceled"
	}
	return f
}
