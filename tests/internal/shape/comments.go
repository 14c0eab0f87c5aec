package shape

import (
	"go/ast"
	"go/token"
	"strings"
)

// checkComments finds exported names that a reader of the documentation would meet without a word about them: functions,
// methods, types, their fields and interface methods, constants and variables. In a group, the group's comment is enough
// for its constants and variables.
func (f file) checkComments() []Problem {
	var problems []Problem
	need := func(pos token.Pos, name string, comments ...*ast.CommentGroup) {
		for _, c := range comments {
			if c != nil && strings.TrimSpace(c.Text()) != "" {
				return
			}
		}
		problems = append(problems, f.problem(pos, "%s is exported and has no comment", name))
	}
	for _, decl := range f.ast.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			if receiver, shown := receiverName(decl); shown && decl.Name.IsExported() {
				need(decl.Pos(), receiver+decl.Name.Name, decl.Doc)
			}
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				needInSpec(spec, decl, need)
			}
		}
	}
	return problems
}

type needComment func(pos token.Pos, name string, comments ...*ast.CommentGroup)

func needInSpec(spec ast.Spec, decl *ast.GenDecl, need needComment) {
	switch spec := spec.(type) {
	case *ast.ValueSpec:
		for _, name := range spec.Names {
			if name.IsExported() {
				need(name.Pos(), name.Name, spec.Doc, spec.Comment, decl.Doc)
			}
		}
	case *ast.TypeSpec:
		if !spec.Name.IsExported() {
			return
		}
		doc := spec.Doc
		if doc == nil && !decl.Lparen.IsValid() { // `type T …` alone: its comment hangs on the declaration
			doc = decl.Doc
		}
		need(spec.Pos(), spec.Name.Name, doc, spec.Comment)
		for _, member := range members(spec.Type) {
			for _, name := range member.Names {
				if name.IsExported() {
					need(name.Pos(), spec.Name.Name+"."+name.Name, member.Doc, member.Comment)
				}
			}
		}
	}
}

// members are the fields of a struct or the methods of an interface. The only method of an interface, as io.Reader's
// Read, is what the interface's own comment is about.
func members(t ast.Expr) []*ast.Field {
	switch t := t.(type) {
	case *ast.StructType:
		return t.Fields.List
	case *ast.InterfaceType:
		if len(t.Methods.List) > 1 {
			return t.Methods.List
		}
	}
	return nil
}

// receiverName returns the receiver's type with a dot ("" for a function), and whether the documentation shows it.
func receiverName(fn *ast.FuncDecl) (name string, shown bool) {
	if fn.Recv == nil || len(fn.Recv.List) == 0 {
		return "", true
	}
	t := fn.Recv.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.ParenExpr:
			t = x.X
		case *ast.IndexExpr: // a generic type with one parameter
			t = x.X
		case *ast.IndexListExpr: // with several
			t = x.X
		case *ast.Ident:
			return x.Name + ".", x.IsExported()
		default:
			return "", true
		}
	}
}
