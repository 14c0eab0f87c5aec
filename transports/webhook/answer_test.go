package webhook_test

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/gorm-outbox/outbox/transports/webhook"
	"github.com/stretchr/testify/require"
)

// answering gives an endpoint that answers with a status and a wait.
func answering(t *testing.T, status int, retryAfter string) *endpoint {
	e := newEndpoint(t)
	e.setAnswer(func(w http.ResponseWriter, _ *http.Request) {
		if retryAfter != "" {
			w.Header().Set("Retry-After", retryAfter)
		}
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(status)
	})
	return e
}

func TestAnswers(t *testing.T) {
	for status := 200; status <= 299; status += 33 {
		e := answering(t, status, "")
		require.NoError(t, send(t, newTransport(t, e.config()), e.URL), status)
	}
	const T, P = policy.Transient, policy.Permanent
	const wait = 120 * time.Second
	type want = policy.Failure
	for status, f := range map[int]want{
		300: {Category: "rejected", Code: "redirect", Class: T, RetryAfter: wait, RetryAlone: true},
		302: {Category: "rejected", Code: "redirect", Class: T, RetryAfter: wait, RetryAlone: true},
		308: {Category: "rejected", Code: "redirect", Class: T, RetryAfter: wait, RetryAlone: true},
		400: {Category: "rejected", Code: "400", Class: P},
		401: {Category: "rejected", Code: "401", Class: T, RetryAfter: wait, RetryAlone: true},
		402: {Category: "rejected", Code: "402", Class: T, RetryAfter: wait, RetryAlone: true},
		403: {Category: "rejected", Code: "403", Class: P},
		404: {Category: "rejected", Code: "404", Class: P},
		405: {Category: "rejected", Code: "405", Class: P},
		408: {Category: "network", Code: "408", Class: T, RetryAfter: wait, RetryAlone: true, OutcomeUnknown: true},
		409: {Category: "rejected", Code: "409", Class: T, RetryAfter: wait, RetryAlone: true},
		410: {Category: "rejected", Code: "gone", Class: P},
		413: {Category: "rejected", Code: "413", Class: P},
		415: {Category: "rejected", Code: "415", Class: P},
		422: {Category: "rejected", Code: "422", Class: P},
		425: {Category: "network", Code: "425", Class: T, RetryAfter: wait, RetryAlone: true, OutcomeUnknown: true},
		429: {Category: "rate_limited", Code: "429", Class: T, RetryAfter: wait, RetryAlone: true},
		500: {Category: "network", Code: "500", Class: T, RetryAfter: wait, RetryAlone: true, OutcomeUnknown: true},
		502: {Category: "network", Code: "502", Class: T, RetryAfter: wait, RetryAlone: true, OutcomeUnknown: true},
		503: {Category: "network", Code: "503", Class: T, RetryAfter: wait, RetryAlone: true, OutcomeUnknown: true},
		504: {Category: "network", Code: "504", Class: T, RetryAfter: wait, RetryAlone: true, OutcomeUnknown: true},
		599: {Category: "network", Code: "599", Class: T, RetryAfter: wait, RetryAlone: true, OutcomeUnknown: true},
		999: {Category: "network", Code: "999", Class: T, RetryAfter: wait, RetryAlone: true, OutcomeUnknown: true},
	} {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			e := answering(t, status, "120")
			err := send(t, newTransport(t, e.config()), e.URL)
			require.Equal(t, f, failure(t, err))
			require.Equal(t, f.Class, policy.Classify(err))
			require.Len(t, e.received(), 1)
		})
	}
}

func TestRetryAfterIsCapped(t *testing.T) {
	for value, want := range map[string]time.Duration{
		"60": time.Minute, "7200": time.Hour, "99999999999999999999": time.Hour, "": 0, "soon": 0,
		time.Now().Add(48 * time.Hour).UTC().Format(http.TimeFormat): time.Hour,
	} {
		e := answering(t, 503, value)
		require.Equal(t, want, failure(t, send(t, newTransport(t, e.config()), e.URL)).RetryAfter, value)
	}
	e := answering(t, 429, "60")
	cfg := e.config()
	cfg.MaxRetryAfter = 10 * time.Second
	require.Equal(t, 10*time.Second, failure(t, send(t, newTransport(t, cfg), e.URL)).RetryAfter)
}

func TestPermanentStatuses(t *testing.T) {
	for _, c := range []struct {
		statuses []int
		status   int
		want     policy.Class
	}{
		{[]int{401, 503, 301}, 401, policy.Permanent},
		{[]int{401, 503, 301}, 503, policy.Permanent},
		{[]int{401, 503, 301}, 301, policy.Permanent},
		{[]int{401, 503, 301}, 404, policy.Transient}, // the default is replaced
		{[]int{401, 503, 301}, 410, policy.Permanent},
		{[]int{}, 400, policy.Transient},
		{[]int{}, 410, policy.Permanent},
		{append(webhook.DefaultPermanentStatuses(), 409), 409, policy.Permanent},
		{append(webhook.DefaultPermanentStatuses(), 409), 404, policy.Permanent},
	} {
		t.Run(fmt.Sprint(c.statuses, c.status), func(t *testing.T) {
			e := answering(t, c.status, "")
			cfg := e.config()
			cfg.PermanentStatuses = c.statuses
			require.Equal(t, c.want, policy.Classify(send(t, newTransport(t, cfg), e.URL)))
		})
	}
}

func TestOnGone(t *testing.T) {
	e := answering(t, 410, "")
	cfg := e.config()
	var gone []outbox.Delivery
	cfg.OnGone = func(ctx context.Context, d outbox.Delivery) {
		require.NoError(t, ctx.Err())
		gone = append(gone, d)
	}
	require.NoError(t, failure(t, send(t, newTransport(t, cfg), e.URL)).Err)
	require.Equal(t, []outbox.Delivery{delivery(e.URL)}, gone)

	cfg.OnGone = func(context.Context, outbox.Delivery) { panic(secret) }
	f := failure(t, send(t, newTransport(t, cfg), e.URL))
	require.EqualError(t, f.Err, "webhook: OnGone panicked with a string")
	require.Equal(t, "gone", f.Code)

	e.setAnswer(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404) })
	require.NoError(t, failure(t, send(t, newTransport(t, cfg), e.URL)).Err, "only 410 is gone")
}
