package email_test

import (
	"context"
	"encoding/json"
	"testing"
	"testing/fstest"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/gorm-outbox/outbox/transports/email"
	"github.com/stretchr/testify/require"
)

// folder makes files of names and contents.
func folder(namesAndContents ...string) fstest.MapFS {
	files := fstest.MapFS{}
	for i := 0; i < len(namesAndContents); i += 2 {
		files[namesAndContents[i]] = &fstest.MapFile{Data: []byte(namesAndContents[i+1])}
	}
	return files
}

func render(t *testing.T, files fstest.MapFS, kind, payload string) (email.Message, error) {
	t.Helper()
	r, err := email.Templates(files)
	require.NoError(t, err)
	return r(context.Background(), outbox.Delivery{Type: kind, Payload: json.RawMessage(payload)})
}

func TestTemplates(t *testing.T) {
	files := folder(
		"welcome.subject.txt", "\n  Welcome, {{.name}}\n", "welcome.html", "<p title=\"{{.name}}\">{{.name}}</p>\n", "welcome.txt", "Hi {{.name}}\n",
		"evt.order.created.v1.subject.txt", "Order {{.order.id}}", "evt.order.created.v1.txt", "{{range .items}}{{.}};{{end}}",
		"auth/otp.subject.txt", "{{.code}}", "auth/otp.html", "{{define \"code\"}}<b>{{.}}</b>{{end}}{{template \"code\" .code}}",
		".DS_Store", "x", ".hidden/file.bin", "x",
	)
	m, err := render(t, files, "welcome", `{"name":"<Ana> & \"co\""}`)
	require.NoError(t, err)
	require.Equal(t, email.Message{
		Subject: `Welcome, <Ana> & "co"`, HTML: "<p title=\"&lt;Ana&gt; &amp; &#34;co&#34;\">&lt;Ana&gt; &amp; &#34;co&#34;</p>\n",
		Text: "Hi <Ana> & \"co\"\n",
	}, m)
	m, err = render(t, files, "evt.order.created.v1", `{"order":{"id":9},"items":["a",2]}`)
	require.NoError(t, err)
	require.Equal(t, email.Message{Subject: "Order 9", Text: "a;2;"}, m)
	m, err = render(t, files, "auth/otp", `{"code":"0042"}`)
	require.NoError(t, err)
	require.Equal(t, email.Message{Subject: "0042", HTML: "<b>0042</b>"}, m)
}

func TestTemplatesPrintNumbersAsPeopleDo(t *testing.T) {
	files := folder("n.subject.txt", "{{.n}}", "n.txt", "{{.n}}", "n.html", "{{.n}}")
	for payload, want := range map[string]string{
		`{"n":1000000}`: "1000000", `{"n":12345678.5}`: "12345678.5", `{"n":0.00001}`: "0.00001", `{"n":-3}`: "-3", `{"n":1e3}`: "1000",
		`{"n":9007199254740993}`: "9007199254740993", `{"n":0}`: "0", `{"n":[1,{"x":1000000}]}`: "[1 map[x:1000000]]",
	} {
		m, err := render(t, files, "n", payload)
		require.NoError(t, err, payload)
		require.Equal(t, want, m.Subject)
		require.Equal(t, want, m.Text)
		require.Equal(t, want, m.HTML)
	}
	files = folder("n.subject.txt", `{{printf "%.2f" .n}}{{if gt .n 2.0}} many{{end}}{{if .zero}} wrong{{end}}`, "n.txt", "x")
	m, err := render(t, files, "n", `{"n":12,"zero":0}`)
	require.NoError(t, err)
	require.Equal(t, "12.00 many", m.Subject)
}

func TestTemplatesFailOnDataThatDoesNotFit(t *testing.T) {
	files := folder(
		"a.subject.txt", "s", "a.html", "{{.user.name}}", "b.subject.txt", "s", "b.txt", "{{.name}}",
		"c.subject.txt", "{{.name}}", "c.txt", "x", "d.subject.txt", "s", "d.txt", `{{with index . "name"}}Dear {{.}}{{else}}Hi{{end}}`,
	)
	transport, _ := newTransport(t, mustTemplates(t, files))
	send := func(kind, payload string) error {
		d := delivery()
		d.Type, d.Payload = kind, json.RawMessage(payload)
		_, err := transport.Send(context.Background(), d)
		return err
	}
	for kind, payloads := range map[string][]string{
		"a": {`{}`, `{"user":{}}`, `{"user":null}`, `{"user":"Ana"}`, `[1]`, `"text"`, `null`, `17`},
		"b": {`{}`, `{"name":null}`, `null`, `[]`}, "c": {`{}`, `{"name":null}`},
	} {
		for _, payload := range payloads {
			requireFailure(t, send(kind, payload), policy.CategoryTemplate, "render")
		}
	}
	require.NoError(t, send("d", `{}`), "a field may be absent where the template says so")
	requireFailure(t, send("c", `{"name":"Ana\r\nBcc: luz@example.test"}`), policy.CategoryTemplate, "header_injection")
	requireFailure(t, send("nothing", `{}`), policy.CategoryTemplate, "unknown_template")
	requireFailure(t, send("", `{}`), policy.CategoryTemplate, "unknown_template")
	requireFailure(t, send("../b", `{}`), policy.CategoryTemplate, "unknown_template")
	for _, payload := range []string{``, `{`, `{} {}`, `nonsense`} {
		requireFailure(t, send("b", payload), policy.CategoryPayload, "decode")
	}
}

func mustTemplates(t *testing.T, files fstest.MapFS) email.Render {
	t.Helper()
	r, err := email.Templates(files)
	require.NoError(t, err)
	return r
}

func TestTemplatesAreCheckedAtStart(t *testing.T) {
	for name, c := range map[string]struct {
		files fstest.MapFS
		says  []string
	}{
		"none":            {folder(), []string{"no templates"}},
		"only hidden":     {folder(".a.txt", "x"), []string{"no templates"}},
		"no subject":      {folder("a.html", "x"), []string{"a.subject.txt is missing"}},
		"no body":         {folder("a.subject.txt", "x"), []string{"a.html and a.txt are missing"}},
		"subject syntax":  {folder("a.subject.txt", "{{.x", "a.txt", "x"), []string{"a.subject.txt: "}},
		"html syntax":     {folder("a.subject.txt", "x", "a.html", "{{if}}"), []string{"a.html: "}},
		"text syntax":     {folder("a.subject.txt", "x", "a.txt", "{{end}}"), []string{"a.txt: "}},
		"unknown func":    {folder("a.subject.txt", "x", "a.txt", "{{money .x}}"), []string{"a.txt: ", "money"}},
		"html context":    {folder("a.subject.txt", "x", "a.html", "<a href='{{if .x}}a{{else}}'b{{end}}>"), []string{"a.html: "}},
		"text call":       {folder("a.subject.txt", "x", "a.txt", "{{if .x}}{{range .y}}{{template \"foot\"}}{{end}}{{end}}"), []string{"a.txt: ", "foot"}},
		"nested call":     {folder("a.subject.txt", "x", "a.txt", "{{define \"p\"}}{{with .x}}{{template \"q\"}}{{end}}{{end}}"), []string{"a.txt: ", `"q"`}},
		"html call":       {folder("a.subject.txt", "x", "a.html", "{{template \"foot\"}}"), []string{"a.html: ", "foot"}},
		"another kind":    {folder("a.subject.txt", "x", "a.txt", "x", "logo.png", "x"), []string{"logo.png: is no template"}},
		"all at once":     {folder("a.html", "x", "b.subject.txt", "{{", "b.txt", "{{", "c.md", ""), []string{"a.subject.txt", "b.subject.txt", "b.txt", "c.md"}},
		"broken, no rest": {folder("a.html", "{{"), []string{"a.html: "}},
	} {
		_, err := email.Templates(c.files)
		require.ErrorIs(t, err, outbox.ErrInvalid, name)
		for _, text := range c.says {
			require.ErrorContains(t, err, text, name)
		}
	}
	_, err := email.Templates(nil)
	require.ErrorIs(t, err, outbox.ErrInvalid)
}
