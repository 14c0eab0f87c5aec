package shape

import "go/ast"

// The limits in lines, comments included; tests get more room, because they are read one at a time.
const (
	maxFunc, maxFile         = 60, 400
	maxTestFunc, maxTestFile = 80, 800
)

func (f file) checkSizes() []Problem {
	funcLimit, fileLimit := maxFunc, maxFile
	if f.test {
		funcLimit, fileLimit = maxTestFunc, maxTestFile
	}
	var problems []Problem
	if lines := f.fset.File(f.ast.FileStart).LineCount(); lines > fileLimit {
		problems = append(problems, f.problem(f.ast.Package, "the file has %d lines, over the limit of %d: split it by topic", lines, fileLimit))
	}
	for _, decl := range f.ast.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok {
			continue
		}
		lines := f.fset.Position(fn.End()).Line - f.fset.Position(fn.Pos()).Line + 1
		if lines > funcLimit {
			problems = append(problems, f.problem(fn.Pos(), "%s has %d lines, over the limit of %d", fn.Name.Name, lines, funcLimit))
		}
	}
	return problems
}

// checkSleep finds time.Sleep under whatever name the file imports time.
func (f file) checkSleep() []Problem {
	name := ""
	for _, spec := range f.ast.Imports {
		if importPath(spec) != "time" {
			continue
		}
		if name = "time"; spec.Name != nil {
			name = spec.Name.Name
		}
	}
	if name == "" {
		return nil
	}
	var problems []Problem
	ast.Inspect(f.ast, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok || sel.Sel.Name != "Sleep" {
			return true
		}
		if pkg, ok := sel.X.(*ast.Ident); ok && pkg.Name == name {
			problems = append(problems, f.problem(sel.Pos(), "time.Sleep in a test: wait for the condition itself, with a deadline"))
		}
		return true
	})
	return problems
}
