package contender

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// PayloadSize is the size of every payload in bytes.
const PayloadSize = 200

// template is the number of a row that others are copied from; no ledger has it.
const template = -1

// noNumber is what a payload of nobody's is taken for.
const noNumber = -2

var padding = strings.Repeat("abcdefghij ", PayloadSize/11+1)

// Payload is message n as JSON.
func Payload(n int) []byte {
	head := fmt.Sprintf(`{"n":%d,"note":"`, n)
	return []byte(head + padding[:PayloadSize-len(head)-2] + `"}`)
}

var numberKey = []byte(`"n":`)

// Number reads the number off a payload. Handlers use it instead of a JSON decoder, whose cost would hide that of the
// contenders; jsonb puts a blank behind the colon.
func Number(payload []byte) int {
	i := bytes.Index(payload, numberKey)
	if i < 0 {
		return noNumber
	}
	rest := bytes.TrimLeft(payload[i+len(numberKey):], " ")
	end := bytes.IndexAny(rest, ",} ")
	if end < 0 {
		return noNumber
	}
	n, err := strconv.Atoi(string(rest[:end]))
	if err != nil {
		return noNumber
	}
	return n
}

// message is a payload for contenders that marshal it themselves. It goes in and out as it is.
type message struct{ payload json.RawMessage }

func (m message) MarshalJSON() ([]byte, error) { return m.payload, nil }

func (m *message) UnmarshalJSON(text []byte) error {
	m.payload = append(json.RawMessage(nil), text...) // the decoder's buffer is not ours to keep
	return nil
}
