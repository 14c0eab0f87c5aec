package outbox

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestArraysQuoteWhatTheyHold(t *testing.T) {
	var texts, numbers, times, none array
	for _, s := range []string{`plain`, ``, `NULL`, `a"b\c`, `{x,y}`, `""`, `\`, "ñ\n"} {
		texts.text(s)
		none.textOrNull("")
	}
	texts.textOrNull("")
	numbers.number(-1)
	numbers.null()
	numbers.number(7)
	times.time(nil)
	times.time(time.Date(2026, 3, 1, 12, 0, 0, 5000, time.UTC))
	require.Equal(t, `{"plain","","NULL","a\"b\\c","{x,y}","\"\"","\\","`+"ñ\n"+`",NULL}`, texts.param())
	require.Equal(t, `{-1,NULL,7}`, numbers.param())
	require.Equal(t, `{NULL,"2026-03-01T12:00:00.000005Z"}`, times.param())
	require.Nil(t, none.param())
	require.Nil(t, array{}.param())
}
