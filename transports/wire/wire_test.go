package wire_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/gorm-outbox/outbox/transports/wire"
	"github.com/stretchr/testify/require"
)

const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

var enqueued = time.Date(2026, 3, 1, 12, 30, 0, 250_000_000, time.FixedZone("", 3600))

func delivery() outbox.Delivery {
	return outbox.Delivery{
		ID: 7, TenantID: "acme", Topic: "orders", Type: "order.created", Recipient: "https://shop.example/hooks",
		Payload: json.RawMessage(`{"a": "<é>"}`), MessageID: "0195a0a0-0000-7000-8000-000000000001", EnqueuedAt: enqueued,
		Headers: map[string]string{"traceparent": parent, "tracestate": "a=1", "secret": "s3cret"},
	}
}

// formats are all there are, and whether they refuse a message without a type.
func formats(t testing.TB) map[string]struct {
	wire.Format
	named bool
} {
	binary, err := wire.CloudEvents("/orders")
	require.NoError(t, err)
	structured, err := wire.StructuredCloudEvents("/orders")
	require.NoError(t, err)
	return map[string]struct {
		wire.Format
		named bool
	}{
		"payload": {wire.Payload, false}, "envelope": {wire.Envelope, true}, "standard webhooks": {wire.StandardWebhooks, true},
		"binary": {binary, true}, "structured": {structured, true},
	}
}

func TestEncode(t *testing.T) {
	want := map[string]struct{ body, contentType string }{
		"payload":           {`{"a": "<é>"}`, "application/json"},
		"binary":            {`{"a": "<é>"}`, "application/json"},
		"standard webhooks": {`{"type":"order.created","timestamp":"2026-03-01T11:30:00.25Z","data":{"a":"<é>"}}`, "application/json"},
		"envelope": {`{"id":"0195a0a0-0000-7000-8000-000000000001","type":"order.created",` +
			`"occurredAt":"2026-03-01T11:30:00.25Z","payload":{"a":"<é>"}}`, "application/json"},
		"structured": {`{"specversion":"1.0","id":"0195a0a0-0000-7000-8000-000000000001","source":"/orders","type":"order.created",` +
			`"time":"2026-03-01T11:30:00.25Z","datacontenttype":"application/json","tenantid":"acme","traceparent":"` + parent +
			`","tracestate":"a=1","data":{"a":"<é>"}}`, "application/cloudevents+json"},
	}
	for name, f := range formats(t) {
		t.Run(name, func(t *testing.T) {
			w, err := f.Encode(delivery())
			require.NoError(t, err)
			require.Equal(t, want[name].body, string(w.Body))
			require.Equal(t, want[name].contentType, w.ContentType)
			if name != "binary" {
				require.Nil(t, w.Attributes)
			}
		})
	}
}

func TestEncodeBinaryAttributes(t *testing.T) {
	w, err := formats(t)["binary"].Encode(delivery())
	require.NoError(t, err)
	require.Equal(t, map[string]string{
		"specversion": "1.0", "id": "0195a0a0-0000-7000-8000-000000000001", "source": "/orders", "type": "order.created",
		"time": "2026-03-01T11:30:00.25Z", "tenantid": "acme", "traceparent": parent, "tracestate": "a=1",
	}, w.Attributes)

	w, err = formats(t)["binary"].Encode(outbox.Delivery{Type: "t", MessageID: "m"})
	require.NoError(t, err)
	require.Equal(t, map[string]string{"specversion": "1.0", "id": "m", "source": "/orders", "type": "t"}, w.Attributes)
}

func TestEncodeRefuses(t *testing.T) {
	for name, f := range formats(t) {
		t.Run(name, func(t *testing.T) {
			d := delivery()
			d.Payload = json.RawMessage(`{"s3cret":`)
			requireFailure(t, f, d, policy.CategoryPayload, "invalid_json")

			d = delivery()
			d.Payload = nil
			w, err := f.Encode(d)
			require.NoError(t, err)
			require.Contains(t, string(w.Body), "null")

			d.Type = ""
			if !f.named {
				_, err := f.Encode(d)
				require.NoError(t, err)
				return
			}
			requireFailure(t, f, d, policy.CategoryRejected, "no_type")
			d = delivery()
			d.MessageID = ""
			requireFailure(t, f, d, policy.CategoryRejected, "no_message_id")
		})
	}
	for _, name := range []string{"binary", "structured"} {
		for _, bad := range []string{"a\nb", "\x7f", "\u0085", "\xff", "\ufffe", "\U0001ffff", "\ufdd0"} {
			d := delivery()
			d.Type = bad
			requireFailure(t, formats(t)[name], d, policy.CategoryRejected, "bad_attribute")
			d = delivery()
			d.TenantID = bad
			requireFailure(t, formats(t)[name], d, policy.CategoryRejected, "bad_attribute")
		}
	}
}

func requireFailure(t *testing.T, f wire.Format, d outbox.Delivery, category policy.Category, code string) {
	t.Helper()
	w, err := f.Encode(d)
	require.Zero(t, w)
	failure, ok := policy.AsFailure(err)
	require.True(t, ok)
	require.Equal(t, policy.Failure{Category: category, Code: code}, failure)
	require.Equal(t, policy.Permanent, policy.Classify(err))
	require.NotContains(t, err.Error(), "s3cret")
}

func TestTraceContext(t *testing.T) {
	for name, c := range map[string]struct {
		headers       map[string]string
		parent, state string
	}{
		"none":             {nil, "", ""},
		"parent alone":     {map[string]string{"traceparent": parent}, parent, ""},
		"state alone":      {map[string]string{"tracestate": "a=1"}, "", ""},
		"upper case":       {map[string]string{"traceparent": strings.ToUpper(parent)}, "", ""},
		"version ff":       {map[string]string{"traceparent": "ff" + parent[2:]}, "", ""},
		"zero trace":       {map[string]string{"traceparent": "00-" + strings.Repeat("0", 32) + parent[35:]}, "", ""},
		"zero span":        {map[string]string{"traceparent": parent[:36] + strings.Repeat("0", 16) + "-01"}, "", ""},
		"line break":       {map[string]string{"traceparent": parent + "\n"}, "", ""},
		"broken state":     {map[string]string{"traceparent": parent, "tracestate": "a=1\r\nb"}, parent, ""},
		"state of 512":     {map[string]string{"traceparent": parent, "tracestate": strings.Repeat("a", 512)}, parent, strings.Repeat("a", 512)},
		"state beyond 512": {map[string]string{"traceparent": parent, "tracestate": strings.Repeat("a", 513)}, parent, ""},
	} {
		t.Run(name, func(t *testing.T) {
			d := delivery()
			d.Headers = c.headers
			w, err := formats(t)["binary"].Encode(d)
			require.NoError(t, err)
			require.Equal(t, c.parent, w.Attributes["traceparent"])
			require.Equal(t, c.state, w.Attributes["tracestate"])
		})
	}
}

func TestCloudEventsSource(t *testing.T) {
	for _, source := range []string{"/", "orders", "https://shop.example/a?b#c", "urn:example:shop", "/a%20b"} {
		_, err := wire.CloudEvents(source)
		require.NoError(t, err, source)
	}
	for _, source := range []string{"", "a b", "/é", "http://[::1", "/\x00", "/<a>", "%zz"} {
		_, err := wire.CloudEvents(source)
		require.ErrorIs(t, err, outbox.ErrInvalid, source)
		_, err = wire.StructuredCloudEvents(source)
		require.ErrorIs(t, err, outbox.ErrInvalid, source)
	}
}

// FuzzEncode checks that whatever a message holds, what goes out is valid JSON that holds the payload, or nothing is.
func FuzzEncode(f *testing.F) {
	f.Add("order.created", "acme", `{"a":[1,"\u2028<>&"]}`, parent)
	f.Add("\xff\n", "\x00", `"\ud800"`, "x")
	f.Add("", "", ``, "")
	all := formats(f)
	f.Fuzz(func(t *testing.T, kind, tenant, payload, traceparent string) {
		d := delivery()
		d.Type, d.TenantID, d.Payload = kind, tenant, json.RawMessage(payload)
		d.Headers = map[string]string{"traceparent": traceparent, "tracestate": tenant}
		for name, format := range all {
			w, err := format.Encode(d)
			if err != nil {
				require.Equal(t, policy.Permanent, policy.Classify(err), name)
				require.Zero(t, w, name)
				continue
			}
			require.True(t, json.Valid(w.Body), "%s: %s", name, w.Body)
			again, err := format.Encode(d)
			require.NoError(t, err)
			require.Equal(t, w, again)
			for attribute, value := range w.Attributes {
				require.NotEmpty(t, value)
				require.Empty(t, strings.Trim(attribute, "abcdefghijklmnopqrstuvwxyz0123456789"))
			}
			requireHolds(t, w.Body, payload)
		}
	})
}

// requireHolds wants the payload in the body, as it is or as a member of the object.
func requireHolds(t *testing.T, body []byte, payload string) {
	var want any
	if payload != "" {
		if err := json.Unmarshal([]byte(payload), &want); err != nil {
			return // such as a number that no float holds
		}
	}
	var whole any
	require.NoError(t, json.Unmarshal(body, &whole))
	var members struct{ Payload, Data any }
	_ = json.Unmarshal(body, &members) // the payload alone need not be an object
	require.Contains(t, []any{whole, members.Payload, members.Data}, want)
}

func ExampleCloudEvents() {
	format, err := wire.CloudEvents("https://shop.example")
	if err != nil {
		panic(err)
	}
	w, err := format.Encode(outbox.Delivery{
		MessageID: "0195a0a0-0000-7000-8000-000000000001", Type: "order.created", Payload: json.RawMessage(`{"order":7}`),
	})
	fmt.Println(string(w.Body), w.Attributes["id"], w.Attributes["type"], err)
	// Output: {"order":7} 0195a0a0-0000-7000-8000-000000000001 order.created <nil>
}

func ExampleFormat() {
	w, err := wire.Envelope.Encode(outbox.Delivery{
		MessageID: "0195a0a0-0000-7000-8000-000000000001", Type: "order.created", Payload: json.RawMessage(`{"order":7}`),
		EnqueuedAt: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC),
	})
	fmt.Println(string(w.Body), err)
	// Output: {"id":"0195a0a0-0000-7000-8000-000000000001","type":"order.created","occurredAt":"2026-03-01T12:00:00Z","payload":{"order":7}} <nil>
}
