package resend

import (
	"cmp"
	"net/http"
	"regexp"
	"strconv"
	"time"

	"github.com/gorm-outbox/outbox/policy"
)

// How long to wait at least where Resend does not say.
const (
	busyWait  = time.Minute // an earlier request with the same key is still at work
	quotaWait = time.Hour   // the day's quota is spent
)

// named are the failures that Resend names. The name decides and not the status: two of them share 409 and need
// opposite treatment.
var named = map[string]policy.Failure{
	"invalid_idempotency_key": {Category: policy.CategoryRejected},
	"missing_required_field":  {Category: policy.CategoryRejected},
	"invalid_parameter":       {Category: policy.CategoryRejected},
	"invalid_attachment":      {Category: policy.CategoryRejected},
	"invalid_from_address":    {Category: policy.CategoryRejected},
	"invalid_access":          {Category: policy.CategoryRejected},
	"invalid_region":          {Category: policy.CategoryRejected},
	"not_found":               {Category: policy.CategoryRejected},
	"method_not_allowed":      {Category: policy.CategoryRejected},
	"security_error":          {Category: policy.CategoryRejected},

	"missing_api_key":    {Category: policy.CategoryCredentials},
	"restricted_api_key": {Category: policy.CategoryCredentials},
	"invalid_api_key":    {Category: policy.CategoryCredentials},
	"suspended_api_key":  {Category: policy.CategoryCredentials},
	"invalid_permission": {Category: policy.CategoryCredentials},

	"concurrent_idempotent_requests": {
		Category: policy.CategoryIdempotencyConflict, RetryAfter: busyWait, OutcomeUnknown: true,
	},
	// Another body was accepted under this key: the mail has most probably been sent, and asking again changes nothing.
	"invalid_idempotent_request": {
		Category: policy.CategoryIdempotencyConflict, Class: policy.Permanent, OutcomeUnknown: true,
	},

	"rate_limit_exceeded":    {Category: policy.CategoryRateLimited},
	"daily_quota_exceeded":   {Category: policy.CategoryRateLimited, RetryAfter: quotaWait},
	"monthly_quota_exceeded": {Category: policy.CategoryBilling},

	"application_error":     {Category: policy.CategoryNetwork, OutcomeUnknown: true},
	"internal_server_error": {Category: policy.CategoryNetwork, OutcomeUnknown: true},
	"service_unavailable":   {Category: policy.CategoryNetwork, OutcomeUnknown: true},
}

// plainName is what a failure's name may look like. Anything else is some other server's text, and not passed on.
var plainName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)

// refusal is the failure of an answer that is not a success.
func refusal(status int, name string, retryAfter time.Duration) error {
	f, known := named[name]
	if !known {
		f = byStatus(status)
	}
	f.Code = "http_" + strconv.Itoa(status)
	if plainName.MatchString(name) {
		f.Code = name
	}
	if cmp.Or(f.Class, f.Category.Class()) == policy.Transient {
		f.RetryAfter = max(f.RetryAfter, retryAfter)
	}
	return &f
}

// byStatus sorts what has no name that is known, and validation_error, which is told apart by its status only.
func byStatus(status int) policy.Failure {
	switch {
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return policy.Failure{Category: policy.CategoryCredentials} // also a domain that is not verified
	case status == http.StatusConflict:
		return policy.Failure{Category: policy.CategoryIdempotencyConflict, RetryAfter: busyWait, OutcomeUnknown: true}
	case status == http.StatusTooManyRequests:
		return policy.Failure{Category: policy.CategoryRateLimited}
	case status == http.StatusRequestTimeout, status == http.StatusTooEarly, status >= 500:
		return policy.Failure{Category: policy.CategoryNetwork, OutcomeUnknown: true}
	case status >= 400:
		return policy.Failure{Category: policy.CategoryRejected}
	default: // a redirect, or no answer that HTTP knows: somebody else stands before Resend, perhaps for a while
		return policy.Failure{Category: policy.CategoryRejected, Class: policy.Transient}
	}
}
