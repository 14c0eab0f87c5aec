package smtp_test

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	gosmtp "github.com/emersion/go-smtp"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/stretchr/testify/require"
)

// reply is what a real server says: "550 5.1.1". A status of 0.0.0 sends none.
func reply(code string) error {
	number, status, _ := strings.Cut(code, " ")
	e := &gosmtp.SMTPError{EnhancedCode: gosmtp.NoEnhancedCode, Message: "no mail for ana@example.test here"}
	e.Code, _ = strconv.Atoi(number)
	if status != "" {
		_, _ = fmt.Sscanf(status, "%d.%d.%d", &e.EnhancedCode[0], &e.EnhancedCode[1], &e.EnhancedCode[2])
	}
	return e
}

func TestReplies(t *testing.T) {
	const (
		from = "MAIL"
		rcpt = "RCPT"
		data = "the mail"
		full = 5 * time.Minute
	)
	type want struct {
		category policy.Category
		class    policy.Class
		wait     time.Duration
	}
	network := want{policy.CategoryNetwork, policy.Transient, 0}
	limited := want{policy.CategoryRateLimited, policy.Transient, full}
	credentials := want{policy.CategoryCredentials, policy.Permanent, 0}
	rejected := want{policy.CategoryRejected, policy.Permanent, 0}
	number := want{policy.CategoryNumber, policy.Permanent, 0}
	for _, c := range []struct {
		codes []string
		at    []string
		want  want
	}{
		{[]string{"421", "450", "451", "455", "451 4.3.0", "450 4.4.1", "451 4.5.0", "421 4.7.0", "454 4.7.0"}, []string{from, rcpt, data}, network},
		{[]string{"452", "452 4.2.2", "450 4.2.2", "451 4.3.1", "452 4.5.3"}, []string{from, rcpt, data}, limited},
		{[]string{"450 4.7.1", "451 4.7.0", "451 4.7.650"}, []string{from, rcpt, data}, limited},
		{[]string{"530", "530 5.7.0", "534", "535", "538", "550 5.7.8", "550 5.7.9", "538 5.7.11"}, []string{from, rcpt, data}, credentials},
		{[]string{"500", "501", "502", "503", "504", "501 5.5.4", "555 5.5.4", "550 5.5.0"}, []string{from, rcpt, data}, rejected},
		{[]string{"550", "551", "553", "556"}, []string{rcpt, data}, number},
		{[]string{"550 5.1.0", "550 5.1.1", "550 5.1.2", "553 5.1.3", "550 5.1.4", "550 5.1.5", "551 5.1.6", "556 5.1.10"}, []string{rcpt, data}, number},
		{[]string{"550 5.2.1", "552 5.2.2", "550 5.4.1", "550 5.4.4", "554 5.1.1"}, []string{rcpt, data}, number},
		{[]string{"550", "553", "550 5.1.7", "550 5.1.8", "550 5.7.1", "553 5.1.3"}, []string{from}, credentials},
		{[]string{"552 5.3.4", "552 5.2.3", "554 5.3.4"}, []string{from, rcpt, data}, rejected},
		{[]string{"552"}, []string{from, data}, rejected},
		{[]string{"552"}, []string{rcpt}, want{policy.CategoryRateLimited, policy.Transient, 0}},
		{[]string{"554", "554 5.6.0", "550 5.7.26", "554 5.7.1", "550 5.7.515", "571 5.7.1"}, []string{rcpt, data}, rejected},
		{[]string{"499", "432 4.9.9"}, []string{rcpt, data}, network},
		{[]string{"599", "569 5.9.9"}, []string{rcpt, data}, rejected},
	} {
		for _, code := range c.codes {
			for _, at := range c.at {
				server := startServer(t, false, nil)
				switch at {
				case from:
					server.onMail = reply(code)
				case rcpt:
					server.onRcpt = reply(code)
				case data:
					server.onData = func(net.Conn) error { return reply(code) }
				}
				_, err := plainSender(t, server.port).Send(context.Background(), mail())
				t.Logf("%s at %s", code, at)
				requireFailure(t, err, c.want.class, policy.Failure{Category: c.want.category, Code: code, RetryAfter: c.want.wait})
				require.NotContains(t, fmt.Sprintf("%+v", err), "ana@example.test")
			}
		}
	}
}

// A code in the middle of the text, such as a part of an address, is none.
func TestEnhancedCodeStandsInFront(t *testing.T) {
	for text, want := range map[string]string{
		"550 host 5.1.1.1 is blocked": "550", "550 5.1.1 no such user": "550 5.1.1", "550 5.1.1": "550 5.1.1", "550 ": "550",
		"550-5.1.1 no such\r\n550 5.7.1 user": "550 5.1.1",
	} {
		port := startScript(t, func(s script) {
			if s.upTo("RCPT") {
				s.say(text)
				s.silence()
			}
		})
		_, err := plainSender(t, port).Send(context.Background(), mail())
		requireFailure(t, err, policy.Permanent, policy.Failure{Category: policy.CategoryNumber, Code: want})
	}
}
