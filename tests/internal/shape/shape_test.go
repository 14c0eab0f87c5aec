package shape

import (
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

// check runs Check over files given as name and source, and returns the problems as text.
func check(t *testing.T, namesAndSources ...string) []string {
	t.Helper()
	repository := fstest.MapFS{}
	for i := 0; i < len(namesAndSources); i += 2 {
		repository[namesAndSources[i]] = &fstest.MapFile{Data: []byte(namesAndSources[i+1])}
	}
	problems, err := Check(repository)
	require.NoError(t, err)
	var texts []string
	for _, p := range problems {
		texts = append(texts, p.String())
	}
	return texts
}

func requireProblem(t *testing.T, problems []string, where, what string) {
	t.Helper()
	require.Len(t, problems, 1)
	require.True(t, strings.HasPrefix(problems[0], where+": "), problems[0])
	require.Contains(t, problems[0], what)
}

func TestFunctionLength(t *testing.T) {
	function := func(lines int) string {
		return "package p\n\n// F does.\nfunc F() {\n" + strings.Repeat("\tg()\n", lines-2) + "}\n"
	}
	for name, limit := range map[string]int{"p.go": 60, "p_test.go": 80, "tests/p.go": 80} {
		require.Empty(t, check(t, name, function(limit)))
		requireProblem(t, check(t, name, function(limit+1)), name+":4", fmt.Sprintf("F has %d lines", limit+1))
	}
}

func TestFileLength(t *testing.T) {
	file := func(lines int) string { return "package p\n" + strings.Repeat("\n", lines-2) + "// the end\n" }
	for name, limit := range map[string]int{"p.go": 400, "sub/p_test.go": 800} {
		require.Empty(t, check(t, name, file(limit)))
		requireProblem(t, check(t, name, file(limit+1)), name+":1", fmt.Sprintf("%d lines", limit+1))
	}
}

func TestSleep(t *testing.T) {
	const plain = "package p\n\nimport \"time\"\n\nfunc f() { time.Sleep(1) }\n"
	requireProblem(t, check(t, "p_test.go", plain), "p_test.go:5", "time.Sleep")
	requireProblem(t, check(t, "tests/p.go", plain), "tests/p.go:5", "time.Sleep")
	require.Empty(t, check(t, "p.go", plain), "production code may")

	const renamed = "package p\n\nimport clock \"time\"\n\nfunc f() { clock.Sleep(1) }\n"
	requireProblem(t, check(t, "p_test.go", renamed), "p_test.go:5", "time.Sleep")

	const other = "package p\n\nimport \"example.com/time\"\n\nfunc f() { time.Sleep(1) }\n"
	require.Empty(t, check(t, "p_test.go", other), "another package's Sleep")
}

func TestComments(t *testing.T) {
	const undocumented = `package p

func F() {}

type T struct {
	A, B int
	c    int
}

func (t *T) M() {}

func (g G[K, V]) N() {}

type I interface{ Do(); Undo() }

var V, w int

const (
	C = 1
)
`
	require.Equal(t, []string{
		"p.go:3: F is exported and has no comment",
		"p.go:5: T is exported and has no comment",
		"p.go:6: T.A is exported and has no comment",
		"p.go:6: T.B is exported and has no comment",
		"p.go:10: T.M is exported and has no comment",
		"p.go:12: G.N is exported and has no comment",
		"p.go:14: I is exported and has no comment",
		"p.go:14: I.Do is exported and has no comment",
		"p.go:14: I.Undo is exported and has no comment",
		"p.go:16: V is exported and has no comment",
		"p.go:19: C is exported and has no comment",
	}, check(t, "p.go", undocumented))
	require.Empty(t, check(t, "p_test.go", undocumented))
	require.Empty(t, check(t, "tests/p.go", undocumented))
}

func TestCommentsThatSuffice(t *testing.T) {
	require.Empty(t, check(t, "p.go", `package p

// F does.
func F() {}

// T is.
type T struct {
	// A and B are both.
	A, B int
	C    int // beside it
	Embedded
}

func (t hidden) M() {}

type hidden struct{ A int }

// Doer does.
type Doer interface{ Do() }

// The numbers.
const (
	One = 1
	Two = 2
)

type (
	// U is.
	U int
)
`))
	requireProblem(t, check(t, "p.go", "package p\n\n// A group.\ntype (\n\tT int\n)\n"), "p.go:5", "T is exported")
}

func TestImports(t *testing.T) {
	tests := []struct {
		name, file, imports string
		want                string // part of the message; empty: allowed
	}{
		{"policy uses the standard library", "policy/p.go", "math/rand/v2", ""},
		{"policy uses ours", "policy/p.go", module + "/internal/x", "policy may use only the standard library"},
		{"policy uses GORM", "policy/p.go", "gorm.io/gorm", "policy may use only"},
		{"policy's tests are free", "policy/p_test.go", "github.com/stretchr/testify/require", ""},

		{"root uses GORM", "p.go", "gorm.io/gorm/clause", ""},
		{"root uses datatypes", "p.go", "gorm.io/datatypes", ""},
		{"root uses uuid", "p.go", "github.com/google/uuid", ""},
		{"root uses policy", "p.go", module + "/policy", ""},
		{"root uses a driver", "p.go", "gorm.io/driver/postgres", "the root package may use only"},
		{"root uses a transport", "p.go", module + "/transports/email", "no transport"},
		{"root uses outboxtest", "p.go", module + "/outboxtest", "no outboxtest"},
		{"root uses a name that only begins like GORM", "p.go", "gorm.io/gormlike", "the root package may use only"},
		{"root's tests are free", "p_test.go", "github.com/glebarez/sqlite", ""},

		{"outboxtest uses root", "outboxtest/p.go", module, ""},
		{"outboxtest uses testify", "outboxtest/p.go", "github.com/stretchr/testify/require", ""},
		{"outboxtest uses a transport", "outboxtest/p.go", module + "/transports/email", "outboxtest may use only"},
		{"outboxtest uses a driver", "outboxtest/p.go", "github.com/glebarez/sqlite", "outboxtest may use only"},

		{"a transport uses root and its client", "transports/email/p.go", "github.com/resend/resend-go", ""},
		{"a transport uses its own part", "transports/email/p.go", module + "/transports/email/smtp", ""},
		{"a transport uses another", "transports/email/smtp/p.go", module + "/transports/webhook", "a transport stands alone"},
		{"a transport uses policy", "transports/email/p.go", module + "/policy", ""},
		{"a transport uses outboxtest", "transports/email/p.go", module + "/outboxtest", "a transport may use only"},
		{"a transport uses what is internal", "transports/email/p.go", module + "/internal/jsoncheck", "a transport may use only"},
		{"a transport's tests are free", "transports/email/p_test.go", module + "/outboxtest", ""},
		{"a transport uses what they share", "transports/webhook/p.go", module + "/transports/wire", ""},
		{"what they share uses root", "transports/wire/p.go", module, ""},
		{"what they share uses a transport", "transports/wire/p.go", module + "/transports/webhook", "what transports share may use only"},

		{"the example uses anything", "example/p.go", "gorm.io/driver/postgres", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			problems := check(t, tt.file, fmt.Sprintf("package p\n\nimport _ %q\n", tt.imports))
			if tt.want == "" {
				require.Empty(t, problems)
				return
			}
			requireProblem(t, problems, tt.file+":3", tt.want)
		})
	}
}

func TestImportsThroughInternalPackages(t *testing.T) {
	const driver = "package p\n\nimport _ \"gorm.io/driver/postgres\"\n"
	require.Empty(t, check(t, "internal/b/p.go", driver), "nobody reaches it")

	problems := check(t,
		"p.go", "package p\n\nimport _ \""+module+"/internal/a\"\n",
		"internal/a/p.go", "package p\n\nimport _ \""+module+"/internal/b\"\n",
		"internal/b/p.go", driver)

	requireProblem(t, problems, "internal/b/p.go:3", "the root package may use only")
}

func TestIgnoredFiles(t *testing.T) {
	const undocumented = "package p\n\nfunc F() {}\n"
	require.Empty(t, check(t,
		"testdata/p.go", undocumented,
		".cache/p.go", undocumented,
		"_old/p.go", undocumented,
		"vendor/x/p.go", undocumented,
		"p.pb.go", "// Code generated by a tool. DO NOT EDIT.\n\n"+undocumented,
		"readme.md", undocumented,
	))
}

func TestBrokenSourceIsAnError(t *testing.T) {
	_, err := Check(fstest.MapFS{"p.go": {Data: []byte("package")}})
	require.ErrorContains(t, err, "p.go:1")
}
