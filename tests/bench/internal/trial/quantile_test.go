package trial

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestQuantile(t *testing.T) {
	var times []time.Duration
	for n := range 100 {
		times = append(times, time.Duration(n))
	}
	require.Equal(t, time.Duration(50), Quantile(times, 0.5))
	require.Equal(t, time.Duration(99), Quantile(times, 0.99))
	require.Equal(t, time.Duration(99), Quantile(times, 1))
	require.Zero(t, Quantile(nil, 0.5))
}
