package outboxtest

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
)

var inputChecks = []check{
	{"that is bad is refused before any SQL", checkBadInput},
	{"that is bad keeps its batch out", checkBadBatch},
	{"at the limits is taken", checkLimits},
}

// secret is in every text that an error must not quote.
const secret = "s3cr3t"

// badInput is what makes a message unusable.
type badInput map[string]func(m *outbox.Message)

// unstorable are texts that no text column holds.
var unstorable = map[string]string{
	"NUL": secret + "\x00", "invalid UTF-8": secret + "\xff", "cut UTF-8": secret + "\xe2\x82",
	"lone surrogate": secret + "\xed\xa0\x80", "only NUL": "\x00", "overlong": "\xc0\x80",
}

// badTexts has each text field hold what cannot be stored, and more than may be.
func badTexts() badInput {
	bad := badInput{"empty Topic": func(m *outbox.Message) { m.Topic = "" }}
	fields := map[string]func(*outbox.Message) *string{
		"Topic":          func(m *outbox.Message) *string { return &m.Topic },
		"Type":           func(m *outbox.Message) *string { return &m.Type },
		"Recipient":      func(m *outbox.Message) *string { return &m.Recipient },
		"TenantID":       func(m *outbox.Message) *string { return &m.TenantID },
		"IdempotencyKey": func(m *outbox.Message) *string { return &m.IdempotencyKey },
	}
	for field, of := range fields {
		for fault, text := range unstorable {
			bad[fault+" in "+field] = func(m *outbox.Message) { *of(m) = text }
		}
		limit := 201
		if field == "Recipient" {
			limit = 2001
		}
		bad["long "+field] = func(m *outbox.Message) { *of(m) = secret + strings.Repeat("x", limit-len(secret)) }
		bad["long "+field+" of wide characters"] = func(m *outbox.Message) { *of(m) = strings.Repeat("ñ", limit) }
	}
	for fault, text := range unstorable {
		bad[fault+" in a header"] = func(m *outbox.Message) { m.Headers = map[string]string{"h": text} }
		bad[fault+" in a header's name"] = func(m *outbox.Message) { m.Headers = map[string]string{text: "h"} }
	}
	bad["large headers"] = func(m *outbox.Message) {
		m.Headers = map[string]string{"h": secret + strings.Repeat("x", 16<<10)}
	}
	return bad
}

// badPayloads has the payload hold, in every form, what jsonb cannot, and what is no JSON.
func badPayloads() badInput {
	bad := badInput{}
	add := func(name string, payload any) {
		bad[name] = func(m *outbox.Message) { m.Payload = payload }
	}
	for fault, text := range unstorable {
		add(fault+" in a text", text)
		add(fault+" in a struct", struct{ Name string }{text})
		add(fault+" in a map", map[string]any{"name": text})
		add(fault+" in a key", map[string]int{text: 1})
		add(fault+" in an array", []any{1, map[string]any{"a": []string{text}}})
		add(fault+" in raw JSON", json.RawMessage(`{"name":"`+text+`"}`))
	}
	for _, escape := range []string{`\u0000`, `\ud800`, `\udc00`, `\ud800\u0041`, `\udc00\ud800`} {
		add(escape+" in raw JSON", json.RawMessage(`{"name":"`+secret+escape+`"}`))
		add(escape+" in a key of raw JSON", json.RawMessage(`{"`+secret+escape+`":1}`))
		add(escape+" in nested raw JSON", map[string]any{"a": json.RawMessage(`["` + escape + `"]`)})
	}
	for name, text := range map[string]string{
		"no JSON": secret, "two values": `{} "` + secret + `"`, "half": `{"` + secret, "white space": " ", "NaN": "NaN",
		"byte order mark": "\ufeff{}", "huge number": "1e999999", "deep": strings.Repeat("[", 100000),
	} {
		add("raw JSON: "+name, json.RawMessage(text))
	}
	add("bytes", []byte(secret))
	add("a channel", make(chan int))
	add("a function", func() {})
	add("a channel within", map[string]any{secret: make(chan int)})
	add("infinity", math.Inf(1))
	add("not a number", math.NaN())
	add("failing MarshalJSON", failingJSON{})
	add("panicking MarshalJSON", panickingJSON{})
	add("over the limit", strings.Repeat("x", outbox.DefaultMaxPayload-1))
	add("over the limit in raw JSON", json.RawMessage(`"`+strings.Repeat("x", outbox.DefaultMaxPayload)+`"`))
	return bad
}

// failingJSON cannot be marshalled, and quotes itself.
type failingJSON struct{}

// MarshalJSON fails.
func (failingJSON) MarshalJSON() ([]byte, error) { return nil, jsonError(secret) }

// panickingJSON cannot be marshalled at all.
type panickingJSON struct{}

// MarshalJSON panics.
func (panickingJSON) MarshalJSON() ([]byte, error) { panic(secret) }

type jsonError string

func (e jsonError) Error() string { return string(e) }

// badNumbers has the other fields hold what they must not.
func badNumbers() badInput {
	return badInput{
		"negative Delay":     func(m *outbox.Message) { m.Delay = -1 },
		"most negative":      func(m *outbox.Message) { m.Delay = math.MinInt64 },
		"both times":         func(m *outbox.Message) { m.Delay, m.ScheduledFor = time.Second, time.Now() },
		"beyond year 9999":   func(m *outbox.Message) { m.ScheduledFor = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) },
		"far before":         func(m *outbox.Message) { m.ScheduledFor = time.Date(-300000, 1, 1, 0, 0, 0, 0, time.UTC) },
		"expires in 10000":   func(m *outbox.Message) { m.ExpiresAt = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) },
		"MaxAttempts -1":     func(m *outbox.Message) { m.MaxAttempts = -1 },
		"MaxAttempts 1001":   func(m *outbox.Message) { m.MaxAttempts = 1001 },
		"MaxAttempts lowest": func(m *outbox.Message) { m.MaxAttempts = math.MinInt },
	}
}

// private is a message whose every text is a secret.
func private() outbox.Message {
	return outbox.Message{
		Topic: topic, Type: "note", Recipient: secret + "@example.test", IdempotencyKey: secret + "-key",
		Payload: map[string]string{"secret": secret}, Headers: map[string]string{"secret": secret},
	}
}

func checkBadInput(t *testing.T, db *gorm.DB) {
	install(t, db)
	order := int64(0)
	var orders []int64
	for _, bad := range []badInput{badTexts(), badPayloads(), badNumbers()} {
		for name, spoil := range bad {
			order++
			orders = append(orders, order)
			require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
				require.NoError(t, tx.Create(&contractOrder{ID: order}).Error)
				counted, statements := counting(tx)
				m := private()
				spoil(&m)
				receipt, err := outbox.Enqueue(counted, m)
				require.ErrorIs(t, err, outbox.ErrInvalid, name)
				require.Zero(t, receipt, name)
				require.NotContains(t, err.Error(), secret, name)
				require.LessOrEqual(t, len(err.Error()), 500, name)
				require.Zero(t, statements.Load(), name)
				return nil
			}), name)
		}
	}
	requireOrders(t, db, orders...)
	require.Empty(t, records(t, db))
}

func checkBadBatch(t *testing.T, db *gorm.DB) {
	install(t, db)
	require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
		require.NoError(t, tx.Create(&contractOrder{ID: 7}).Error)
		ms := mails(2000)
		ms[1500].Payload = failingJSON{}
		receipts, err := outbox.EnqueueAll(tx, ms)
		require.ErrorIs(t, err, outbox.ErrInvalid)
		var cause jsonError
		require.ErrorAs(t, err, &cause, "what MarshalJSON said can be had")
		require.Contains(t, err.Error(), "1501", "it says which message")
		require.Nil(t, receipts)
		return nil
	}))
	requireOrders(t, db, 7)
	require.Empty(t, records(t, db))
}

func checkLimits(t *testing.T, db *gorm.DB) {
	install(t, db)
	wide := strings.Repeat("😀", 200)
	full := outbox.Message{
		Topic: wide, Type: wide, TenantID: wide, IdempotencyKey: wide, Recipient: strings.Repeat("ñ", 2000),
		Payload: strings.Repeat("x", outbox.DefaultMaxPayload-2), Headers: map[string]string{"h": strings.Repeat("x", 16<<10-8)},
		MaxAttempts: 1000,
	}
	enqueue(t, db, full)
	rec := NewRecorder()
	require.Equal(t, 1, once(t, db, configure(rec, wide)).Sent)
	d := rec.Deliveries()[0]
	require.Equal(t, full.Recipient, d.Recipient)
	require.Equal(t, full.Headers, d.Headers)
	require.Equal(t, 1000, d.MaxAttempts)

	later := outbox.Message{Topic: topic, Delay: math.MaxInt64}
	last := outbox.Message{Topic: topic, ScheduledFor: time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)}
	enqueue(t, db, later, last)
	require.Zero(t, once(t, db, configure(rec)).Claimed)
}
