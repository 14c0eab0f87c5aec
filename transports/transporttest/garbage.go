package transporttest

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/gorm-outbox/outbox"
)

// checkGarbage fails through call if one of them panics or does not return. Whether it is refused is the transport's
// business.
func checkGarbage(t *testing.T, c Case) {
	transport, _ := c.open(t)
	for name, d := range garbage(c.Delivery) {
		t.Run(name, func(t *testing.T) { send(t, transport, d) })
	}
}

// garbage gives deliveries that make no sense: the valid one with one thing spoilt in each.
func garbage(valid outbox.Delivery) map[string]outbox.Delivery {
	found := map[string]outbox.Delivery{"empty": {}}
	spoil := func(name string, change func(d *outbox.Delivery)) {
		d := valid
		change(&d)
		found[name] = d
	}
	for name, payload := range map[string]string{
		"no": "", "null": "null", "unfinished": `{"a":`, "number": "1e999", "array": `[[1],{"a":[]}]`, "string": `"text"`,
		"object": `{"":{"":null}}`, "not UTF-8": "\"\xff\xfe\"", "large": `"` + strings.Repeat("x", 2<<20) + `"`,
		"deep": strings.Repeat("[", 20000) + strings.Repeat("]", 20000),
	} {
		spoil(name+" payload", func(d *outbox.Delivery) { d.Payload = json.RawMessage(payload) })
	}
	for name, text := range map[string]string{
		"empty": "", "line break": "a\r\nInjected: b", "NUL": "a\x00b", "not UTF-8": "\xff\xfe", "brackets": "http://[::1/%zz?<>",
		"long": strings.Repeat("ñ", 2000), "dots": "../..//./", "wildcards": "*.>.#", "spaces": " a b ", "format": "%s%d%!{{.}}",
	} {
		spoil(name+" recipient", func(d *outbox.Delivery) { d.Recipient = text })
		spoil(name+" type", func(d *outbox.Delivery) { d.Type = text })
		spoil(name+" topic", func(d *outbox.Delivery) { d.Topic = text })
		spoil(name+" tenant", func(d *outbox.Delivery) { d.TenantID = text })
		spoil(name+" key", func(d *outbox.Delivery) { d.ProviderKey, d.MessageID = text, text })
		spoil(name+" headers", func(d *outbox.Delivery) { d.Headers = map[string]string{text: text, "Content-Type": text} })
	}
	return found
}
