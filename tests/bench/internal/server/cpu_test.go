package server

import (
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestCPUTime takes this process for a postmaster, and compares with what the kernel says another way.
func TestCPUTime(t *testing.T) {
	before, ok := cpuTime(os.Getpid())
	if !ok {
		t.Skip("no /proc here")
	}
	const burn = 200 * time.Millisecond
	began := used(t)
	for used(t)-began < burn { // the point is to be busy
	}
	after, ok := cpuTime(os.Getpid())
	require.True(t, ok)
	require.InDelta(t, float64(used(t)-began), float64(after-before), float64(50*time.Millisecond))
}

func used(t *testing.T) time.Duration {
	t.Helper()
	var usage syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func TestAForeignProcessIsNoPostmaster(t *testing.T) {
	require.False(t, isPostmaster(os.Getpid()))
	require.False(t, isPostmaster(-1))
}
