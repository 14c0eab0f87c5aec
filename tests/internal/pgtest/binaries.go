package pgtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
)

// BinEnv names the environment variable that says which server to use: the directory of initdb and postgres. It wins
// over every other place, and a wrong value is an error rather than a reason to look elsewhere.
const BinEnv = "OUTBOX_PG_BIN"

// installations are where packagers put servers that are not on PATH: Debian, the PostgreSQL project's own RPMs,
// Homebrew on Apple silicon and on Intel, Alpine.
var installations = []string{
	"/usr/lib/postgresql/*/bin",
	"/usr/pgsql-*/bin",
	"/opt/homebrew/opt/postgresql@*/bin",
	"/usr/local/opt/postgresql@*/bin",
	"/usr/libexec/postgresql*",
}

// BinDir returns the directory of the server binaries that Start uses: the one named by [BinEnv], else the one on PATH,
// else the newest of the usual installations.
func BinDir() (string, error) {
	return findBinDir(os.Getenv(BinEnv), installations)
}

func findBinDir(chosen string, patterns []string) (string, error) {
	if chosen != "" {
		if !hasServer(chosen) {
			return "", fmt.Errorf("pgtest: %s=%s holds no initdb and postgres", BinEnv, chosen)
		}
		dir, err := filepath.Abs(chosen) // the server runs in a directory of its own
		if err != nil {
			return "", fmt.Errorf("pgtest: %s=%s: %w", BinEnv, chosen, err)
		}
		return dir, nil
	}
	if initdb, err := exec.LookPath("initdb"); err == nil && hasServer(filepath.Dir(initdb)) {
		return filepath.Dir(initdb), nil
	}
	var found []string
	for _, pattern := range patterns {
		dirs, err := filepath.Glob(pattern)
		if err != nil {
			return "", fmt.Errorf("pgtest: look for PostgreSQL in %s: %w", pattern, err)
		}
		found = append(found, dirs...)
	}
	found = slices.DeleteFunc(found, func(dir string) bool { return !hasServer(dir) })
	if len(found) == 0 {
		return "", errors.New("pgtest: no PostgreSQL server binaries (initdb, postgres) on this machine: " +
			"run `make test`, which installs them, or set " + BinEnv + " to their directory")
	}
	return slices.MaxFunc(found, func(a, b string) int { return slices.Compare(versionOf(a), versionOf(b)) }), nil
}

func hasServer(dir string) bool {
	for _, name := range []string{"initdb", "postgres"} {
		if _, err := exec.LookPath(filepath.Join(dir, name)); err != nil {
			return false
		}
	}
	return true
}

var numbers = regexp.MustCompile(`\d+`)

// versionOf reads the version that a packager wrote into the path, so that 15 is newer than 9.6; no number is oldest.
func versionOf(dir string) []int {
	var version []int
	for _, digits := range numbers.FindAllString(dir, -1) {
		n, err := strconv.Atoi(digits)
		if err != nil { // a number too long to be a version
			continue
		}
		version = append(version, n)
	}
	return version
}
