package tests

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	// namedTest is a test as the guide names it: its folder and a dot, unless it is one of this package's, its name, and
	// of the contract's a part.
	namedTest = regexp.MustCompile("`(?:([a-z/]+)\\.)?((?:Test|Fuzz)\\w+)(?:/([a-z ]+))?`")
	caseRow   = regexp.MustCompile(`(?m)^\| (C\d\d) \|`)
	caseTest  = regexp.MustCompile(`^TestC\d\d_`)
)

// TestGuaranteesNameTestsThatExist also finds the test of a case that the guide has forgotten.
func TestGuaranteesNameTestsThatExist(t *testing.T) {
	text, err := os.ReadFile("../docs/guarantees.md")
	require.NoError(t, err)
	guide, known := string(text), testsBelow(t, "..")
	contract, err := os.ReadFile("../outboxtest/contract.go")
	require.NoError(t, err)

	named := map[string]bool{}
	for _, match := range namedTest.FindAllStringSubmatch(guide, -1) {
		folder, name, part := match[1], match[2], match[3]
		switch folder {
		case "":
			folder = "tests"
		case "outbox":
			folder = "."
		}
		named[name] = true
		require.True(t, known[folder+"."+name], "%s: there is no such test", match[0])
		if part != "" {
			require.Equal(t, "TestContract", name, match[0])
			require.True(t, strings.Contains(string(contract), fmt.Sprintf("{%q, ", part)), "%s: there is no such part", match[0])
		}
	}
	require.NotEmpty(t, named)
	for qualified := range known {
		if name := qualified[strings.LastIndex(qualified, ".")+1:]; caseTest.MatchString(name) {
			require.True(t, named[name], "the guide does not name %s", name)
		}
	}
}

func TestGuaranteesHaveEveryCase(t *testing.T) {
	text, err := os.ReadFile("../docs/guarantees.md")
	require.NoError(t, err)
	rows := caseRow.FindAllStringSubmatch(string(text), -1)
	require.Len(t, rows, 39)
	for i, row := range rows {
		require.Equal(t, fmt.Sprintf("C%02d", i+1), row[1])
	}
	for line := range strings.Lines(string(text)) {
		if id := caseRow.FindStringSubmatch(line); id != nil {
			require.Contains(t, line, "`Test"+id[1]+"_", "a case without a test of its name")
		}
	}
}

// testsBelow are the tests of the repository, each as folder, dot, name.
func testsBelow(t *testing.T, root string) map[string]bool {
	t.Helper()
	known := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		folder, err := filepath.Rel(root, filepath.Dir(path))
		for _, decl := range file.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil {
				known[filepath.ToSlash(folder)+"."+fn.Name.Name] = true
			}
		}
		return err
	})
	require.NoError(t, err)
	return known
}
