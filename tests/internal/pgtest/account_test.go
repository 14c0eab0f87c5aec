package pgtest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAccountReachesOnlyDirectoriesOpenToIt(t *testing.T) {
	stranger := &account{name: "stranger", uid: 1<<30 + 1, gid: 1<<30 + 1}
	owner := &account{name: "owner", uid: os.Getuid(), gid: os.Getgid()}
	base, err := os.MkdirTemp("/tmp", "outbox-pgtest-reach-") // t.TempDir may lie below a closed directory
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(base)) })
	inner := filepath.Join(base, "inner")
	require.NoError(t, os.Mkdir(inner, 0o755))

	require.NoError(t, os.Chmod(base, 0o700))
	require.False(t, stranger.reaches(inner), "the directory above is closed")
	require.True(t, owner.reaches(inner))

	require.NoError(t, os.Chmod(base, 0o711))
	require.True(t, stranger.reaches(inner))
	require.False(t, stranger.reaches(filepath.Join(inner, "missing")))
}

func TestStartLeavesAClosedTempDir(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root runs the server as another user")
	}
	closed := t.TempDir()
	require.NoError(t, os.Chmod(closed, 0o700))
	t.Setenv("TMPDIR", closed)

	c, err := Start(Options{})

	require.NoError(t, err)
	c.Stop()
}
