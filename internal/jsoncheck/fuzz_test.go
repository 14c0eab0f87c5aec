package jsoncheck

import (
	"bytes"
	"encoding/json"
	"io"
	"math/big"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// oracle finds, slowly and by other means than the scanner, why text that
// encoding/json holds to be valid must be refused; empty if it need not be.
func oracle(t *testing.T, text []byte) string {
	if !utf8.Valid(text) {
		return "UTF-8"
	}
	if losesSurrogates(t, text) {
		return "surrogate"
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	zeros := new(big.Int)
	for depth := 0; ; {
		token, err := dec.Token()
		if err == io.EOF {
			return ""
		}
		require.NoError(t, err)
		switch token := token.(type) {
		case json.Delim:
			if token == '[' || token == '{' {
				depth++
			} else {
				depth--
			}
			if depth > 500 {
				return "depth"
			}
		case string:
			if strings.ContainsRune(token, 0) {
				return "NUL"
			}
		case json.Number:
			digits, exponent := measure(token.String())
			zeros.Add(zeros, exponent)
			if digits > 1000 || exponent.Cmp(big.NewInt(1000)) > 0 || zeros.Cmp(big.NewInt(1<<26)) > 0 {
				return "number"
			}
		}
	}
}

var (
	shortEscape = regexp.MustCompile(`\\[^u]`)
	fffdEscape  = regexp.MustCompile(`(?i)\\ufffd`)
)

// losesSurrogates reports whether decoding makes more U+FFFD than were written,
// which is what encoding/json does with half a surrogate pair.
func losesSurrogates(t *testing.T, text []byte) bool {
	written := bytes.Count(text, []byte("\ufffd")) +
		len(fffdEscape.FindAll(shortEscape.ReplaceAll(text, nil), -1))
	read := 0
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	for {
		token, err := dec.Token()
		if err == io.EOF {
			return read > written
		}
		require.NoError(t, err)
		if s, ok := token.(string); ok {
			read += strings.Count(s, "\ufffd")
		}
	}
}

// measure gives a number's digits before the exponent and the exponent's magnitude.
func measure(number string) (digits int, exponent *big.Int) {
	mantissa, power, _ := strings.Cut(strings.ToLower(number), "e")
	digits = len(mantissa) - strings.Count(mantissa, "-") - strings.Count(mantissa, ".")
	exponent, _ = new(big.Int).SetString("0"+strings.TrimLeft(power, "+-"), 10)
	return digits, exponent
}

func FuzzMarshal(f *testing.F) {
	for _, seed := range []string{
		`null`, `{"a":[1,-2.5e+3,true,false,null,"x"]} `, `{} {}`, `"\u0000"`, `{"\\u0000":"\\\u0000"}`,
		`"\ud83d\ude00"`, `"\ud800"`, `"\udc00\ud800"`, `"\uD800\uD800"`, `"\ud800x"`, `"\ufffd\\ufffd"`,
		"\"\xff\"", "\"\ufffd\"", "\"\xed\xa0\x80\"", `1e1000`, `1e1001`, `-0.0E-99999999999999999999`, `01`,
		`"\/\b\f\n\r\t\"\\"`, "\ufeff1", nested(500), nested(501), strings.Repeat("9", 1001), benchmarkItem,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) == 0 {
			return // null, by definition
		}
		got, err := Marshal(json.RawMessage(text), len(text))
		if !json.Valid(text) {
			require.Error(t, err)
			return
		}
		if reason := oracle(t, text); reason != "" {
			require.Error(t, err, reason)
			return
		}
		require.NoError(t, err)
		require.Equal(t, text, []byte(got))
	})
}

// FuzzMarshalString checks that a Go string is accepted exactly if it comes back.
func FuzzMarshalString(f *testing.F) {
	for _, seed := range []string{"", "a", `\`, "\xff", "\\\xff", `\ufffd`, `\\ufffd`, "\ufffd", "\x00", `\u0000`, "\u2028<"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		sound := utf8.ValidString(s) && !strings.Contains(s, "\x00")
		require.Equal(t, sound, Text(s) == nil)
		for _, v := range []any{s, map[string]string{s: s}} {
			got, err := Marshal(v, 1<<20)
			require.Equal(t, sound, err == nil)
			if err == nil {
				require.True(t, json.Valid(got))
			}
		}
		got, err := Marshal(s, 1<<20)
		if err == nil {
			var back string
			require.NoError(t, json.Unmarshal(got, &back))
			require.Equal(t, s, back)
		}
	})
}
