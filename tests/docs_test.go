package tests

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var goBlock = regexp.MustCompile("(?s)```go\n(.*?)```")

// TestDocumentedCodeCompiles holds every Go snippet of the guides against the code of the repository: it must stand
// there word for word, so that it is compiled and, in an example or a test, run.
func TestDocumentedCodeCompiles(t *testing.T) {
	code := goCode(t, "..")
	for _, pattern := range []string{"../*.md", "../docs/*.md"} {
		guides, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, guide := range guides {
			text, err := os.ReadFile(guide)
			require.NoError(t, err)
			for _, block := range goBlock.FindAllStringSubmatch(string(text), -1) {
				require.Contains(t, code, dense(block[1]), "a snippet of %s stands in no Go file of the repository", guide)
			}
		}
	}
}

func TestReadmeIsShort(t *testing.T) {
	text, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	require.LessOrEqual(t, strings.Count(string(text), "\n"), 200)
	require.Contains(t, string(text), "```go\n")
}

// goCode is all Go code below dir, each line stripped of its indentation.
func goCode(t *testing.T, dir string) string {
	var code strings.Builder
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".go" {
			return err
		}
		text, err := os.ReadFile(path)
		code.WriteString(dense(string(text)))
		return err
	})
	require.NoError(t, err)
	return code.String()
}

// dense leaves out indentation and blank lines.
func dense(text string) string {
	var lines strings.Builder
	for _, line := range strings.Split(text, "\n") {
		if line = strings.TrimSpace(line); line != "" {
			lines.WriteString(line + "\n")
		}
	}
	return lines.String()
}
