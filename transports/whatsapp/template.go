package whatsapp

import (
	"net/url"
	"regexp"
	"strings"
	"unicode/utf8"
)

// Template is an approved template and what fills it in. The template itself, its text, footer and buttons, is kept by
// the provider; only what varies is sent.
type Template struct {
	// Name is the template's. Empty: the message's Type. Lower-case letters, digits and '_', at most 512.
	Name string
	// Language is the code under which it was approved: "es_AR", "en". Required.
	Language string
	// Header is what the header varies in. Zero: nothing.
	Header Header
	// Body holds the parameters of the text, at most 100, in the order of the template, or each with its name. Nil: none.
	Body []Parameter
	// Buttons are those that vary, at most 10. Nil: none.
	Buttons []Button
}

// Parameter fills in one place of a text.
type Parameter struct {
	Name string // of a template with named parameters; empty: the place in the list counts. All have names, or none
	Text string // required, valid UTF-8
}

// Text gives positional parameters.
func Text(texts ...string) []Parameter {
	parameters := make([]Parameter, len(texts))
	for i, text := range texts {
		parameters[i].Text = text
	}
	return parameters
}

// HeaderKind is what a header varies in.
type HeaderKind string

// The kinds of a header. The zero value is a header that does not vary, or none.
const (
	HeaderText     HeaderKind = "text"     // one parameter
	HeaderImage    HeaderKind = "image"    // a picture
	HeaderVideo    HeaderKind = "video"    // a video
	HeaderDocument HeaderKind = "document" // a file
)

// Header is a text or a medium. A medium is given by Link or by ID.
type Header struct {
	Kind     HeaderKind // empty: none, and nothing else may be set
	Text     Parameter  // text only
	Link     string     // http or https URL, from which the provider fetches the medium; at most 2000 characters
	ID       string     // the provider's id of a medium that was uploaded before; at most 2000 characters
	Filename string     // document only: the name it is shown under; may be empty
}

// ButtonKind is what a button does.
type ButtonKind string

// The buttons that can vary.
const (
	ButtonQuickReply ButtonKind = "quick_reply" // answers; Value is what the app gets back with the answer
	ButtonURL        ButtonKind = "url"         // opens a page; Value is the end of its address
)

// Button is a button that varies.
type Button struct {
	Kind  ButtonKind // required
	Index int        // its place among all buttons of the template, from 0 to 9
	Value string     // required, valid UTF-8
}

// Bounds that no template exceeds.
const (
	maxBody    = 100
	maxButtons = 10
	maxText    = 32 << 10 // bytes
	maxLink    = 2000
)

var (
	templateName = regexp.MustCompile(`^[a-z0-9_]{1,512}$`)
	language     = regexp.MustCompile(`^[a-z]{2,3}(_[A-Za-z0-9]{2,4})?$`)
	parameter    = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_]{0,99}$`)
)

// problem gives the code of what keeps the template from being sent; empty: nothing that can be seen from here.
func (t Template) problem() string {
	switch {
	case !templateName.MatchString(t.Name):
		return "invalid_name"
	case !language.MatchString(t.Language):
		return "invalid_language"
	case !t.Header.valid():
		return "invalid_header"
	case len(t.Body) > maxBody:
		return "too_many_parameters"
	case !validParameters(t.Body):
		return "invalid_parameter"
	case len(t.Buttons) > maxButtons:
		return "too_many_buttons"
	case !validButtons(t.Buttons):
		return "invalid_button"
	default:
		return ""
	}
}

func (h Header) valid() bool {
	switch h.Kind {
	case "":
		return h == Header{}
	case HeaderText:
		return h == Header{Kind: h.Kind, Text: h.Text} && validParameters([]Parameter{h.Text})
	case HeaderImage, HeaderVideo, HeaderDocument:
		return h.Text == Parameter{} && h.validMedium()
	default:
		return false
	}
}

func (h Header) validMedium() bool {
	if h.Filename != "" && (h.Kind != HeaderDocument || !validText(h.Filename)) {
		return false
	}
	if h.Link == "" {
		return visible.MatchString(h.ID) && len(h.ID) <= maxLink
	}
	link, err := url.Parse(h.Link)
	return err == nil && h.ID == "" && len(h.Link) <= maxLink && utf8.ValidString(h.Link) &&
		(link.Scheme == "https" || link.Scheme == "http") && link.Host != ""
}

// validParameters also sees to it that either all have names, each its own, or none has.
func validParameters(parameters []Parameter) bool {
	names := map[string]bool{}
	for _, p := range parameters {
		if !validText(p.Text) || p.Name != "" && (!parameter.MatchString(p.Name) || names[p.Name]) {
			return false
		}
		names[p.Name] = true
	}
	return !names[""] || len(names) == 1
}

func validButtons(buttons []Button) bool {
	taken := map[int]bool{}
	for _, b := range buttons {
		known := b.Kind == ButtonQuickReply || b.Kind == ButtonURL
		if !known || b.Index < 0 || b.Index >= maxButtons || taken[b.Index] || !validText(b.Value) {
			return false
		}
		taken[b.Index] = true
	}
	return true
}

// validText refuses what JSON could not carry unchanged, and what is empty, which the provider refuses.
func validText(s string) bool {
	return strings.TrimSpace(s) != "" && len(s) <= maxText && utf8.ValidString(s) && !strings.ContainsRune(s, 0)
}
