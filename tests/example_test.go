package tests

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestExampleOnPostgres takes the tour of the example program on PostgreSQL, twice on one database. The program checks
// each of its scenes and exits with 1 if one went another way; its own tests take the tour on SQLite.
func TestExampleOnPostgres(t *testing.T) {
	program := filepath.Join(t.TempDir(), "example")
	build := exec.Command("go", "build", "-o", program, ".")
	build.Dir = filepath.Join("..", "example")
	build.Env = append(os.Environ(), "GOWORK=off")
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))

	dsn := cluster.CreateDatabase(t)
	for range 2 {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		out, err := exec.CommandContext(ctx, program, "-dsn", dsn).CombinedOutput()
		require.NoError(t, err, string(out))
		require.Contains(t, string(out), "All 10 scenes went as told")
	}
}

// TestCommandOnPostgres runs the command's own tests, which use SQLite, on PostgreSQL as well.
func TestCommandOnPostgres(t *testing.T) {
	test := exec.Command("go", "test", "-count=1", "-run", "/postgres", ".")
	test.Dir = filepath.Join("..", "cmd", "outbox")
	test.Env = append(os.Environ(), "GOWORK=off", "OUTBOX_TEST_DSN="+cluster.CreateDatabase(t))
	out, err := test.CombinedOutput()
	require.NoError(t, err, string(out))
	require.NotContains(t, string(out), "no tests to run")
}
