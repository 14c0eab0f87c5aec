package whatsapp_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/gorm-outbox/outbox/transports/whatsapp"
	"github.com/stretchr/testify/require"
)

// send gives what became of a template: its code if it is refused.
func send(t *testing.T, template whatsapp.Template) (code string) {
	t.Helper()
	var got kept
	fill := func(context.Context, outbox.Delivery) (whatsapp.Template, error) { return template, nil }
	_, err := newTransport(t, whatsapp.Config{Params: fill, Sender: &got}).Send(context.Background(), delivery)
	if err == nil {
		require.Len(t, got.messages, 1)
		return ""
	}
	f := failure(t, err)
	require.Equal(t, policy.CategoryTemplate, f.Category)
	require.Equal(t, policy.Permanent, policy.Classify(err))
	require.Empty(t, got.messages)
	return f.Code
}

func TestTemplatesThatAreRefused(t *testing.T) {
	header := func(h whatsapp.Header) whatsapp.Template { return whatsapp.Template{Language: "es", Header: h} }
	body := func(p ...whatsapp.Parameter) whatsapp.Template { return whatsapp.Template{Language: "es", Body: p} }
	buttons := func(b ...whatsapp.Button) whatsapp.Template { return whatsapp.Template{Language: "es", Buttons: b} }
	text, medium := whatsapp.Parameter{Text: "x"}, "https://example.test/a"
	tests := []struct {
		name     string
		template whatsapp.Template
		code     string
	}{
		{"bare", whatsapp.Template{Language: "es"}, ""},
		{"no language", whatsapp.Template{}, "invalid_language"},
		{"a language by name", whatsapp.Template{Language: "Spanish"}, "invalid_language"},
		{"a language with a hyphen", whatsapp.Template{Language: "es-AR"}, "invalid_language"},
		{"three letters", whatsapp.Template{Language: "fil"}, ""},
		{"a name in capitals", whatsapp.Template{Name: "Welcome", Language: "es"}, "invalid_name"},
		{"a name with a dot", whatsapp.Template{Name: "evt.welcome", Language: "es"}, "invalid_name"},
		{"a long name", whatsapp.Template{Name: strings.Repeat("a", 513), Language: "es"}, "invalid_name"},
		{"the longest name", whatsapp.Template{Name: strings.Repeat("a", 512), Language: "es"}, ""},
		{"a text header", header(whatsapp.Header{Kind: whatsapp.HeaderText, Text: text}), ""},
		{"an empty text header", header(whatsapp.Header{Kind: whatsapp.HeaderText}), "invalid_header"},
		{"a text header with a medium", header(whatsapp.Header{Kind: whatsapp.HeaderText, Text: text, ID: "1"}), "invalid_header"},
		{"a header of no kind", header(whatsapp.Header{Link: medium}), "invalid_header"},
		{"a header of an unknown kind", header(whatsapp.Header{Kind: "audio", Link: medium}), "invalid_header"},
		{"an image by link", header(whatsapp.Header{Kind: whatsapp.HeaderImage, Link: medium}), ""},
		{"a video by id", header(whatsapp.Header{Kind: whatsapp.HeaderVideo, ID: "4711"}), ""},
		{"a medium that is nowhere", header(whatsapp.Header{Kind: whatsapp.HeaderImage}), "invalid_header"},
		{"a medium that is in two places", header(whatsapp.Header{Kind: whatsapp.HeaderImage, Link: medium, ID: "1"}), "invalid_header"},
		{"a medium with a text", header(whatsapp.Header{Kind: whatsapp.HeaderImage, Link: medium, Text: text}), "invalid_header"},
		{"a file by path", header(whatsapp.Header{Kind: whatsapp.HeaderImage, Link: "/etc/passwd"}), "invalid_header"},
		{"a file by URL", header(whatsapp.Header{Kind: whatsapp.HeaderImage, Link: "file:///etc/passwd"}), "invalid_header"},
		{"a link that is none", header(whatsapp.Header{Kind: whatsapp.HeaderImage, Link: "https://[::1/%zz"}), "invalid_header"},
		{"a long link", header(whatsapp.Header{Kind: whatsapp.HeaderImage, Link: medium + strings.Repeat("a", 2000)}), "invalid_header"},
		{"a document with a name", header(whatsapp.Header{Kind: whatsapp.HeaderDocument, ID: "1", Filename: "a.pdf"}), ""},
		{"an image with a name", header(whatsapp.Header{Kind: whatsapp.HeaderImage, ID: "1", Filename: "a.png"}), "invalid_header"},
		{"two texts", body(text, text), ""},
		{"an empty text", body(text, whatsapp.Parameter{Text: " \n"}), "invalid_parameter"},
		{"a text that is not UTF-8", body(whatsapp.Parameter{Text: "\xff"}), "invalid_parameter"},
		{"a text with a NUL", body(whatsapp.Parameter{Text: "a\x00"}), "invalid_parameter"},
		{"a huge text", body(whatsapp.Parameter{Text: strings.Repeat("a", 1<<20)}), "invalid_parameter"},
		{"named", body(whatsapp.Parameter{Name: "who", Text: "x"}, whatsapp.Parameter{Name: "when", Text: "x"}), ""},
		{"named twice", body(whatsapp.Parameter{Name: "who", Text: "x"}, whatsapp.Parameter{Name: "who", Text: "y"}), "invalid_parameter"},
		{"one named, one not", body(whatsapp.Parameter{Name: "who", Text: "x"}, text), "invalid_parameter"},
		{"one not named, one named", body(text, whatsapp.Parameter{Name: "who", Text: "x"}), "invalid_parameter"},
		{"a name with a space", body(whatsapp.Parameter{Name: "who is", Text: "x"}), "invalid_parameter"},
		{"as many texts as may be", body(whatsapp.Text(strings.Split(strings.Repeat("x", 100), "")...)...), ""},
		{"too many texts", body(whatsapp.Text(strings.Split(strings.Repeat("x", 101), "")...)...), "too_many_parameters"},
		{"two buttons", buttons(whatsapp.Button{Kind: whatsapp.ButtonURL, Value: "x"}, whatsapp.Button{Kind: whatsapp.ButtonQuickReply, Index: 9, Value: "x"}), ""},
		{"a button of no kind", buttons(whatsapp.Button{Value: "x"}), "invalid_button"},
		{"a button without a value", buttons(whatsapp.Button{Kind: whatsapp.ButtonURL}), "invalid_button"},
		{"a button before the first", buttons(whatsapp.Button{Kind: whatsapp.ButtonURL, Index: -1, Value: "x"}), "invalid_button"},
		{"a button after the last", buttons(whatsapp.Button{Kind: whatsapp.ButtonURL, Index: 10, Value: "x"}), "invalid_button"},
		{"two buttons in one place", buttons(whatsapp.Button{Kind: whatsapp.ButtonURL, Value: "x"}, whatsapp.Button{Kind: whatsapp.ButtonURL, Value: "y"}), "invalid_button"},
		{"too many buttons", buttons(make([]whatsapp.Button, 11)...), "too_many_buttons"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { require.Equal(t, tt.code, send(t, tt.template)) })
	}
}

func TestTypeThatIsNoTemplate(t *testing.T) {
	d := delivery
	d.Type = ""
	_, err := newTransport(t, whatsapp.Config{Sender: &kept{}}).Send(context.Background(), d)
	require.Equal(t, "invalid_name", failure(t, err).Code)
}

func TestWireForm(t *testing.T) {
	tests := []struct {
		name     string
		template whatsapp.Template
		want     string // of template
	}{
		{"bare", whatsapp.Template{Name: "n", Language: "es_AR"}, `{"name":"n","language":{"code":"es_AR"}}`},
		{"positional", whatsapp.Template{Name: "n", Language: "es", Body: whatsapp.Text("a", "<b>")},
			`{"name":"n","language":{"code":"es"},"components":[{"type":"body","parameters":[{"type":"text","text":"a"},{"type":"text","text":"<b>"}]}]}`},
		{"named", whatsapp.Template{Name: "n", Language: "es", Header: whatsapp.Header{Kind: whatsapp.HeaderText, Text: whatsapp.Parameter{Name: "h", Text: "x"}},
			Body: []whatsapp.Parameter{{Name: "who", Text: "Ana"}}},
			`{"name":"n","language":{"code":"es"},"components":[
				{"type":"header","parameters":[{"type":"text","parameter_name":"h","text":"x"}]},
				{"type":"body","parameters":[{"type":"text","parameter_name":"who","text":"Ana"}]}]}`},
		{"image by link", whatsapp.Template{Name: "n", Language: "es", Header: whatsapp.Header{Kind: whatsapp.HeaderImage, Link: "https://e.test/a?b=1&c"}},
			`{"name":"n","language":{"code":"es"},"components":[{"type":"header","parameters":[{"type":"image","image":{"link":"https://e.test/a?b=1&c"}}]}]}`},
		{"video by id", whatsapp.Template{Name: "n", Language: "es", Header: whatsapp.Header{Kind: whatsapp.HeaderVideo, ID: "4711"}},
			`{"name":"n","language":{"code":"es"},"components":[{"type":"header","parameters":[{"type":"video","video":{"id":"4711"}}]}]}`},
		{"document", whatsapp.Template{Name: "n", Language: "es", Header: whatsapp.Header{Kind: whatsapp.HeaderDocument, ID: "1", Filename: "a.pdf"}},
			`{"name":"n","language":{"code":"es"},"components":[{"type":"header","parameters":[{"type":"document","document":{"id":"1","filename":"a.pdf"}}]}]}`},
		{"buttons", whatsapp.Template{Name: "n", Language: "es", Buttons: []whatsapp.Button{
			{Kind: whatsapp.ButtonQuickReply, Value: "yes"}, {Kind: whatsapp.ButtonURL, Index: 1, Value: "o/7"}}},
			`{"name":"n","language":{"code":"es"},"components":[
				{"type":"button","sub_type":"quick_reply","index":"0","parameters":[{"type":"payload","payload":"yes"}]},
				{"type":"button","sub_type":"url","index":"1","parameters":[{"type":"text","text":"o/7"}]}]}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := whatsapp.Message{To: recipient, Template: tt.template, Reference: "7-x", Attempt: 3}
			body, err := json.Marshal(m)
			require.NoError(t, err)
			require.JSONEq(t, `{"messaging_product":"whatsapp","recipient_type":"individual","to":"`+recipient+`","type":"template",
				"biz_opaque_callback_data":"7-x","template":`+tt.want+`}`, string(body))
		})
	}
}
