package main

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestParseAge(t *testing.T) {
	const day = 24 * time.Hour
	for text, want := range map[string]time.Duration{
		"7d": 7 * day, "1d12h": 36 * time.Hour, "36h": 36 * time.Hour, "90m": 90 * time.Minute, "0d1s": time.Second,
		"106751d": 106751 * day,
	} {
		got, err := parseAge(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{
		"", "7", "d", "0d", "0s", "-7d", "-1h", "1d-1h", "7 d", "7days", "1.5d", "106752d", "106751d24h", "9223372036854775808d", "1h1d", "∞d",
	} {
		_, err := parseAge(text)
		require.Error(t, err, text)
	}
}

func TestClean(t *testing.T) {
	for text, want := range map[string]string{
		"plain, Ñandú 漢字": "plain, Ñandú 漢字",
		"a\x1b[31mb":      `a\x1b[31mb`,
		"tab\tline\n":     `tab\tline\n`,
		"\u009b2J":        `\u009b2J`,
		"\u202etxt.exe":   `\u202etxt.exe`,
		"it's":            "it's",
	} {
		require.Equal(t, want, clean(text))
	}
}

// TestWatch: long work is told of after a second, and then less and less often.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stderr strings.Builder
		c := &call{command: command{name: "purge"}, stderr: &stderr}
		end := c.watch(func() string { return "deleting" })
		<-time.After(36 * time.Second)
		synctest.Wait()
		end()
		require.Equal(t, "outbox purge: deleting, 1s\noutbox purge: deleting, 3s\noutbox purge: deleting, 7s\n"+
			"outbox purge: deleting, 15s\noutbox purge: deleting, 25s\noutbox purge: deleting, 35s\n", stderr.String())
	})
	var stderr strings.Builder
	c := &call{stderr: &stderr}
	c.watch(func() string { return "" })()
	require.Empty(t, stderr.String(), "short work is not told of")
}
