package wire

import (
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/gorm-outbox/outbox"
)

// specVersion is what CloudEvents 1.0.2 calls itself on the wire.
const specVersion = "1.0"

// maxTraceState is the least length that the W3C asks everybody to pass on; a longer one is left out.
const maxTraceState = 512

// CloudEvents gives CloudEvents 1.0.2 in binary mode: the body is the payload, and [Wire].Attributes hold id, source,
// specversion, type, time (when the message was enqueued) and, where the message has them, the extensions tenantid,
// traceparent and tracestate. The last two are taken from the message's headers of these names, if they are valid. The
// content type is the event's datacontenttype.
//
// source names who emits the events, a URI reference such as "https://shop.example" or "/orders"; together with the
// message id it identifies an event. One that is empty or no URI reference is refused with [outbox.ErrInvalid].
//
// A message is refused for good without a type (code no_type), and with a type or a tenant that no attribute may hold,
// such as one with control characters (bad_attribute).
func CloudEvents(source string) (Format, error) {
	if err := checkSource(source); err != nil {
		return nil, err
	}
	return FormatFunc(func(d outbox.Delivery) (Wire, error) {
		e, err := newEvent(source, d)
		if err != nil {
			return Wire{}, err
		}
		return Wire{Body: e.Data, ContentType: e.DataContentType, Attributes: e.attributes()}, nil
	}), nil
}

// StructuredCloudEvents is [CloudEvents] in structured mode: the whole event, the payload as its "data", is one JSON
// object. Use it where the protocol has no headers, or loses them.
func StructuredCloudEvents(source string) (Format, error) {
	if err := checkSource(source); err != nil {
		return nil, err
	}
	return FormatFunc(func(d outbox.Delivery) (Wire, error) {
		e, err := newEvent(source, d)
		if err != nil {
			return Wire{}, err
		}
		body, err := encode(e)
		if err != nil {
			return Wire{}, err
		}
		return Wire{Body: body, ContentType: CloudEventsJSON}, nil
	}), nil
}

func checkSource(source string) error {
	if _, err := url.Parse(source); source == "" || err != nil || !uriCharacters(source) {
		return fmt.Errorf("%w: CloudEvents: source must be a URI reference, such as https://shop.example or /orders", outbox.ErrInvalid)
	}
	return nil
}

// uriCharacters says whether s holds only what RFC 3986 allows, which url.Parse is lenient about.
func uriCharacters(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool {
		return r <= ' ' || r > '~' || strings.ContainsRune("\"<>\\^`{|}", r)
	}) < 0
}

// event is a CloudEvent in its JSON format.
type event struct {
	SpecVersion     string          `json:"specversion"`
	ID              string          `json:"id"`
	Source          string          `json:"source"`
	Type            string          `json:"type"`
	Time            string          `json:"time,omitempty"`
	DataContentType string          `json:"datacontenttype"`
	TenantID        string          `json:"tenantid,omitempty"`
	TraceParent     string          `json:"traceparent,omitempty"`
	TraceState      string          `json:"tracestate,omitempty"`
	Data            json.RawMessage `json:"data"`
}

func newEvent(source string, d outbox.Delivery) (event, error) {
	if err := identified(d); err != nil {
		return event{}, err
	}
	for _, value := range []string{d.MessageID, d.Type, d.TenantID} {
		if !attributeValue(value) {
			return event{}, refused("bad_attribute")
		}
	}
	data, err := dataOf(d)
	if err != nil {
		return event{}, err
	}
	e := event{
		SpecVersion: specVersion, ID: d.MessageID, Source: source, Type: d.Type, DataContentType: JSON,
		TenantID: d.TenantID, Data: data,
	}
	if !d.EnqueuedAt.IsZero() {
		e.Time = timestamp(d.EnqueuedAt)
	}
	e.TraceParent, e.TraceState = trace(d.Headers)
	return e, nil
}

// attributes are the context attributes that travel as headers; datacontenttype is not among them, since the protocol's
// own content type says it.
func (e event) attributes() map[string]string {
	attributes := map[string]string{
		"specversion": e.SpecVersion, "id": e.ID, "source": e.Source, "type": e.Type, "time": e.Time,
		"tenantid": e.TenantID, "traceparent": e.TraceParent, "tracestate": e.TraceState,
	}
	for name, value := range attributes {
		if value == "" { // an attribute is absent rather than empty
			delete(attributes, name)
		}
	}
	return attributes
}

// attributeValue says whether a CloudEvents string may hold s: no control characters, no noncharacters.
func attributeValue(s string) bool {
	return utf8.ValidString(s) && strings.IndexFunc(s, func(r rune) bool {
		return unicode.IsControl(r) || r&0xfffe == 0xfffe || r >= 0xfdd0 && r <= 0xfdef
	}) < 0
}

var traceParent = regexp.MustCompile(`^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`)

// trace gives the W3C trace context of a message's headers, and nothing of one that is not valid: a broken trace must
// not keep a message from its consumer.
func trace(headers map[string]string) (parent, state string) {
	parent = headers["traceparent"]
	const zeroTrace, zeroSpan = "00000000000000000000000000000000", "0000000000000000"
	if !traceParent.MatchString(parent) || parent[:2] == "ff" || parent[3:35] == zeroTrace || parent[36:52] == zeroSpan {
		return "", ""
	}
	state = headers["tracestate"]
	printable := strings.IndexFunc(state, func(r rune) bool { return r < ' ' || r > '~' }) < 0
	if len(state) > maxTraceState || !printable {
		state = ""
	}
	return parent, state
}
