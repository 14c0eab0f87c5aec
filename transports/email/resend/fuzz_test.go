package resend

import (
	"fmt"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// FuzzRetryAfter: whatever the header holds, the wait is none or one that lies ahead, and a sensible one is taken as it is.
func FuzzRetryAfter(f *testing.F) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for _, value := range []string{"120", "", "-1", "1e3", "99999999999999999999", now.Format(http.TimeFormat), now.Format(time.ANSIC), "\x00"} {
		f.Add(value, uint16(60))
	}
	f.Fuzz(func(t *testing.T, value string, seconds uint16) {
		require.GreaterOrEqual(t, retryAfter(value, now), time.Duration(0))

		want := time.Duration(seconds) * time.Second
		require.Equal(t, want, retryAfter(strconv.Itoa(int(seconds)), now))
		require.Equal(t, want, retryAfter(now.Add(want).Format(http.TimeFormat), now))
		require.Zero(t, retryAfter(fmt.Sprint("-", seconds+1), now.Add(time.Nanosecond)))
	})
}
