package email

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"strings"
)

// noValue is what text/template prints for a null.
const noValue = "<no value>"

var errNoValue = errors.New("a null was to be printed")

type executor interface {
	Execute(w io.Writer, data any) error
}

// render executes the templates that there are.
func (s *templateSet) render(data any) (m Message, err error) {
	if m.Subject, err = execute(s.subject, data); err != nil {
		return Message{}, err
	}
	if s.text != nil {
		if m.Text, err = execute(s.text, data); err != nil {
			return Message{}, err
		}
	}
	// html/template prints a null as nothing, and text that stands in the page as it is.
	if strings.Contains(m.Subject, noValue) || strings.Contains(m.Text, noValue) {
		return Message{}, errNoValue
	}
	if s.html != nil {
		if m.HTML, err = execute(s.html, data); err != nil {
			return Message{}, err
		}
	}
	return m, nil
}

func execute(t executor, data any) (string, error) {
	var text bytes.Buffer
	err := t.Execute(&text, data)
	return text.String(), err
}

// templateData decodes a payload for templates.
func templateData(payload []byte) (any, error) {
	if !json.Valid(payload) { // the decoder alone would be content with a valid beginning
		return nil, errors.New("the payload is not JSON")
	}
	decoder := json.NewDecoder(bytes.NewReader(payload))
	decoder.UseNumber()
	var data any
	if err := decoder.Decode(&data); err != nil {
		return nil, err
	}
	return withNumbers(data), nil
}

// number is a JSON number for templates: a float for comparisons and printf, but printed as people write it. A plain
// float64 of a million prints as 1e+06, and that in an invoice.
type number float64

func (n number) String() string { return strconv.FormatFloat(float64(n), 'f', -1, 64) }

// withNumbers replaces the numbers in decoded JSON. An integer too large for a float keeps its digits as text.
func withNumbers(value any) any {
	switch v := value.(type) {
	case json.Number:
		f, err := v.Float64()
		if n := number(f); err == nil && (strings.ContainsAny(v.String(), ".eE") || n.String() == v.String()) {
			return n
		}
	case []any:
		for i := range v {
			v[i] = withNumbers(v[i])
		}
	case map[string]any:
		for name := range v {
			v[name] = withNumbers(v[name])
		}
	}
	return value
}
