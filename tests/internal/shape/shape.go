// Package shape checks what this repository promises about its own form: short functions and files, a comment on every
// exported name, no sleeping tests, and the arrows of the architecture (who may import whom). It reads the source and
// needs neither a build nor a network, so it also sees code for other systems and other modules of the repository.
package shape

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// Problem is one place that breaks a rule.
type Problem struct {
	// Pos is where: the file is relative to the root of the repository.
	Pos token.Position
	// Text says what is wrong and what the rule is.
	Text string
}

// String gives the problem as compilers do, so that editors can jump to it.
func (p Problem) String() string { return fmt.Sprintf("%s:%d: %s", p.Pos.Filename, p.Pos.Line, p.Text) }

// Check reads all Go files of the repository and returns what breaks the rules, in the order of files and lines.
// Generated files, testdata and directories whose name begins with a dot or an underscore are none of its business.
func Check(repository fs.FS) ([]Problem, error) {
	files, err := parse(repository)
	if err != nil {
		return nil, err
	}
	var problems []Problem
	for _, f := range files {
		problems = append(problems, f.checkSizes()...)
		if f.test {
			problems = append(problems, f.checkSleep()...)
		} else {
			problems = append(problems, f.checkComments()...)
		}
	}
	problems = append(problems, checkImports(files)...)
	slices.SortFunc(problems, func(a, b Problem) int {
		return cmp.Or(
			cmp.Compare(a.Pos.Filename, b.Pos.Filename), cmp.Compare(a.Pos.Line, b.Pos.Line), cmp.Compare(a.Text, b.Text),
		)
	})
	return problems, nil
}

// file is one parsed file.
type file struct {
	fset *token.FileSet
	ast  *ast.File
	name string // relative to the root of the repository
	dir  string // of its package, relative to the root; "." is the root package
	test bool   // a _test.go file, or anything in the tests module
}

func parse(repository fs.FS) ([]file, error) {
	fset := token.NewFileSet()
	var files []file
	err := fs.WalkDir(repository, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && name != "." && ignored(entry.Name()):
			return fs.SkipDir
		case entry.IsDir() || path.Ext(name) != ".go":
			return nil
		}
		src, err := fs.ReadFile(repository, name)
		if err != nil {
			return err
		}
		parsed, err := parser.ParseFile(fset, name, src, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		if !ast.IsGenerated(parsed) {
			test := strings.HasSuffix(name, "_test.go") || strings.HasPrefix(name, "tests/")
			files = append(files, file{fset: fset, ast: parsed, name: name, dir: path.Dir(name), test: test})
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("shape: read the repository: %w", err)
	}
	return files, nil
}

func ignored(dir string) bool {
	return dir == "testdata" || dir == "vendor" || dir == "node_modules" || dir[0] == '.' || dir[0] == '_'
}

func (f file) problem(pos token.Pos, format string, args ...any) Problem {
	return Problem{Pos: f.fset.Position(pos), Text: fmt.Sprintf(format, args...)}
}
