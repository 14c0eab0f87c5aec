// Package jsoncheck refuses, before any SQL runs, what a supported database
// could not store or would give back changed. A statement that PostgreSQL
// refuses spoils the caller's whole transaction; a refusal here spoils nothing.
//
// The text of an error never holds content of the value, only positions, sizes,
// Go types and kinds of fault, so that it can be logged.
package jsoncheck

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"unicode/utf8"
)

// Marshal gives v as JSON text that every supported database stores and gives
// back as an equal value: jsonb forgets white space, the order of keys and all
// but the last of repeated keys.
//
// A json.RawMessage is checked and returned as it is, not copied; an empty one
// is null, and so is a nil v. A []byte is refused, because encoding/json would
// make it base64 in silence. limit is the most bytes that the text may have.
//
// One fault can't be seen: a string field with the ",string" tag option that
// holds invalid UTF-8, because its encoding is that of another, valid string.
func Marshal(v any, limit int) (json.RawMessage, error) {
	text, raw := v.(json.RawMessage)
	switch {
	case v == nil || raw && len(text) == 0:
		text = json.RawMessage("null")
	case raw:
	case isBytes(v):
		return nil, fmt.Errorf("a value of Go type %T would become base64: "+
			"wrap it in json.RawMessage if it is JSON, or encode it as a string yourself", v)
	default:
		var err error
		if text, err = encode(v); err != nil {
			return nil, err
		}
	}
	if len(text) > limit {
		return nil, fmt.Errorf("JSON text of %d bytes is over the limit of %d: "+
			"shorten it, or store the data elsewhere and send a reference", len(text), limit)
	}
	s := scanner{text: text, encoded: !raw}
	if err := s.document(); err != nil {
		return nil, err
	}
	return text, nil
}

// Text reports why s can't be stored in a text column: invalid UTF-8 or a NUL
// character; nil if it can.
func Text(s string) error {
	for i, r := range s {
		switch r {
		case 0:
			return fmt.Errorf("NUL character at byte %d: a text column can't hold it, remove it", i)
		case utf8.RuneError:
			// A genuine U+FFFD is three bytes long, a decoding error one.
			if _, size := utf8.DecodeRuneInString(s[i:]); size == 1 {
				return fmt.Errorf("invalid UTF-8 at byte %d: convert the text to UTF-8, "+
					"or encode it, for example as base64", i)
			}
		}
	}
	return nil
}

// isBytes reports whether encoding/json would write v, or what it points to, as
// base64. It sees named types too: a driver's type of raw bytes gets here by
// mistake as easily as a []byte does.
func isBytes(v any) bool {
	t := reflect.TypeOf(v)
	if t.Kind() == reflect.Pointer && !encodesItself(t) {
		t = t.Elem()
	}
	return t.Kind() == reflect.Slice && !encodesItself(t) &&
		t.Elem().Kind() == reflect.Uint8 && !encodesItself(reflect.PointerTo(t.Elem()))
}

func encodesItself(t reflect.Type) bool {
	return t.Implements(reflect.TypeFor[json.Marshaler]()) ||
		t.Implements(reflect.TypeFor[encoding.TextMarshaler]())
}

// hiddenError keeps the cause for errors.As and errors.Is but not in its text:
// encoding/json and user methods quote the values that they stumble over.
type hiddenError struct {
	text  string
	cause error
}

func (e *hiddenError) Error() string { return e.text }
func (e *hiddenError) Unwrap() error { return e.cause }

// encode is json.Marshal with errors that are safe to show, panics included.
func encode(v any) (text json.RawMessage, err error) {
	defer func() {
		if p := recover(); p != nil {
			cause, _ := p.(error)
			text, err = nil, &hiddenError{fmt.Sprintf("encoding Go type %T as JSON panicked: "+
				"mend the MarshalJSON or MarshalText method of it or of a type within it", v), cause}
		}
	}()
	if text, err = json.Marshal(v); err != nil {
		return nil, explain(v, err)
	}
	return text, nil
}

// explain looks only at the outermost error, which encoding/json made. Errors
// further in are a user's, whatever their type.
func explain(v any, err error) error {
	switch e := err.(type) {
	case *json.MarshalerError:
		return &hiddenError{fmt.Sprintf("the MarshalJSON or MarshalText method of Go type %v failed "+
			"or gave invalid JSON: errors.Unwrap gives the cause", e.Type), err}
	case *json.UnsupportedTypeError:
		return &hiddenError{fmt.Sprintf("Go type %v has no JSON form: "+
			"leave it out or give it a MarshalJSON method", e.Type), err}
	case *json.UnsupportedValueError:
		return &hiddenError{fmt.Sprintf("Go type %T holds a NaN, an infinity or a pointer cycle, "+
			"which have no JSON form: leave it out or replace it", v), err}
	}
	return &hiddenError{fmt.Sprintf("encoding Go type %T as JSON failed, for example at a json.Number "+
		"or a map key: errors.Unwrap gives the cause", v), err}
}
