package pgtest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFindBinDir(t *testing.T) {
	root := t.TempDir()
	install := func(dir string, names ...string) string {
		dir = filepath.Join(root, dir)
		require.NoError(t, os.MkdirAll(dir, 0o755))
		for _, name := range names {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o755))
		}
		return dir
	}
	old := install("pg/9.6/bin", "initdb", "postgres")
	newest := install("pg/15/bin", "initdb", "postgres")
	clientOnly := install("pg/17/bin", "psql", "initdb")
	onPath := install("path", "initdb", "postgres")
	patterns := []string{filepath.Join(root, "pg/*/bin")}

	tests := []struct {
		name, chosen, path, want, wantErr string
		patterns                          []string
	}{
		{name: "the chosen one", chosen: old, path: onPath, patterns: patterns, want: old},
		{name: "a wrong choice", chosen: clientOnly, path: onPath, patterns: patterns, wantErr: BinEnv},
		{name: "on PATH", path: onPath, patterns: patterns, want: onPath},
		{name: "PATH has only a client", path: clientOnly, patterns: patterns, want: newest},
		{name: "the newest that is complete", patterns: patterns, want: newest},
		{name: "none", wantErr: "make test"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("PATH", tt.path)
			got, err := findBinDir(tt.chosen, tt.patterns)
			if tt.wantErr != "" {
				require.ErrorContains(t, err, tt.wantErr)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tt.want, got)
		})
	}
}

func TestFindBinDirMakesARelativeChoiceAbsolute(t *testing.T) {
	dir, err := BinDir()
	require.NoError(t, err)
	t.Chdir(filepath.Dir(dir))

	got, err := findBinDir(filepath.Base(dir), nil)

	require.NoError(t, err)
	require.True(t, filepath.IsAbs(got), got)
}

func TestVersionOrder(t *testing.T) {
	require.Equal(t, []int{9, 6}, versionOf("/usr/lib/postgresql/9.6/bin"))
	require.Equal(t, []int{16}, versionOf("/opt/homebrew/opt/postgresql@16/bin"))
	require.Empty(t, versionOf("/usr/libexec/postgresql"))
}
