package email

import (
	"context"
	"errors"
	"fmt"
	htmltemplate "html/template"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	texttemplate "text/template"
	"text/template/parse"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
)

// The endings of template files; what stands before them is the type.
const (
	subjectEnding = ".subject.txt"
	htmlEnding    = ".html"
	textEnding    = ".txt"
)

// Templates gives a [Render] for a folder of templates. A message of type order_confirmation is made of
//
//	order_confirmation.subject.txt  one line, with text/template
//	order_confirmation.html         with html/template, which escapes by context
//	order_confirmation.txt          with text/template
//
// of which the subject and one of the two bodies are required. A file in a subfolder is of type subfolder/name; files
// whose name begins with a dot are left out; of an embed.FS give the folder itself, by fs.Sub. The dot of a template is the payload, an object's fields by their JSON
// names: {{.name}}. Numbers print in plain decimal digits, without an exponent. A field that the payload lacks is an error,
// also inside an if: write {{with index . "name"}} for one that may be absent.
//
// All files are read, parsed and checked once, here. The error is an [outbox.ErrInvalid] that names every file that is
// wrong. While messages are sent, a type without templates is permanent, template/unknown_template; a template that
// fails is template/render, and a payload that is not JSON is payload/decode.
func Templates(files fs.FS) (Render, error) {
	if files == nil {
		return nil, fmt.Errorf("%w: email: the templates' file system is nil", outbox.ErrInvalid)
	}
	sets, problems := load(files)
	for _, name := range sortedKeys(sets) {
		problems = append(problems, sets[name].problems(name)...)
	}
	if len(sets) == 0 && len(problems) == 0 {
		problems = append(problems, errors.New("there are no templates"))
	}
	if len(problems) > 0 {
		return nil, fmt.Errorf("%w: email: templates: %w", outbox.ErrInvalid, errors.Join(problems...))
	}
	return func(_ context.Context, d outbox.Delivery) (Message, error) {
		set := sets[d.Type]
		if set == nil {
			return Message{}, &policy.Failure{Category: policy.CategoryTemplate, Code: "unknown_template"}
		}
		data, err := templateData(d.Payload)
		if err != nil {
			return Message{}, &policy.Failure{Category: policy.CategoryPayload, Code: "decode", Err: err}
		}
		return set.render(data)
	}, nil
}

func sortedKeys(sets map[string]*templateSet) []string {
	names := make([]string, 0, len(sets))
	for name := range sets {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// templateSet is the templates of one type. Those that are missing are nil.
type templateSet struct {
	subject, text *texttemplate.Template
	html          *htmltemplate.Template
	broken        bool // a file of it did not parse, which is reported already
}

// load reads every file below the root.
func load(files fs.FS) (sets map[string]*templateSet, problems []error) {
	sets = map[string]*templateSet{}
	err := fs.WalkDir(files, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case name != "." && strings.HasPrefix(path.Base(name), "."):
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		case entry.IsDir():
			return nil
		}
		source, err := fs.ReadFile(files, name)
		if err == nil {
			err = add(sets, name, string(source))
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", name, err))
		}
		return nil
	})
	if err != nil {
		problems = append(problems, err)
	}
	return sets, problems
}

// add parses one file into the set of its type.
func add(sets map[string]*templateSet, name, source string) error {
	ending := ""
	for _, e := range []string{subjectEnding, htmlEnding, textEnding} {
		if strings.HasSuffix(name, e) {
			ending = e
			break
		}
	}
	if ending == "" {
		return fmt.Errorf("is no template: its name ends in none of %s, %s and %s", subjectEnding, htmlEnding, textEnding)
	}
	kind := strings.TrimSuffix(name, ending)
	if sets[kind] == nil {
		sets[kind] = &templateSet{}
	}
	set := sets[kind]
	var err error
	switch ending {
	case subjectEnding: // the line break that ends the file is the editor's, not the subject's
		set.subject, err = parseText(name, strings.TrimSpace(source))
	case htmlEnding:
		set.html, err = parseHTML(name, source)
	case textEnding:
		set.text, err = parseText(name, source)
	}
	set.broken = set.broken || err != nil
	return err
}

func parseText(name, source string) (*texttemplate.Template, error) {
	t, err := texttemplate.New(name).Option("missingkey=error").Parse(source)
	if err != nil {
		return nil, err
	}
	for _, part := range t.Templates() {
		if err := checkCalls(part.Root, func(called string) bool { return t.Lookup(called) != nil }); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// parseHTML also has the template find out in which contexts its values stand, which html/template puts off until the
// first use, and which can fail.
func parseHTML(name, source string) (*htmltemplate.Template, error) {
	t, err := htmltemplate.New(name).Option("missingkey=error").Parse(source)
	if err != nil {
		return nil, err
	}
	var unescapable *htmltemplate.Error
	if err := t.Execute(io.Discard, nil); errors.As(err, &unescapable) {
		return nil, err
	}
	return t, nil
}

// checkCalls finds a {{template}} of a name that is not defined, which text/template would only meet when it gets there.
func checkCalls(node parse.Node, defined func(name string) bool) error {
	switch n := node.(type) {
	case *parse.ListNode:
		if n == nil {
			return nil
		}
		var problems []error
		for _, child := range n.Nodes {
			problems = append(problems, checkCalls(child, defined))
		}
		return errors.Join(problems...)
	case *parse.IfNode:
		return errors.Join(checkCalls(n.List, defined), checkCalls(n.ElseList, defined))
	case *parse.RangeNode:
		return errors.Join(checkCalls(n.List, defined), checkCalls(n.ElseList, defined))
	case *parse.WithNode:
		return errors.Join(checkCalls(n.List, defined), checkCalls(n.ElseList, defined))
	case *parse.TemplateNode:
		if !defined(n.Name) {
			return fmt.Errorf("line %d: template %q is not defined", n.Line, n.Name)
		}
	}
	return nil
}

// problems is what is missing for a set that could be read.
func (s *templateSet) problems(name string) []error {
	var problems []error
	switch {
	case s.broken:
	case s.subject == nil:
		problems = append(problems, fmt.Errorf("%s%s is missing", name, subjectEnding))
	case s.html == nil && s.text == nil:
		problems = append(problems, fmt.Errorf("%s%s and %s%s are missing, one of which is required", name, htmlEnding, name, textEnding))
	}
	return problems
}
