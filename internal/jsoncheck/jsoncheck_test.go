package jsoncheck

import (
	"encoding/json"
	"errors"
	"io"
	"math"
	"math/big"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// secret stands for content that no error may show.
const secret = "s3cr3t"

const roomy = 1 << 20

// requireRefusal checks that err is there and says want, without any of the content.
func requireRefusal(t *testing.T, err error, want string) {
	t.Helper()
	require.ErrorContains(t, err, want)
	require.NotContains(t, err.Error(), secret)
}

func nested(depth int) string {
	return strings.Repeat("[", depth) + strings.Repeat("]", depth)
}

func TestMarshalAcceptsRawJSON(t *testing.T) {
	for name, text := range map[string]string{
		"scalar":                          `1`,
		"white space":                     " \t\r\n{ \"a\" : [ 1 , true , false , null ] } ",
		"empty containers":                `{"a":{},"b":[],"c":[ ],"d":{ }}`,
		"all short escapes":               `"\"\\\/\b\f\n\r\t"`,
		"unicode escapes":                 `"\u0001\u00e9\uD7FF\uE000\uFFFF\u007f"`,
		"escaped backslash, then u0000":   `"\\u0000"`,
		"two escaped backslashes":         `"\\\\u0000"`,
		"escaped backslash, then ud800":   `{"\\ud800":1}`,
		"surrogate pair":                  `"\ud83d\ude00"`,
		"surrogate pair, other case":      `"\uD83D\uDe00\udbff\udfff"`,
		"surrogate pair in a key":         `{"\ud83d\ude00":1}`,
		"genuine escape of U+FFFD":        `"\ufffd"`,
		"raw U+FFFD":                      "\"\ufffd\"",
		"raw multi-byte characters":       "\"\u00e9\u20ac\U0001f600\u2028\uffff\x7f\"",
		"deepest":                         nested(maxDepth),
		"deepest twice":                   "[" + nested(maxDepth-1) + "," + nested(maxDepth-1) + "]",
		"brackets in a string":            `"` + strings.Repeat("[", maxDepth+1) + `"`,
		"numbers":                         `[0,-0,0.0,-1.50e+10,1E-7,10]`,
		"largest exponents":               `[1e1000,1e-1000,1e+01000]`,
		"long but small exponent":         `1e` + strings.Repeat("0", 2000) + `1`,
		"most digits":                     `-0.` + strings.Repeat("7", maxDigits-1) + `e-1000`,
		"many numbers with many digits":   `[` + strings.Repeat("9", maxDigits) + `,` + strings.Repeat("9", maxDigits) + `]`,
		"digits in a string":              `"` + strings.Repeat("9", maxDigits+1) + `"`,
		"repeated keys, the last is kept": `{"a":1,"a":2}`,
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Marshal(json.RawMessage(text), roomy)
			require.NoError(t, err)
			require.Equal(t, text, string(got))
		})
	}
}

// Parts of the reasons.
const (
	nul       = "NUL character"
	surrogate = "half of a surrogate pair"
	badUTF8   = "invalid UTF-8"
	syntax    = "invalid JSON at byte "
	digits    = "number of 1001 digits at byte "
	exponent  = "number with an exponent beyond 1000 at byte "
	deep      = "nested deeper than 500"
)

// refusedJSON is text that Marshal refuses, with a part of the reason.
var refusedJSON = map[string]struct{ text, want string }{
	"only white space":              {" ", syntax + "1 of 1: wanted a JSON value"},
	"trailing value":                {`{} {"s3cr3t":1}`, syntax + "3 of 15: wanted nothing after"},
	"trailing bracket":              {`{}}`, syntax + "2"},
	"trailing letter":               {`nullx`, syntax + "4"},
	"byte order mark":               {"\ufeff{}", syntax + "0"},
	"word":                          {`s3cr3t`, syntax + "0"},
	"half a word":                   {`tru`, syntax + "0"},
	"unknown escape":                {`"s3cr3t\x41"`, syntax + "7"},
	"short unicode escape":          {`"\u00"`, syntax + "1"},
	"unicode escape at the end":     {`"\u00`, syntax + "1"},
	"unicode escape of no hex":      {`"\u00g0"`, syntax + "1"},
	"backslash at the end":          {`"\`, syntax + "1"},
	"unclosed string":               {`"s3cr3t`, syntax + "7"},
	"escaped quote at the end":      {`"s3cr3t\"`, syntax + "9"},
	"raw newline in a string":       {"\"s3cr3t\n\"", syntax + "7"},
	"raw NUL in a string":           {"\"\x00\"", syntax + "1"},
	"raw NUL at the end":            {"1\x00", syntax + "1"},
	"unclosed object":               {`{"s3cr3t":1`, syntax + "11"},
	"unclosed array":                {`[1`, syntax + "2"},
	"trailing comma in an array":    {`[1,]`, syntax + "3"},
	"trailing comma in an object":   {`{"a":1,}`, syntax + "7"},
	"wrong bracket":                 {`[1}`, syntax + "2"},
	"key without quotes":            {`{s3cr3t:1}`, syntax + "1"},
	"key without a colon":           {`{"a" 1}`, syntax + "5"},
	"key without a value":           {`{"a":}`, syntax + "5"},
	"leading zero":                  {`01`, syntax},
	"leading plus":                  {`+1`, syntax + "0"},
	"lone minus":                    {`-`, syntax + "1"},
	"no digits before the point":    {`.5`, syntax + "0"},
	"no digits after the point":     {`1.`, syntax + "2"},
	"no digits in the exponent":     {`1e+`, syntax + "3"},
	"hexadecimal number":            {`0x10`, syntax + "1"},
	"NaN":                           {`NaN`, syntax + "0"},
	"other white space":             {"\v1", syntax + "0"},
	"invalid UTF-8":                 {"\"s3cr3t\xff\"", badUTF8 + " at byte 7"},
	"invalid UTF-8 in a key":        {"{\"\xc3\":1}", badUTF8 + " at byte 2"},
	"surrogate as raw UTF-8":        {"\"\xed\xa0\x80\"", badUTF8 + " at byte 1"},
	"overlong NUL":                  {"\"\xc0\x80\"", badUTF8 + " at byte 1"},
	"beyond the last character":     {"\"\xf4\x90\x80\x80\"", badUTF8 + " at byte 1"},
	"cut short":                     {"\"\xe2\x82\"", badUTF8 + " at byte 1"},
	"NUL escape":                    {`"s3cr3t\u0000"`, nul + ` (escape \u0000) at byte 7`},
	"NUL escape in a key":           {`[{"\u0000":1}]`, nul},
	"NUL after escaped backslash":   {`"\\\u0000"`, nul + ` (escape \u0000) at byte 3`},
	"lone high":                     {`"\ud800"`, surrogate + ` (an escape from \ud800 to \udfff) at byte 1`},
	"lone high, other case":         {`"\uDBFF"`, surrogate},
	"lone low":                      {`"\udc00"`, surrogate},
	"swapped":                       {`"\ude00\ud83d"`, surrogate},
	"high, then a letter":           {`"\ud800x"`, surrogate},
	"high, then high":               {`"\ud800\ud800\udc00"`, surrogate},
	"high, then another escape":     {`"\ud800\n"`, surrogate},
	"high, then escaped backslash":  {`"\ud800\\udc00"`, surrogate},
	"high, then no surrogate":       {`"\ud800\u0041"`, surrogate},
	"high, then half an escape":     {`"\ud800\udc`, surrogate},
	"pair, then low":                {`"\ud83d\ude00\ude00"`, surrogate},
	"lone surrogate in a key":       {`{"\ud800":1}`, surrogate},
	"too deep":                      {nested(maxDepth + 1), deep},
	"too deep for encoding/json":    {nested(20000), deep},
	"too deep objects":              {strings.Repeat(`{"a":`, 501) + "1" + strings.Repeat("}", 501), deep},
	"too many digits":               {strings.Repeat("9", 1001), digits + "0"},
	"too many digits after zero":    {`[-0.` + strings.Repeat("0", 1000) + `]`, digits + "1"},
	"too large exponent":            {`[1E+1001]`, exponent + "1"},
	"too small exponent":            {`0e-1001`, exponent + "0"},
	"exponent beyond every integer": {`1e` + strings.Repeat("9", 100), exponent},
}

func TestMarshalRefusesRawJSON(t *testing.T) {
	for name, c := range refusedJSON {
		t.Run(name, func(t *testing.T) {
			got, err := Marshal(json.RawMessage(c.text), roomy)
			requireRefusal(t, err, c.want)
			require.Nil(t, got)
		})
	}
}

// PostgreSQL 15 stores 1.1 million times 1e1000 as jsonb and then fails to read
// it, as it would be over 1 GB of text.
func TestMarshalBoundsWrittenOutNumbers(t *testing.T) {
	most := "[" + strings.Repeat("1e-1000,", maxZeros/1000)
	_, err := Marshal(json.RawMessage(most+"1e800]"), roomy)
	require.NoError(t, err)
	_, err = Marshal(json.RawMessage(most+"1e900]"), roomy)
	requireRefusal(t, err, "numbers with exponents of more than 67108864 in total at byte ")
}

func TestMarshalGivesNullForNothing(t *testing.T) {
	for name, v := range map[string]any{
		"nil":              nil,
		"nil RawMessage":   json.RawMessage(nil),
		"empty RawMessage": json.RawMessage{},
		"nil map":          map[string]int(nil),
		"nil pointer":      (*net.IPNet)(nil),
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Marshal(v, 4)
			require.NoError(t, err)
			require.Equal(t, "null", string(got))
		})
	}
}

func TestMarshalLimit(t *testing.T) {
	for name, v := range map[string]any{"RawMessage": json.RawMessage(`"s3cr3t"`), "string": secret} {
		t.Run(name, func(t *testing.T) {
			_, err := Marshal(v, 8)
			require.NoError(t, err)
			_, err = Marshal(v, 7)
			requireRefusal(t, err, "8 bytes is over the limit of 7")
		})
	}
	_, err := Marshal(nil, 0)
	require.ErrorContains(t, err, "4 bytes is over the limit of 0")
}

func TestMarshalAcceptsGoValues(t *testing.T) {
	for name, v := range map[string]any{
		"struct":                     struct{ A, B string }{"<&>", "\u2028"},
		"genuine U+FFFD":             "a\ufffdb",
		"backslash, then ufffd":      `\ufffd`,
		"backslashes, then ufffd":    `\\ufffd`,
		"backslash, then u0000":      map[string]string{`\u0000`: `\\u0000`},
		"controls but NUL":           "\x01\b\f\n\r\t\x1f\x7f",
		"emoji":                      "\U0001f600",
		"bytes within a struct":      struct{ B []byte }{[]byte{0, 255}},
		"text marshaler of bytes":    net.IPv4(127, 0, 0, 1),
		"array of bytes":             [2]byte{1, 2},
		"floats":                     []float64{math.MaxFloat64, math.SmallestNonzeroFloat64, -0.1},
		"big integer":                new(big.Int).Exp(big.NewInt(10), big.NewInt(999), nil),
		"own escape in a RawMessage": struct{ R json.RawMessage }{json.RawMessage(`"\uFFFD"`)},
		"bytes that encode as array": []octet{1},
		"pointer to a RawMessage":    ptr(json.RawMessage(`{"a":1}`)),
	} {
		t.Run(name, func(t *testing.T) {
			want, err := json.Marshal(v)
			require.NoError(t, err)
			got, err := Marshal(v, roomy)
			require.NoError(t, err)
			require.Equal(t, string(want), string(got))
		})
	}
}

type (
	octet     byte
	rawBytes  []byte
	textKey   struct{ err error }
	failing   struct{ err error }
	panicking struct{ with any }
	selfMade  string
	cycle     struct{ Next *cycle }
)

func (octet) MarshalText() ([]byte, error)       { return []byte("o"), nil }
func (k textKey) MarshalText() ([]byte, error)   { return nil, k.err }
func (f failing) MarshalJSON() ([]byte, error)   { return nil, f.err }
func (p panicking) MarshalJSON() ([]byte, error) { panic(p.with) }
func (s selfMade) MarshalJSON() ([]byte, error)  { return []byte(s), nil }

func ptr[T any](v T) *T { return &v }

func TestMarshalRefusesGoValues(t *testing.T) {
	const (
		base64   = "would become base64"
		replaced = "a Go string held invalid UTF-8"
		method   = "the MarshalJSON or MarshalText method of Go type "
	)
	loop := &cycle{}
	loop.Next = loop
	for name, c := range map[string]struct {
		v    any
		want string
	}{
		"bytes":                       {[]byte(`{"a":1}`), "Go type []uint8 " + base64},
		"nil bytes":                   {[]byte(nil), base64},
		"pointer to bytes":            {ptr([]byte("1")), base64},
		"named bytes":                 {rawBytes(secret), "Go type jsoncheck.rawBytes " + base64},
		"invalid UTF-8":               {secret + "\xff", replaced},
		"invalid UTF-8 after \\":      {"\\\xff", replaced},
		"invalid UTF-8 after \\\\":    {"\\\\\xff", replaced},
		"invalid UTF-8 in a key":      {map[string]int{secret + "\xc3": 1}, replaced},
		"half a surrogate in UTF-8":   {[]string{"\xed\xa0\x80"}, replaced},
		"invalid UTF-8 in a method":   {selfMade("\"\xff\""), "invalid UTF-8 at byte 1"},
		"NUL":                         {secret + "\x00", "NUL character"},
		"NUL in a key":                {map[string]int{"\x00": 1}, "NUL character"},
		"lone surrogate in a method":  {selfMade(`"\ud800"`), "half of a surrogate pair"},
		"deep method":                 {selfMade(nested(maxDepth + 1)), "nested deeper"},
		"deep value":                  {deepValue(maxDepth + 1), "nested deeper"},
		"big number":                  {json.Number("1e1001"), "exponent beyond"},
		"method that fails":           {failing{errors.New(secret)}, method + "jsoncheck.failing failed"},
		"inner method that fails":     {[]any{failing{errors.New(secret)}}, method + "jsoncheck.failing failed"},
		"method with no JSON":         {selfMade(secret), method + "jsoncheck.selfMade failed"},
		"RawMessage within, no JSON":  {[]any{json.RawMessage(secret)}, method + "json.RawMessage failed"},
		"text method that fails":      {textKey{errors.New(secret)}, method + "jsoncheck.textKey failed"},
		"text method that fails, key": {map[textKey]int{{errors.New(secret)}: 1}, "Go type map[jsoncheck.textKey]int"},
		"number that is none":         {json.Number(secret), "Go type json.Number"},
		"method's unsupported value":  {failing{&json.UnsupportedValueError{Str: secret}}, method},
		"panic":                       {panicking{secret}, "Go type jsoncheck.panicking as JSON panicked"},
		"panic with an error":         {panicking{errors.New(secret)}, "jsoncheck.panicking as JSON panicked"},
		"panic with nil":              {panicking{}, "jsoncheck.panicking as JSON panicked"},
		"inner panic":                 {map[string]any{"a": panicking{secret}}, "Go type map[string]interface {}"},
		"NaN":                         {math.NaN(), "Go type float64 holds a NaN"},
		"infinity within":             {[]float64{math.Inf(-1)}, "Go type []float64 holds a NaN, an infinity"},
		"pointer cycle":               {loop, "pointer cycle"},
		"channel":                     {make(chan int), "Go type chan int has no JSON form"},
		"function within":             {map[string]any{secret: func() {}}, "Go type func() has no JSON form"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Marshal(c.v, roomy)
			requireRefusal(t, err, c.want)
			require.Nil(t, got)
		})
	}
}

func deepValue(depth int) any {
	var v any
	for range depth {
		v = []any{v}
	}
	return v
}

func TestMarshalExposesTheCause(t *testing.T) {
	for name, v := range map[string]any{
		"method": failing{io.ErrUnexpectedEOF},
		"panic":  panicking{io.ErrUnexpectedEOF},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Marshal(v, roomy)
			require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		})
	}
	_, err := Marshal(failing{io.EOF}, roomy)
	var marshaler *json.MarshalerError
	require.ErrorAs(t, err, &marshaler)
	_, err = Marshal(math.NaN(), roomy)
	var value *json.UnsupportedValueError
	require.ErrorAs(t, err, &value)
	_, err = Marshal(make(chan int), roomy)
	var kind *json.UnsupportedTypeError
	require.ErrorAs(t, err, &kind)
}

func TestText(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"empty":             {"", ""},
		"plain":             {"order.created", ""},
		"other controls":    {"\x01\n\x7f", ""},
		"genuine U+FFFD":    {"a\ufffd", ""},
		"emoji":             {"\U0001f600", ""},
		"NUL":               {"s3cr3t\x00", "NUL character at byte 6"},
		"invalid UTF-8":     {"s3cr3t\xff", "invalid UTF-8 at byte 6"},
		"cut short":         {"\u20ac\xe2\x82", "invalid UTF-8 at byte 3"},
		"overlong NUL":      {"\xc0\x80", "invalid UTF-8 at byte 0"},
		"surrogate":         {"\xed\xa0\x80", "invalid UTF-8 at byte 0"},
		"NUL after invalid": {"\xff\x00", "invalid UTF-8 at byte 0"},
	} {
		t.Run(name, func(t *testing.T) {
			err := Text(c.text)
			if c.want == "" {
				require.NoError(t, err)
				return
			}
			requireRefusal(t, err, c.want)
		})
	}
}

func TestScanDoesNotAllocate(t *testing.T) {
	text := json.RawMessage(benchmarkText())
	var v any = text
	require.Zero(t, testing.AllocsPerRun(10, func() {
		if _, err := Marshal(v, roomy); err != nil {
			panic(err)
		}
	}))
}

const benchmarkItem = `{"id":12345,"name":"caf\u00e9 \ud83d\ude00 ` + "\u20ac" + `","price":-12.50e+1,"tags":["a","b",null,true]}`

func benchmarkText() string {
	return "[" + strings.Repeat(benchmarkItem+", ", 99) + benchmarkItem + "]"
}

func BenchmarkMarshal(b *testing.B) {
	text := json.RawMessage(benchmarkText())
	var value any
	if err := json.Unmarshal(text, &value); err != nil {
		b.Fatal(err)
	}
	for name, v := range map[string]any{"RawMessage": text, "value": value} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(text)))
			for range b.N {
				if _, err := Marshal(v, roomy); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("json.Valid alone", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(text)))
		for range b.N {
			json.Valid(text)
		}
	})
}
