package whatsapp

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox/policy"
	"github.com/stretchr/testify/require"
)

func TestReadRefusal(t *testing.T) {
	tests := []struct{ body, code string }{
		{`{"error":{"code":131026,"message":"m","error_data":{"details":"d"},"fbtrace_id":"f"}}`, "131026"},
		{`{"error":{"code":"131026"}}`, "131026"},
		{`{"error":{"code":0}}`, "0"},
		{`{"error":{"code":null}}`, "http_400"},
		{`{"error":{"code":1.5}}`, "http_400"},
		{`{"error":{"code":{"a":1}}}`, "http_400"},
		{`{"error":{"code":99999999999999999999999}}`, "http_400"},
		{`{"error":{"code":"Nobody at 5491122334455"}}`, "http_400"},
		{`{"error":"Nobody at 5491122334455"}`, "http_400"},
		{`{"error":"invalid_request","message":"5491122334455"}`, "invalid_request"},
		{`{"error":"Bad","code":131047}`, "131047"},
		{`{"error":{"code":131047},"code":1}`, "131047"},
		{`{"error":{"code":"some_word"}}`, "some_word"},
		{`{"error":[]}`, "http_400"},
		{`{"error":true}`, "http_400"},
		{`[]`, "http_400"},
		{`null`, "http_400"},
		{``, "http_400"},
		{"\xff\x00", "http_400"},
	}
	for _, tt := range tests {
		t.Run(tt.body, func(t *testing.T) {
			f := readRefusal([]byte(tt.body)).failure(http.StatusBadRequest, nil, Message{}, time.Time{})
			require.Equal(t, tt.code, f.Code)
			require.NotContains(t, fmt.Sprintf("%+v", f), "5491122334455")
		})
	}
}

func TestReadID(t *testing.T) {
	for body, id := range map[string]string{
		`{"messages":[{"id":"wamid.a","message_status":"accepted"}]}`:           "wamid.a",
		`{"messages":[{"id":"wamid.a","message_status":"held_for_quality_x"}]}`: "wamid.a",
		`{"messages":[{"id":"wamid.a"},{"id":"wamid.b"}]}`:                      "wamid.a",
		`{"messages":[]}`:           "",
		`{"messages":[{"id":7}]}`:   "",
		`{"messages":{"id":"x"}}`:   "",
		`{"error":{"code":131026}}`: "",
		`<html>`:                    "",
		``:                          "",
	} {
		require.Equal(t, id, readID([]byte(body)), body)
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for said, want := range map[string]time.Duration{
		"":                              0,
		"60":                            time.Minute,
		" 60 ":                          time.Minute,
		"0":                             0,
		"-5":                            0,
		"1.5":                           0,
		"soon":                          0,
		"86401":                         24 * time.Hour,
		"99999999999999999999999":       24 * time.Hour,
		"Mon, 30 Nov 2026 12:02:00 GMT": 2 * time.Minute,
		"Mon, 30 Nov 2026 11:00:00 GMT": 0,
		"Mon, 30 Nov 2099 11:00:00 GMT": 24 * time.Hour,
	} {
		require.Equal(t, want, retryAfter(http.Header{"Retry-After": {said}}, now), said)
	}
}

func TestRetryAfterIsForTransientsAndNoLessThanTheRule(t *testing.T) {
	wait := func(code, seconds string) time.Duration {
		r := readRefusal([]byte(`{"error":{"code":` + code + `}}`))
		return r.failure(429, http.Header{"Retry-After": {seconds}}, Message{}, time.Time{}).RetryAfter
	}
	require.Equal(t, 90*time.Second, wait("130429", "90"))
	require.Equal(t, time.Minute, wait("131056", "5"))
	require.Equal(t, 2*time.Minute, wait("131056", "120"))
	require.Equal(t, 24*time.Hour, wait("131064", "5"))
	require.Zero(t, wait("132001", "90"))
}

// FuzzAnswer: whatever a provider answers, there is a class, a category and a code that can be stored.
func FuzzAnswer(f *testing.F) {
	f.Add(400, []byte(`{"error":{"code":131026,"is_transient":false}}`), "60")
	f.Add(422, []byte(`{"error":"marketing_preference_stopped","message":"x"}`), "Mon, 30 Nov 2026 12:02:00 GMT")
	f.Add(500, []byte("\xff{"), "-1")
	f.Add(200, []byte(`{"messages":[{"id":"wamid.a"}]}`), "")
	known := append(append(policy.TransientCategories(), policy.PermanentCategories()...), policy.CategoryUnknown)
	f.Fuzz(func(t *testing.T, status int, body []byte, header string) {
		_ = readID(body)
		failure := readRefusal(body).failure(status, http.Header{"Retry-After": {header}}, Message{Attempt: 1}, time.Time{})
		class := policy.Classify(failure)
		require.Contains(t, []policy.Class{policy.Transient, policy.Permanent}, class)
		require.True(t, slices.Contains(known, failure.Category))
		require.NotEmpty(t, failure.Code)
		require.Equal(t, failure.Code, policy.Clean(failure.Code, 64))
		require.True(t, failure.RetryAfter >= 0 && failure.RetryAfter <= 24*time.Hour)
		require.False(t, class == policy.Permanent && (failure.OutcomeUnknown || failure.RetryAfter > 0))
	})
}
