package tests

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
)

// shortTimeout is the least that a processor allows for an attempt.
const shortTimeout = time.Second

func TestC34_AServerThatFallsSilentCostsOneTimeout(t *testing.T) {
	const drips = "HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n{\"id\":\"one\"}"
	good := newResendDouble(t)
	mailServer := tcpServer(t, smtpUpTo(""))
	for name, c := range map[string]struct {
		server  func(net.Conn, *bufio.Reader)
		through func(t testing.TB, address string) outbox.Transport
		good    string
		unknown bool // the provider may have accepted
	}{
		"HTTP, no answer":           {silent, resendAt, good.address(), true},
		"HTTP, silent after header": {asked(headersOnly), resendAt, good.address(), true},
		"HTTP, a byte a second":     {asked(dripping(drips)), resendAt, good.address(), true},
		"SMTP, no greeting":         {silent, smtpAt, mailServer, false},
		"SMTP, silent after DATA":   {smtpUpTo("DATA"), smtpAt, mailServer, false},
		"SMTP, silent after mail":   {smtpUpTo("."), smtpAt, mailServer, true},
		"SMTP, a byte a second":     {dripping("220 mail.example\r\n"), smtpAt, mailServer, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			bad, good := c.through(t, tcpServer(t, c.server)), c.through(t, c.good)
			r.deliverPastSilence(func(ctx context.Context, d outbox.Delivery) (string, error) {
				if strings.HasPrefix(d.Recipient, "good@") {
					return good.Send(ctx, d)
				}
				return bad.Send(ctx, d)
			})
			require.Equal(t, 1, r.count("status = 'sent' AND recipient LIKE 'good@%'"))
			require.Equal(t, 4, r.count("status = 'pending' AND attempts = 1 AND last_error_category = 'timeout'"))
			require.Equal(t, c.unknown, r.count("unknown_since IS NOT NULL") == 4)
			require.Equal(t, c.unknown, r.count("unknown_since IS NULL") == 1)
		})
	}
}

// deliverPastSilence has four messages hang in all of four slots, and a fifth wait for one.
func (r *rig) deliverPastSilence(send outbox.TransportFunc) {
	r.Helper()
	r.enqueue(4, outbox.Message{Topic: mails, Type: "welcome", Recipient: "bad@example.test", Payload: 1})
	r.enqueue(1, outbox.Message{Topic: mails, Type: "welcome", Recipient: "good@example.test", Payload: 1})
	attempts := make(chan outbox.Attempt, 10)
	began := time.Now()
	stop := r.start(r.processor(r.open(), outbox.ProcessorConfig{
		Transports: map[string]outbox.Transport{mails: send}, Concurrency: 4, Timeout: shortTimeout, Lease: 10 * time.Second,
		OnAttempt: func(_ context.Context, a outbox.Attempt) { attempts <- a },
	}))
	for range 5 {
		a := wait(r, "an attempt", attempts)
		if strings.HasPrefix(a.Delivery.Recipient, "good@") {
			require.NoError(r, a.Err)
			require.Less(r, time.Since(began), 3*shortTimeout, "it waited for a slot, and no longer")
			continue
		}
		require.Equal(r, outbox.StatusPending, a.Status)
		require.Equal(r, policy.CategoryTimeout, a.Category)
		require.InDelta(r, shortTimeout, a.Duration, float64(time.Second))
	}
	stop()
}

func TestC35_ARepeatOfAnAcceptedMailIsRecognised(t *testing.T) {
	r, double := newRig(t), newResendDouble(t)
	messages := []outbox.Message{
		{TenantID: "club-1", IdempotencyKey: "welcome-7"}, {TenantID: "club-1", IdempotencyKey: "welcome-8"},
		{TenantID: "club-2", IdempotencyKey: "welcome-7"}, {TenantID: "", IdempotencyKey: "club-1:welcome-7"}, {TenantID: "club-1"}, {},
		{TenantID: "club-1", IdempotencyKey: strings.Repeat("k", 200)}, {TenantID: strings.Repeat("t", 200), IdempotencyKey: strings.Repeat("k", 200)},
		{TenantID: "cañón", IdempotencyKey: "año nuevo"}, {TenantID: "club:1", IdempotencyKey: "x"}, {TenantID: "club", IdempotencyKey: "1:x"},
	}
	for i := range messages {
		messages[i].Topic, messages[i].Type, messages[i].Recipient = mails, "welcome", "ana@example.test"
		messages[i].Payload = map[string]any{"b": 1, "a": "ñ", "html": "<&>"}
	}
	require.NoError(t, r.db.Transaction(func(tx *gorm.DB) error { _, err := outbox.EnqueueAll(tx, messages); return err }))
	round := func() outbox.Summary { // each by another worker, with a pool and a client of its own
		return counts(r.processor(r.open(), outbox.ProcessorConfig{
			Transports: map[string]outbox.Transport{mails: resendAt(t, double.address())}, Timeout: shortTimeout, Lease: 10 * time.Second,
		}).ProcessOnce(context.Background()))
	}
	n := len(messages)

	double.setSlow(true)
	require.Equal(t, outbox.Summary{Claimed: n, Retried: n}, round())
	r.makeDue()
	require.Equal(t, outbox.Summary{Claimed: n, Retried: n}, round())
	double.setSlow(false)
	r.makeDue()
	require.Equal(t, outbox.Summary{Claimed: n, Sent: n}, round())

	require.Len(t, double.requests, n, "a key for each message, and none twice")
	require.Len(t, double.sent, n, "each was sent once")
	for key, bodies := range double.requests {
		require.Regexp(t, `^[!-~]{1,256}$`, key)
		require.Len(t, bodies, 3, key)
		require.Equal(t, bodies[0], bodies[1], key)
		require.Equal(t, bodies[0], bodies[2], key)
	}
	for _, record := range r.records() {
		require.Contains(t, *record.ExternalID, "mail of ")
		require.Equal(t, 3, record.Attempts)
	}
}

// A provider forgets keys: what may have been sent longer ago is for a person to decide.
func TestC35_NoRepeatAfterTheKeyIsForgotten(t *testing.T) {
	r, double := newRig(t), newResendDouble(t)
	processor := r.processor(r.open(), outbox.ProcessorConfig{
		Transports: map[string]outbox.Transport{mails: resendAt(t, double.address())}, Timeout: shortTimeout, Lease: 10 * time.Second,
	})
	r.enqueue(1, outbox.Message{Topic: mails, Type: "welcome", Recipient: "ana@example.test", Payload: 1})
	double.setSlow(true)
	require.Equal(t, 1, processor.ProcessOnce(context.Background()).Retried)
	double.setSlow(false)

	r.exec("UPDATE outbox SET unknown_since = unknown_since - interval '22 hours 30 minutes'")
	r.makeDue()
	require.Equal(t, 1, processor.ProcessOnce(context.Background()).Sent, "the key still holds")

	r.enqueue(1, outbox.Message{Topic: mails, Type: "welcome", Recipient: "luz@example.test", Payload: 1})
	double.setSlow(true)
	require.Equal(t, 1, processor.ProcessOnce(context.Background()).Retried)
	double.setSlow(false)
	r.exec("UPDATE outbox SET unknown_since = unknown_since - interval '23 hours 30 minutes' WHERE status = 'pending'")
	r.makeDue()
	require.Equal(t, 1, processor.ProcessOnce(context.Background()).Discarded)

	last := r.records()[1]
	require.Equal(t, "idempotency_conflict", *last.LastErrorCategory)
	require.Equal(t, "key_window_passed", *last.LastErrorCode)
	total := 0
	for _, bodies := range double.requests {
		total += len(bodies)
	}
	require.Equal(t, 3, total, "the provider was not asked again")
}

// SMTP knows no key: the copies carry one Message-ID.
func TestC35_CopiesOfAMailHaveOneMessageID(t *testing.T) {
	r := newRig(t)
	ids := make(chan string, 10)
	server := func(last string) outbox.Transport {
		return smtpAt(t, tcpServer(t, func(conn net.Conn, reader *bufio.Reader) {
			smtpUpTo(last)(conn, bufio.NewReader(io.TeeReader(reader, headerWatch{"Message-ID:", ids})))
		}))
	}
	r.enqueue(1, outbox.Message{Topic: mails, Type: "welcome", Recipient: "ana@example.test", Payload: 1, IdempotencyKey: "k"})
	var seen []string
	for attempt, last := range []string{".", ""} { // the first takes the mail and does not say so
		r.makeDue()
		summary := r.processor(r.open(), outbox.ProcessorConfig{
			Transports: map[string]outbox.Transport{mails: server(last)}, Timeout: shortTimeout, Lease: 10 * time.Second,
		}).ProcessOnce(context.Background())
		require.Equal(t, attempt, summary.Sent)
		seen = append(seen, wait(r, fmt.Sprint("the id of attempt ", attempt), ids))
	}
	require.Equal(t, seen[0], seen[1])
	require.Equal(t, seen[0], *r.record().ExternalID)
}

// headerWatch sees what is read, and reports the values of a header.
type headerWatch struct {
	name  string
	found chan<- string
}

func (h headerWatch) Write(read []byte) (int, error) {
	unfolded := strings.ReplaceAll(string(read), "\r\n ", " ")
	for _, line := range strings.Split(unfolded, "\r\n") {
		if value, ok := strings.CutPrefix(line, h.name); ok {
			h.found <- strings.TrimSpace(value)
		}
	}
	return len(read), nil
}
