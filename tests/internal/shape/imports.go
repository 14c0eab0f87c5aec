package shape

import (
	"go/ast"
	"slices"
	"strconv"
	"strings"
)

const module = "github.com/gorm-outbox/outbox"

// arrow is one rule of the architecture: what a part of the repository may import besides the standard library. It holds
// for the part's internal packages too, as far as the part reaches them: nothing gets in by the back door. Test files
// are free.
type arrow struct {
	part    string // as the message names it
	from    func(dir string) bool
	trees   []string // allowed import paths, each with everything below it
	exactly []string // allowed import paths without what is below them
	only    string   // what is allowed, in words
}

var arrows = []arrow{
	{
		part: "policy",
		from: func(dir string) bool { return within(dir, "policy") },
		only: "the standard library: its decisions are pure",
	},
	{
		part: "the root package",
		from: func(dir string) bool { return dir == "." },
		trees: []string{
			"gorm.io/gorm", "gorm.io/datatypes", "github.com/google/uuid", module + "/policy", module + "/internal",
		},
		only: "the standard library, gorm.io/gorm, gorm.io/datatypes, github.com/google/uuid, policy and internal: " +
			"no transport, no outboxtest and no database driver comes with it",
	},
	{
		part: "outboxtest",
		// The database of sqlitetest needs a driver; that is why it is a package of its own.
		from: func(dir string) bool { return within(dir, "outboxtest") && dir != "outboxtest/sqlitetest" },
		trees: []string{
			"gorm.io/gorm", "github.com/stretchr/testify", module + "/policy", module + "/internal", module + "/outboxtest",
		},
		exactly: []string{module},
		only:    "the standard library, gorm.io/gorm, testify, the root package, policy and internal",
	},
	{
		part: "what transports share",
		from: func(dir string) bool {
			name, ok := strings.CutPrefix(dir, "transports/")
			return ok && slices.Contains(shared, name)
		},
		trees:   []string{module + "/policy"},
		exactly: []string{module, "github.com/stretchr/testify/require"},
		only:    "the standard library, the root package and policy",
	},
}

// shared are the packages below transports that are none: what goes on the wire, and the contract that every transport
// runs.
var shared = []string{"wire", "transporttest"}

// checkImports holds the arrows, and keeps transports apart from each other.
func checkImports(files []file) []Problem {
	packages := map[string][]file{}
	for _, f := range files {
		if !strings.HasSuffix(f.name, "_test.go") {
			packages[f.dir] = append(packages[f.dir], f)
		}
	}
	var problems []Problem
	for _, a := range arrows {
		seen := map[string]bool{}
		for dir := range packages {
			if a.from(dir) {
				problems = append(problems, a.check(dir, packages, seen)...)
			}
		}
	}
	for dir, files := range packages {
		if own := transport(dir); own != "" {
			problems = append(problems, checkTransport(own, files)...)
		}
	}
	return problems
}

// check follows the imports of the package in dir into internal packages; seen are those that it has looked at.
func (a arrow) check(dir string, packages map[string][]file, seen map[string]bool) []Problem {
	if seen[dir] {
		return nil
	}
	seen[dir] = true
	var problems []Problem
	for _, f := range packages[dir] {
		for _, spec := range f.ast.Imports {
			imported := importPath(spec)
			if !a.allows(imported) {
				problems = append(problems, f.problem(spec.Pos(), "imports %q, but %s may use only %s", imported, a.part, a.only))
				continue
			}
			if below, ours := strings.CutPrefix(imported, module+"/"); ours && within(below, "internal") {
				problems = append(problems, a.check(below, packages, seen)...)
			}
		}
	}
	return problems
}

func (a arrow) allows(imported string) bool {
	below := func(tree string) bool { return within(imported, tree) }
	return standard(imported) || slices.Contains(a.exactly, imported) || slices.ContainsFunc(a.trees, below)
}

// checkTransport finds where a package of the transport own imports another transport, or more of ours than it may.
func checkTransport(own string, files []file) []Problem {
	var problems []Problem
	for _, f := range files {
		for _, spec := range f.ast.Imports {
			below, ours := strings.CutPrefix(importPath(spec), module+"/")
			if !ours {
				continue
			}
			switch other := transport(below); {
			case other == own, other == "" && (within(below, "policy") || within(below, "transports")):
			case other != "":
				problems = append(problems, f.problem(spec.Pos(), "transports/%s imports transports/%s: a transport stands alone", own, other))
			default:
				problems = append(problems, f.problem(spec.Pos(), "imports %q, but of ours a transport may use only the root "+
					"package, policy and what transports share", importPath(spec)))
			}
		}
	}
	return problems
}

// transport names the transport that a directory belongs to, if any: transports/email/smtp is email's.
func transport(dir string) string {
	below, ok := strings.CutPrefix(dir, "transports/")
	if !ok {
		return ""
	}
	name, _, _ := strings.Cut(below, "/")
	if slices.Contains(shared, name) {
		return ""
	}
	return name
}

// standard tells a package of the standard library by its first element, which holds no dot.
func standard(imported string) bool {
	first, _, _ := strings.Cut(imported, "/")
	return !strings.Contains(first, ".")
}

// within says whether a path is base or lies below it.
func within(p, base string) bool { return p == base || strings.HasPrefix(p, base+"/") }

func importPath(spec *ast.ImportSpec) string {
	imported, _ := strconv.Unquote(spec.Path.Value) // the parser has checked it
	return imported
}
