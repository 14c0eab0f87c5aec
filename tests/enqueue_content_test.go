package tests

import (
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
)

// refused are messages that no database could take, or would not give back.
var refused = []struct {
	name    string
	message outbox.Message
}{
	{"no topic", outbox.Message{}},
	{"NUL in a struct", withPayload(struct{ Name string }{"a\x00b"})},
	{"NUL in a map", withPayload(map[string]string{"name": "a\x00b"})},
	{"NUL in raw JSON", withPayload(json.RawMessage(`{"name":"a\u0000b"}`))},
	{"NUL in a nested array", withPayload(map[string]any{"a": []any{1, []any{"x\x00"}}})},
	{"NUL in an object key", withPayload(map[string]any{"a\x00": 1})},
	{"NUL in a raw object key", withPayload(json.RawMessage(`{"a\u0000":1}`))},
	{"NUL in a header", outbox.Message{Topic: "email", Headers: map[string]string{"h": "\x00"}}},
	{"NUL in a header's name", outbox.Message{Topic: "email", Headers: map[string]string{"\x00": "h"}}},
	{"NUL in the recipient", outbox.Message{Topic: "email", Recipient: "ana\x00"}},
	{"NUL in the key", keyed("", "", "k\x00")},
	{"NUL in the tenant", keyed("", "t\x00", "k")},
	{"NUL in the type", mail("\x00")},
	{"NUL in the topic", outbox.Message{Topic: "e\x00"}},
	{"invalid UTF-8 in the recipient", outbox.Message{Topic: "email", Recipient: "\xe9\xff"}},
	{"invalid UTF-8 in the payload", withPayload("\xe9\xff")},
	{"invalid UTF-8 in raw JSON", withPayload(json.RawMessage("\"\xe9\xff\""))},
	{"lone surrogate", withPayload(json.RawMessage(`"\ud800"`))},
	{"NaN", withPayload(math.NaN())},
	{"no JSON", withPayload(json.RawMessage(`{"a":`))},
	{"a channel", withPayload(make(chan int))},
	{"bytes", withPayload([]byte("{}"))},
	{"too large", withPayload(strings.Repeat("x", outbox.DefaultMaxPayload))},
	{"long key", keyed("", "", strings.Repeat("k", 201))},
	{"long recipient", outbox.Message{Topic: "email", Recipient: strings.Repeat("r", 2001)}},
	{"negative delay", outbox.Message{Topic: "email", Delay: -1}},
	{"both times", outbox.Message{Topic: "email", Delay: 1, ScheduledFor: time.Unix(1, 0)}},
	{"year 10000", outbox.Message{Topic: "email", ScheduledFor: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)}},
	{"too many attempts", outbox.Message{Topic: "email", MaxAttempts: 1001}},
	{"negative attempts", outbox.Message{Topic: "email", MaxAttempts: -1}},
}

func withPayload(v any) outbox.Message { return outbox.Message{Topic: "email", Payload: v} }

func TestC19_WhatTheDatabaseCannotHoldIsRefusedBeforeAnySQL(t *testing.T) {
	dsn := cluster.CreateDatabase(t)
	db, log := openTraced(t, dsn, gorm.Config{}, nil)
	require.NoError(t, db.Use(outbox.Plugin{}))
	tx := begin(t, db)
	log.take()
	for _, bad := range refused {
		t.Run(bad.name, func(t *testing.T) {
			_, err := outbox.Enqueue(tx, bad.message)
			require.ErrorIs(t, err, outbox.ErrInvalid)
			require.Empty(t, log.take())
		})
	}
	_, err := outbox.Enqueue(tx, mail("good"))
	require.NoError(t, err)
	require.NoError(t, tx.Commit().Error)
	require.Equal(t, []string{"good"}, typesOf(records(t, db)))
}

// awkward are payloads that every database must give back as they were.
var awkward = []any{
	nil, true, "", "text", 0, -1.5, []any{}, map[string]any{}, json.RawMessage(nil), json.RawMessage(`null`),
	json.RawMessage(` {"a" : [1, 2.50, 1e3, {"b":null}] } `),
	json.RawMessage(`12345678901234567890123456789012345678901234567890`),
	json.RawMessage(`"\u00e9\ud83d\ude00\/\\\"\b\f\n\r\t"`),
	"quotes ' \" \\ ? $1 :name @name %s {now} \u2028 \ufffd \U0001f600 é",
	map[string]any{"?": "?", "$1": "$1", "@name": "@name", "a.b": nil, "": 0, "é\U0001f600": []any{"'", "\\u0000"}},
	strings.Repeat("x", outbox.DefaultMaxPayload-2),
	nested(500),
	json.RawMessage(`1e1000`), json.RawMessage(`-0.0`), json.RawMessage(`1E-400`),
	json.RawMessage(`{"a":1,"b":[]}`), json.RawMessage(`"\u001f\u007f\u0080\ud7ff\ue000"`),
}

func nested(depth int) json.RawMessage {
	return json.RawMessage(strings.Repeat(`[`, depth) + `1` + strings.Repeat(`]`, depth))
}

func TestC19_AwkwardContentComesBackAsItWas(t *testing.T) {
	const text = "quotes ' \" \\ ? $1 @name %s {now} \t\n\u200b\ufeff\U0001f600 é"
	eachEngine(t, gorm.Config{}, func(t *testing.T, db *gorm.DB) {
		var messages []outbox.Message
		for i, payload := range awkward {
			messages = append(messages, outbox.Message{
				Topic: "email", Type: fmt.Sprint(i), Payload: payload, Recipient: text, TenantID: text, IdempotencyKey: text + fmt.Sprint(i),
				Headers: map[string]string{text: text, "": "", "n": "1"},
			})
		}
		for _, m := range messages {
			enqueue(t, db, m) // alone,
			m.IdempotencyKey += "again"
			enqueue(t, db, mail("other"), m) // and among others
		}
		box := &mailbox{}
		require.Equal(t, 3*len(messages), drain(t, db, box).Sent)
		seen := map[string]int{}
		for _, d := range box.deliveries() {
			if d.Type == "other" {
				require.JSONEq(t, "null", string(d.Payload))
				require.Nil(t, d.Headers)
				continue
			}
			seen[d.Type]++
			for i, payload := range awkward {
				if d.Type == fmt.Sprint(i) {
					requireSameJSON(t, payload, d.Payload)
				}
			}
			require.Equal(t, text, d.Recipient)
			require.Equal(t, text, d.TenantID)
			require.Equal(t, map[string]string{text: text, "": "", "n": "1"}, d.Headers)
		}
		for i := range awkward {
			require.Equal(t, 2, seen[fmt.Sprint(i)])
		}
	})
}

// requireSameJSON compares as numbers of any size and length.
func requireSameJSON(t *testing.T, want any, got json.RawMessage) {
	t.Helper()
	text, err := json.Marshal(want)
	require.NoError(t, err)
	if raw, ok := want.(json.RawMessage); ok && len(raw) > 0 {
		text = raw
	}
	require.Equal(t, decoded(t, text), decoded(t, got))
}

func decoded(t *testing.T, text []byte) any {
	t.Helper()
	var v any
	decoder := json.NewDecoder(strings.NewReader(string(text)))
	decoder.UseNumber()
	require.NoError(t, decoder.Decode(&v), "%.200s", text)
	return exact(t, v)
}

// exact puts numbers in a form that is the same however they are written: 2.50, 25e-1.
func exact(t *testing.T, v any) any {
	t.Helper()
	switch v := v.(type) {
	case json.Number:
		n, ok := new(big.Rat).SetString(v.String())
		require.True(t, ok, v)
		return n.RatString()
	case []any:
		for i := range v {
			v[i] = exact(t, v[i])
		}
	case map[string]any:
		for name := range v {
			v[name] = exact(t, v[name])
		}
	}
	return v
}

// TestTheLongestAndTheLatest: what is within the limits fits into the columns, the indexes and the calendar.
func TestTheLongestAndTheLatest(t *testing.T) {
	wide := func(n int) string { return strings.Repeat("\U0001f600", n) }
	eachEngine(t, gorm.Config{}, func(t *testing.T, db *gorm.DB) {
		longest := outbox.Message{
			Topic: wide(200), Type: wide(200), Recipient: wide(2000), TenantID: wide(200), IdempotencyKey: wide(200),
			Payload: strings.Repeat("x", outbox.DefaultMaxPayload-2), Headers: map[string]string{"h": strings.Repeat("x", 16<<10-8)},
			MaxAttempts: 1000,
		}
		first, latest, delayed := mail("first"), mail("latest"), mail("delayed")
		first.ScheduledFor = time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC)
		latest.ScheduledFor = time.Date(9999, 12, 31, 23, 59, 59, 999_999_999, time.UTC)
		delayed.Delay = math.MaxInt64
		for _, m := range []outbox.Message{longest, first, latest, delayed} {
			enqueue(t, db, m)
			m.IdempotencyKey = ""
			enqueue(t, db, m, m)
		}
		for _, r := range records(t, db) {
			switch r.Type {
			case "first":
				require.True(t, r.DueAt.Equal(first.ScheduledFor))
			case "latest":
				require.WithinDuration(t, latest.ScheduledFor, r.DueAt, time.Millisecond)
				require.False(t, r.DueAt.After(latest.ScheduledFor))
			case "delayed":
				require.WithinDuration(t, r.CreatedAt.Add(math.MaxInt64), r.DueAt, 2*time.Millisecond)
			}
		}
		box := &mailbox{}
		p, err := outbox.NewProcessor(db, outbox.ProcessorConfig{Transports: map[string]outbox.Transport{"email": box, wide(200): box}})
		require.NoError(t, err)
		require.Equal(t, outbox.Summary{Claimed: 6, Sent: 6}, p.ProcessOnce(t.Context()))
		require.Equal(t, longest.Recipient, box.deliveries()[0].Recipient)
		require.LessOrEqual(t, len(box.deliveries()[0].ProviderKey), 256)
	})
}
