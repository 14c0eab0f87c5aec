package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHelp(t *testing.T) {
	for _, args := range []string{"help", "-h", "--help"} {
		got := invoke(t.Context(), "", args)
		require.Equal(t, exitOK, got.code)
		require.Equal(t, overview(), got.stdout)
		require.Empty(t, got.stderr)
	}
	for _, cmd := range commands() {
		require.Contains(t, overview(), "\n  "+cmd.name+" ")
		byFlag, byWord := invoke(t.Context(), "", cmd.name, "--help"), invoke(t.Context(), "", "help", cmd.name)
		require.Equal(t, exitOK, byFlag.code)
		require.Equal(t, byFlag, byWord)
		for _, part := range []string{"outbox " + cmd.name + ": ", "--dsn DSN", "Example:", "outbox " + cmd.name + " ", "Exit codes:"} {
			require.Contains(t, byFlag.stdout, part, cmd.name)
		}
		require.NotContains(t, byFlag.stdout, " value ", "%s: a flag's value has no name", cmd.name)
	}
}

func TestNoCommand(t *testing.T) {
	require.Equal(t, result{exitUsage, "", overview()}, invoke(t.Context(), ""))
	for arg, says := range map[string]string{
		"redo":                     `there is no command "redo"`,
		"--json":                   "flags come after the command",
		"postgres://app:hush@db/x": "the first argument is no command",
	} {
		for _, args := range [][]string{{arg}, {"help", arg}} {
			got := invoke(t.Context(), "", args...)
			require.Equal(t, exitUsage, got.code)
			require.Contains(t, got.stderr, says)
			require.NotContains(t, got.stderr, "hush")
			require.Empty(t, got.stdout)
		}
	}
}

// TestUsage has command lines that cannot be meant as they stand: each is refused before a database is asked, and says
// what is wrong with it. The database here does not exist.
func TestUsage(t *testing.T) {
	for line, says := range map[string]string{
		"stats --nope":                           "--nope",
		"stats --json=perhaps":                   "json",
		"stats more":                             "flags only",
		"stats --table=":                         "--table is empty",
		"stats --table a --table b":              "--table is given twice",
		"stats --dsn=":                           "--dsn is empty",
		"list --topic= --type= --key=":           "--topic is empty; --type is empty; --key is empty",
		"list --id 1,x":                          "--id must be record ids",
		"list --id 0":                            "--id must be record ids",
		"list --limit 0":                         "--limit must be a whole number from 1 to 1000",
		"list --limit 1001":                      "--limit must be",
		"list --before -1":                       "--before must be",
		"list --ended-to yesterday":              "--ended-to must be a time like",
		"list --all --topic email":               "--all is for every record",
		"explain":                                "which records",
		"explain 1 two":                          "must be record ids",
		"redrive":                                "--all",
		"redrive --limit 5 --rate 3":             "nothing says which records",
		"redrive --all --topic email":            "--all is for every record",
		"redrive --all --rate 0":                 "--rate must be a number above 0",
		"redrive --all --rate NaN":               "--rate must be",
		"redrive --all --limit 0":                "--limit must be",
		"redrive --died-to 0001-01-01T00:00:00Z": "--died-to must be a time",
		"redrive --status failed":                "--status",
		"purge":                                  "give one of --older-than and --before",
		"purge --topic email":                    "give one of --older-than and --before",
		"purge --older-than 7d --before 2026-01-01T00:00:00Z": "give one of",
		"purge --older-than 7":                                "--older-than must be an age",
		"purge --older-than 0d":                               "--older-than must be an age",
		"purge --older-than 7d --status pending":              "have not ended",
		"purge --older-than 7d --status sent,processing":      "have not ended",
		"purge --consumed":                                    "--consumed takes --older-than and no other",
		"purge --consumed --older-than 7d --status sent":      "--consumed takes --older-than and no other",
		"purge --consumed --older-than 7d --dry-run":          "--consumed takes --older-than and no other",
		"purge --older-than 7d --chunk 10001":                 "--chunk must be",
		"cancel":                                              "give one of --id and --key",
		"cancel --tenant acme":                                "give one of --id and --key",
		"cancel --id 3 --key k":                               "give one of --id and --key",
	} {
		got := invoke(t.Context(), "sqlite:/nowhere/app.db", strings.Fields(line)...)
		require.Equal(t, exitUsage, got.code, "%s: %s", line, got.stderr)
		require.Contains(t, got.stderr, says, line)
		require.Contains(t, got.stderr, "--help", line)
		require.Empty(t, got.stdout, line)
	}
}

// TestLibraryRefuses has what only the library knows to be wrong: exit code 2 as well.
func TestLibraryRefuses(t *testing.T) {
	each(t, func(r *rig) {
		for line, says := range map[string]string{
			"list --status done":                                                      `status "done" is unknown`,
			"list --topic " + strings.Repeat("x", 300):                                "Topic",
			"redrive --all --rate 1e9":                                                "Rate",
			"purge --older-than 7d --status done":                                     `status "done" is unknown`,
			"purge --older-than 7d --status done --dry-run":                           `status "done" is unknown`,
			"list --ended-from 2026-01-02T00:00:00Z --ended-to 2026-01-01T00:00:00Z":  "ends before it begins",
			"redrive --died-from 2026-01-02T00:00:00Z --died-to 2026-01-01T00:00:00Z": "ends before it begins",
			"stats --tenant-type int":                                                 "Tenant.Type",
			"list --tenant-column topic":                                              "Tenant.Name",
			"list --tenant-type uuid --tenant three":                                  "must be a uuid",
		} {
			got := r.exits(exitUsage, strings.Fields(line)...)
			require.Contains(r, got.stderr, says, line)
			require.Empty(r, got.stdout, line)
		}
	})
}

func TestSource(t *testing.T) {
	for dsn, want := range map[string]source{
		"postgres://app@db/shop":         {dialect: "postgres", dsn: "postgres://app@db/shop"},
		"postgresql://app@db/shop.db":    {dialect: "postgres", dsn: "postgresql://app@db/shop.db"},
		"host=db dbname=shop.db":         {dialect: "postgres", dsn: "host=db dbname=shop.db"},
		"sqlite:data":                    {dialect: "sqlite", dsn: "data?" + sqliteOptions, file: "data"},
		"sqlite:file:data?cache=private": {dialect: "sqlite", dsn: "file:data?cache=private&" + sqliteOptions, file: "data"},
		"sqlite:a=b":                     {dialect: "sqlite", dsn: "a=b?" + sqliteOptions, file: "a=b"},
		"data/app.db":                    {dialect: "sqlite", dsn: "data/app.db?" + sqliteOptions, file: "data/app.db"},
		"app.sqlite":                     {dialect: "sqlite", dsn: "app.sqlite?" + sqliteOptions, file: "app.sqlite"},
	} {
		got, err := (&call{dsn: dsn}).source()
		require.NoError(t, err, dsn)
		require.Equal(t, want, got, dsn)
	}
	for _, dsn := range []string{"mysql://app:hush@db/shop", "hush", "sqlite:", "sqlite:?mode=ro", "app:hush@db"} {
		got := invoke(t.Context(), dsn, "stats")
		require.Equal(t, exitUsage, got.code, dsn)
		require.NotContains(t, got.stderr, "hush")
	}
	got := invoke(t.Context(), "", "stats")
	require.Equal(t, exitUsage, got.code)
	require.Contains(t, got.stderr, "give --dsn or set DATABASE_URL")
}

// TestPasswordsStay: whatever is wrong with a DSN, its password is not repeated.
func TestPasswordsStay(t *testing.T) {
	for dsn, code := range map[string]int{
		"postgres://app:hush@127.0.0.1:1/shop":                                exitFailed,
		"postgres://127.0.0.1:1/shop?user=app&password=hush":                  exitFailed,
		"host=127.0.0.1 port=1 user=app password=hush dbname=shop":            exitFailed,
		"host=127.0.0.1 port=1 user=app password='hush hush' dbname=shop":     exitFailed,
		"host=127.0.0.1 port=none user=app password=hush":                     exitUsage,
		"host=127.0.0.1 password = 'hush":                                     exitUsage,
		"postgres://app:hu%shhush@127.0.0.1/shop":                             exitUsage,
		"postgres://app:hush/hush@127.0.0.1/shop":                             exitUsage,
		"postgres://app:hush hush@127.0.0.1/shop":                             exitUsage,
		"postgres://app:hush@127.0.0.1/shop?sslmode=perhaps":                  exitUsage,
		"postgres://app:hush@127.0.0.1/shop?sslmode=verify-ca&sslrootcert=no": exitUsage,
	} {
		byFlag, byEnv := invoke(t.Context(), "", "stats", "--dsn", dsn), invoke(t.Context(), dsn, "stats")
		require.Equal(t, byFlag, byEnv, dsn)
		require.Equal(t, code, byFlag.code, "%s: %s", dsn, byFlag.stderr)
		require.NotContains(t, byFlag.stderr, "hush", dsn)
		require.Empty(t, byFlag.stdout, dsn)
		misplaced := invoke(t.Context(), "", "explain", dsn, "--id", dsn)
		require.Equal(t, exitUsage, misplaced.code, dsn)
		require.NotContains(t, misplaced.stderr, "hush", dsn)
	}
}

// TestNoFileIsMade: a slip in a file's name must not become an empty database.
func TestNoFileIsMade(t *testing.T) {
	file := filepath.Join(t.TempDir(), "app.db")
	for _, args := range [][]string{{"stats"}, {"list"}, {"explain", "1"}, {"redrive", "--all"}, {"purge", "--older-than", "7d"}, {"cancel", "--id", "1"}} {
		got := invoke(t.Context(), file, args...)
		require.Equal(t, exitFailed, got.code)
		require.Contains(t, got.stderr, "database file")
	}
	_, err := os.Stat(file)
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestTableIsNotThere(t *testing.T) {
	each(t, func(r *rig) {
		for _, line := range []string{"stats", "list", "explain 1", "redrive --all", "purge --older-than 7d", "cancel --id 1"} {
			args := append(strings.Fields(line), "--table", "nowhere")
			got := invoke(r.Context(), r.dsn, args...)
			require.Equal(r, exitFailed, got.code, line)
			require.Contains(r, got.stderr, `"outbox migrate" creates it`, line)
		}
		got := r.exits(exitFailed, "list", "--tenant-column", "club_id")
		require.Contains(r, got.stderr, "--tenant-column and --tenant-type must be the application's")
	})
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

func TestOutputFails(t *testing.T) {
	each(t, func(r *rig) {
		for _, line := range []string{"sql", "stats", "list --json", "redrive --all", "purge --older-than 7d"} {
			env := func(string) string { return r.dsn }
			require.Equal(r, exitFailed, run(r.Context(), r.args(strings.Fields(line)), brokenPipe{}, io.Discard, env), line)
		}
	})
}
