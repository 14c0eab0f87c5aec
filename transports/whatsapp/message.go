package whatsapp

import (
	"encoding/json"
	"strconv"
)

// Message is what a [Sender] gets: checked and complete. Marshalled to JSON it is the body of the Cloud API's request.
type Message struct {
	To        string   // digits of the number in international form
	Template  Template // with its name
	Reference string   // names the record; the provider gives it back with each status
	Attempt   int      // which attempt at the message this is, from 1
}

type wireMessage struct {
	Product       string       `json:"messaging_product"`
	RecipientType string       `json:"recipient_type"`
	To            string       `json:"to"`
	Type          string       `json:"type"`
	Reference     string       `json:"biz_opaque_callback_data,omitempty"`
	Template      wireTemplate `json:"template"`
}

type wireTemplate struct {
	Name     string `json:"name"`
	Language struct {
		Code string `json:"code"`
	} `json:"language"`
	Components []wireComponent `json:"components,omitempty"`
}

type wireComponent struct {
	Type       string          `json:"type"`
	SubType    ButtonKind      `json:"sub_type,omitempty"`
	Index      string          `json:"index,omitempty"` // a string, unlike what one would expect
	Parameters []wireParameter `json:"parameters"`
}

type wireParameter struct {
	Type     string      `json:"type"`
	Name     string      `json:"parameter_name,omitempty"`
	Text     string      `json:"text,omitempty"`
	Payload  string      `json:"payload,omitempty"`
	Image    *wireMedium `json:"image,omitempty"`
	Video    *wireMedium `json:"video,omitempty"`
	Document *wireMedium `json:"document,omitempty"`
}

type wireMedium struct {
	Link     string `json:"link,omitempty"`
	ID       string `json:"id,omitempty"`
	Filename string `json:"filename,omitempty"`
}

// MarshalJSON gives the body of the Cloud API's request for sending a template. The same message has the same bytes.
func (m Message) MarshalJSON() ([]byte, error) {
	w := wireMessage{
		Product: "whatsapp", RecipientType: "individual", To: m.To, Type: "template", Reference: m.Reference,
		Template: wireTemplate{Name: m.Template.Name, Components: m.Template.components()},
	}
	w.Template.Language.Code = m.Template.Language
	return json.Marshal(w)
}

// components are those that vary; a template without any has no such key.
func (t Template) components() []wireComponent {
	var components []wireComponent
	if t.Header.Kind != "" {
		components = append(components, wireComponent{Type: "header", Parameters: []wireParameter{t.Header.wire()}})
	}
	if len(t.Body) > 0 {
		body := wireComponent{Type: "body"}
		for _, p := range t.Body {
			body.Parameters = append(body.Parameters, wireParameter{Type: "text", Name: p.Name, Text: p.Text})
		}
		components = append(components, body)
	}
	for _, b := range t.Buttons {
		components = append(components, wireComponent{
			Type: "button", SubType: b.Kind, Index: strconv.Itoa(b.Index), Parameters: []wireParameter{b.wire()},
		})
	}
	return components
}

func (h Header) wire() wireParameter {
	p := wireParameter{Type: string(h.Kind), Name: h.Text.Name, Text: h.Text.Text}
	medium := &wireMedium{Link: h.Link, ID: h.ID, Filename: h.Filename}
	switch h.Kind {
	case HeaderImage:
		p.Image = medium
	case HeaderVideo:
		p.Video = medium
	case HeaderDocument:
		p.Document = medium
	}
	return p
}

func (b Button) wire() wireParameter {
	if b.Kind == ButtonQuickReply {
		return wireParameter{Type: "payload", Payload: b.Value}
	}
	return wireParameter{Type: "text", Text: b.Value}
}
