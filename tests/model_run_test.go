package tests

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// modelTerms are how many runs of the model each engine gets by default, and how many steps they have on average: some
// seconds' worth. Thousands are a matter of RAPID_CHECKS=5000, or of -rapid.checks=5000.
var modelTerms = map[string]string{"checks": "12", "steps": "60"}

// TestModel plays random sequences of everything that can happen to messages, and holds the outbox against the oracle
// after each step. A sequence that fails is shrunk, printed with its seed, and kept in testdata/rapid, from where it is
// played first the next time.
func TestModel(t *testing.T) {
	t.Parallel()
	boundChecks(t)
	for name, open := range map[string]func(*testing.T) *modelRig{"postgres": modelOnPostgres, "sqlite": modelOnSQLite} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := open(t)
			rapid.Check(t, func(t *rapid.T) {
				m := newMachine(t, g)
				defer m.stop()
				t.Repeat(m.actions())
			})
			t.Log("what happened:", g.happened)
		})
	}
}

// boundChecks sets the default terms, unless others were asked for.
func boundChecks(t *testing.T) {
	asked := map[string]bool{}
	flag.Visit(func(f *flag.Flag) { asked[f.Name] = true })
	for name, value := range modelTerms {
		if !asked["rapid."+name] && os.Getenv("RAPID_"+strings.ToUpper(name)) == "" {
			require.NoError(t, flag.Set("rapid."+name, value))
		}
	}
}
