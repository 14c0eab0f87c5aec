package contender

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPayloadCarriesItsNumber(t *testing.T) {
	for _, n := range []int{template, 0, 7, 123456} {
		payload := Payload(n)
		require.Len(t, payload, PayloadSize)
		require.True(t, json.Valid(payload))
		require.Equal(t, n, Number(payload))
	}
}

func TestNumberReadsWhatDatabasesGive(t *testing.T) {
	for payload, want := range map[string]int{
		`{"n": 12, "note": "x"}`: 12, `{"note":"x","n":3}`: 3, `{}`: noNumber, `{"n":`: noNumber, `{"n":"x"}`: noNumber,
	} {
		require.Equal(t, want, Number([]byte(payload)), payload)
	}
}

func TestNamesOfContenders(t *testing.T) {
	seen := map[string]bool{}
	for _, d := range All() {
		require.False(t, seen[d.Name], d.Name)
		seen[d.Name] = true
		found, ok := Find(d.Name)
		require.True(t, ok)
		require.Equal(t, d.About, found.About)
	}
}
