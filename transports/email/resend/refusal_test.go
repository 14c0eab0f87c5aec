package resend_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox/policy"
	"github.com/stretchr/testify/require"
)

func TestRefusals(t *testing.T) {
	p := startProvider(t)
	sender := newSender(t, p.URL)
	const (
		rejected    = policy.CategoryRejected
		credentials = policy.CategoryCredentials
		conflict    = policy.CategoryIdempotencyConflict
		limited     = policy.CategoryRateLimited
		network     = policy.CategoryNetwork
	)
	for _, c := range []struct {
		status   int
		name     string
		category policy.Category
		class    policy.Class
		wait     time.Duration
		unknown  bool
		code     string // empty: the name
	}{
		{400, "invalid_idempotency_key", rejected, policy.Permanent, 0, false, ""},
		{400, "validation_error", rejected, policy.Permanent, 0, false, ""},
		{422, "validation_error", rejected, policy.Permanent, 0, false, ""},
		{403, "validation_error", credentials, policy.Permanent, 0, false, ""},
		{401, "missing_api_key", credentials, policy.Permanent, 0, false, ""},
		{401, "restricted_api_key", credentials, policy.Permanent, 0, false, ""},
		{403, "invalid_api_key", credentials, policy.Permanent, 0, false, ""},
		{403, "suspended_api_key", credentials, policy.Permanent, 0, false, ""},
		{404, "not_found", rejected, policy.Permanent, 0, false, ""},
		{405, "method_not_allowed", rejected, policy.Permanent, 0, false, ""},
		{409, "concurrent_idempotent_requests", conflict, policy.Transient, time.Minute, true, ""},
		{409, "invalid_idempotent_request", conflict, policy.Permanent, 0, true, ""},
		{409, "something_new", conflict, policy.Transient, time.Minute, true, ""},
		{422, "missing_required_field", rejected, policy.Permanent, 0, false, ""},
		{422, "invalid_parameter", rejected, policy.Permanent, 0, false, ""},
		{422, "invalid_attachment", rejected, policy.Permanent, 0, false, ""},
		{422, "invalid_from_address", rejected, policy.Permanent, 0, false, ""},
		{422, "invalid_access", rejected, policy.Permanent, 0, false, ""},
		{422, "invalid_region", rejected, policy.Permanent, 0, false, ""},
		{429, "rate_limit_exceeded", limited, policy.Transient, 0, false, ""},
		{429, "daily_quota_exceeded", limited, policy.Transient, time.Hour, false, ""},
		{429, "monthly_quota_exceeded", policy.CategoryBilling, policy.Permanent, 0, false, ""},
		{451, "security_error", rejected, policy.Permanent, 0, false, ""},
		{500, "application_error", network, policy.Transient, 0, true, ""},
		{500, "internal_server_error", network, policy.Transient, 0, true, ""},
		{503, "service_unavailable", network, policy.Transient, 0, true, ""},
		// The name decides, whatever the status.
		{400, "concurrent_idempotent_requests", conflict, policy.Transient, time.Minute, true, ""},
		{500, "monthly_quota_exceeded", policy.CategoryBilling, policy.Permanent, 0, false, ""},
		// Without a name the status does.
		{400, "", rejected, policy.Permanent, 0, false, "http_400"},
		{401, "", credentials, policy.Permanent, 0, false, "http_401"},
		{403, "", credentials, policy.Permanent, 0, false, "http_403"},
		{404, "", rejected, policy.Permanent, 0, false, "http_404"},
		{408, "", network, policy.Transient, 0, true, "http_408"},
		{409, "", conflict, policy.Transient, time.Minute, true, "http_409"},
		{413, "", rejected, policy.Permanent, 0, false, "http_413"},
		{425, "", network, policy.Transient, 0, true, "http_425"},
		{429, "", limited, policy.Transient, 0, false, "http_429"},
		{500, "", network, policy.Transient, 0, true, "http_500"},
		{502, "", network, policy.Transient, 0, true, "http_502"},
		{504, "", network, policy.Transient, 0, true, "http_504"},
		{429, "no mail for ana@example.test", limited, policy.Transient, 0, false, "http_429"},
		{418, strings.Repeat("x", 70), rejected, policy.Permanent, 0, false, "http_418"},
	} {
		p.behave(refuse(c.status, c.name))
		_, err := sender.Send(context.Background(), message())
		t.Logf("%d %s", c.status, c.name)
		if c.code == "" {
			c.code = c.name
		}
		requireFailure(t, err, c.class, policy.Failure{Category: c.category, Code: c.code, RetryAfter: c.wait, OutcomeUnknown: c.unknown})
	}
}

func TestRefusalThatIsNoJSON(t *testing.T) {
	p := startProvider(t)
	for _, body := range []string{"", "<html>bad gateway", `{"name":17}`, `[1]`, `"x"`, "null", `{"name":"` + strings.Repeat("x", 1<<20)} {
		p.behave(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadGateway)
			_, _ = w.Write([]byte(body))
		})
		_, err := newSender(t, p.URL).Send(context.Background(), message())
		requireFailure(t, err, policy.Transient, policy.Failure{Category: policy.CategoryNetwork, Code: "http_502", OutcomeUnknown: true})
	}
}

func TestRetryAfter(t *testing.T) {
	p := startProvider(t)
	waits := func(status int, name, header string) time.Duration {
		p.behave(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Retry-After", header)
			refuse(status, name)(w, r)
		})
		_, err := newSender(t, p.URL).Send(context.Background(), message())
		f, ok := policy.AsFailure(err)
		require.True(t, ok)
		return f.RetryAfter
	}
	require.Equal(t, 7*time.Second, waits(429, "rate_limit_exceeded", "7"))
	require.Equal(t, 7*time.Second, waits(503, "", "7"))
	require.Equal(t, time.Minute, waits(409, "concurrent_idempotent_requests", "7"), "a minute at least")
	require.Equal(t, 2*time.Minute, waits(409, "concurrent_idempotent_requests", "120"))
	require.Equal(t, 2*time.Hour, waits(429, "daily_quota_exceeded", "7200"))
	require.Zero(t, waits(429, "monthly_quota_exceeded", "7"), "permanent: there is nothing to wait for")
	date := time.Now().Add(90 * time.Second).UTC().Format(http.TimeFormat)
	require.InDelta(t, 90*time.Second, waits(429, "", date), float64(2*time.Second))
	for _, nonsense := range []string{"", "-5", "soon", "1e9", "99999999999999999999", "7.5", time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat)} {
		require.Zero(t, waits(429, "", nonsense), nonsense)
	}
}
