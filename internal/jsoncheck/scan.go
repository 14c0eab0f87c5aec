package jsoncheck

import (
	"fmt"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth is half of SQLite's limit and far inside PostgreSQL's, which depends on
// the server's max_stack_depth.
const maxDepth = 500

// scanner checks a JSON text in one pass and allocates only for an error. It has
// a grammar of its own because json.Valid would be a second pass, could not say
// where the fault is, and json.SyntaxError quotes the text.
type scanner struct {
	text    []byte
	pos     int
	depth   int
	zeros   int  // that it takes to write out the exponents so far
	encoded bool // encoding/json wrote the text from a Go value
}

func (s *scanner) document() error {
	if err := s.value(); err != nil {
		return err
	}
	if s.space(); s.pos < len(s.text) {
		return s.invalid("nothing after the first JSON value")
	}
	return nil
}

func (s *scanner) value() error {
	s.space()
	switch c := s.peek(); {
	case c == '{':
		return s.container('}')
	case c == '[':
		return s.container(']')
	case c == '"':
		return s.quoted()
	case c == '-' || isDigit(c):
		return s.number()
	case s.takeWord("true") || s.takeWord("false") || s.takeWord("null"):
		return nil
	}
	return s.invalid("a JSON value")
}

// container checks an object or an array; end is its closing bracket.
func (s *scanner) container(end byte) error {
	if s.depth++; s.depth > maxDepth {
		return fmt.Errorf("JSON nested deeper than %d levels at byte %d: make it flatter", maxDepth, s.pos)
	}
	s.pos++
	if s.space(); s.take(end) {
		s.depth--
		return nil
	}
	for {
		if err := s.element(end == '}'); err != nil {
			return err
		}
		if s.space(); s.take(end) {
			s.depth--
			return nil
		}
		if !s.take(',') {
			return s.invalid("a comma or a closing bracket")
		}
	}
}

// element checks a value, with its key before it if it is an object's.
func (s *scanner) element(keyed bool) error {
	if !keyed {
		return s.value()
	}
	if s.space(); s.peek() != '"' {
		return s.invalid("an object key in double quotes")
	}
	if err := s.quoted(); err != nil {
		return err
	}
	if s.space(); !s.take(':') {
		return s.invalid("a colon after the object key")
	}
	return s.value()
}

// quoted checks a string or an object key.
func (s *scanner) quoted() error {
	for s.pos++; s.pos < len(s.text); {
		switch c := s.text[s.pos]; {
		case c == '"':
			s.pos++
			return nil
		case c == '\\':
			if err := s.escape(); err != nil {
				return err
			}
		case c < ' ':
			return s.invalid("control characters in strings to be escaped")
		case c < utf8.RuneSelf:
			s.pos++
		default:
			r, size := utf8.DecodeRune(s.text[s.pos:])
			if r == utf8.RuneError && size == 1 {
				return fmt.Errorf("invalid UTF-8 at byte %d of the JSON text: convert it to UTF-8, "+
					"or encode it, for example as base64", s.pos)
			}
			s.pos += size
		}
	}
	return s.invalid("a closing double quote")
}

// escape consumes the whole of an escape, so that the second of two backslashes
// never starts another one.
func (s *scanner) escape() error {
	if s.pos+1 < len(s.text) {
		switch s.text[s.pos+1] {
		case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			s.pos += 2
			return nil
		}
	}
	unit, ok := s.unit(s.pos)
	switch {
	case !ok:
		return s.invalid("a valid escape after the backslash")
	case unit == 0:
		return fmt.Errorf("NUL character (escape \\u0000) at byte %d of the JSON text: "+
			"PostgreSQL can't store it, remove it", s.pos)
	case utf16.IsSurrogate(unit):
		low, _ := s.unit(s.pos + 6)
		if utf16.DecodeRune(unit, low) == utf8.RuneError {
			return fmt.Errorf("half of a surrogate pair (an escape from \\ud800 to \\udfff) at byte %d "+
				"of the JSON text: it is no character, write the whole pair or remove it", s.pos)
		}
		s.pos += 6
	case s.encoded && string(s.text[s.pos:s.pos+6]) == `\ufffd`:
		// encoding/json writes a genuine U+FFFD raw, so this one replaces a byte
		// that would be lost. Only a json.RawMessage or a MarshalJSON method
		// within the value can have meant it, and those can write it raw.
		return fmt.Errorf("escape \\ufffd at byte %d of the JSON text: a Go string held invalid UTF-8, "+
			"which encoding/json replaces in silence: convert it to UTF-8, or encode it, "+
			"for example as base64", s.pos)
	}
	s.pos += 6
	return nil
}

// unit gives the UTF-16 code unit of the \u escape at pos, if there is one.
func (s *scanner) unit(pos int) (unit rune, ok bool) {
	if pos+6 > len(s.text) || s.text[pos] != '\\' || s.text[pos+1] != 'u' {
		return 0, false
	}
	for _, c := range s.text[pos+2 : pos+6] {
		switch {
		case isDigit(c):
			c -= '0'
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return 0, false
		}
		unit = unit<<4 | rune(c)
	}
	return unit, true
}

func (s *scanner) space() {
	for c := s.peek(); c == ' ' || c == '\t' || c == '\n' || c == '\r'; c = s.peek() {
		s.pos++
	}
}

// peek gives the next byte, and NUL, which JSON never holds, at the end.
func (s *scanner) peek() byte {
	if s.pos < len(s.text) {
		return s.text[s.pos]
	}
	return 0
}

func (s *scanner) take(c byte) bool {
	if s.peek() != c {
		return false
	}
	s.pos++
	return true
}

func (s *scanner) takeWord(word string) bool {
	end := s.pos + len(word)
	if end > len(s.text) || string(s.text[s.pos:end]) != word {
		return false
	}
	s.pos = end
	return true
}

func (s *scanner) invalid(want string) error {
	return fmt.Errorf("invalid JSON at byte %d of %d: wanted %s", s.pos, len(s.text), want)
}
