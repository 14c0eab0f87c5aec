package ledger

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func create(t *testing.T, size int) (l *Ledger, path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "ledger")
	l, err := Create(path, size)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l, path
}

func TestLedgerIsShared(t *testing.T) {
	mine, path := create(t, 20)
	theirs, err := Open(path)
	require.NoError(t, err)
	defer theirs.Close()

	for n := range 20 {
		theirs.Handle(n)
	}

	require.True(t, mine.Wait(context.Background(), 20))
	require.NoError(t, mine.Check(true))
	require.Positive(t, mine.Mark(1).UnixNano())
	require.False(t, mine.Mark(Tenths).Before(mine.Mark(1)))
}

func TestLedgerFindsFaults(t *testing.T) {
	l, _ := create(t, 3)
	l.Handle(0)
	require.NoError(t, l.Check(false), "cut off")
	require.ErrorContains(t, l.Check(true), "2 of 3 messages were not delivered, such as number 1")

	l.Handle(0)
	require.ErrorContains(t, l.Check(false), "1 deliveries repeated a message, such as number 0")

	l.Handle(3)
	l.Handle(-1)
	require.ErrorContains(t, l.Check(false), "2 deliveries were of no message")
	require.Equal(t, 1, l.Handled())
}

func TestWaitEndsWithItsContext(t *testing.T) {
	l, _ := create(t, 1)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.False(t, l.Wait(ctx, 1))
}

func TestLatencies(t *testing.T) {
	l, _ := create(t, 3)
	l.Commit(0)
	l.Start(0)
	l.Start(1) // before its commit was known
	l.Commit(1)
	l.Commit(2) // never started
	latencies := l.Latencies()
	require.Len(t, latencies, 2)
	require.Zero(t, latencies[1])
}
