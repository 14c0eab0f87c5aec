package outboxtest

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
)

// RunContract checks, as subtests of t, what the outbox promises, on a database of the caller's choice. Each check
// calls open once for a handle on a fresh, empty database, on which it installs the outbox itself; open closes it with
// t.Cleanup. The pool should allow some fifty connections, and a SQLite database must be a file with a busy timeout.
//
// The checks use SQL that every engine knows. They move records in time through the table and wait for events, never
// for time to pass, except where a timeout is what they are about. Since they also look for goroutines left behind, no
// other test may use an outbox at the same time.
func RunContract(t *testing.T, open func(t *testing.T) *gorm.DB) {
	for _, part := range []struct {
		name   string
		checks []check
	}{
		{"transaction", transactionChecks}, {"enqueue", enqueueChecks}, {"key", keyChecks}, {"input", inputChecks},
		{"deliver", deliverChecks}, {"outcome", outcomeChecks}, {"schedule", scheduleChecks}, {"topic", topicChecks},
		{"lease", leaseChecks}, {"lost", lostChecks}, {"claim", claimChecks}, {"run", runChecks}, {"config", configChecks},
		{"schema", schemaChecks}, {"tenant", tenantChecks}, {"privacy", privacyChecks},
		{"manage", manageChecks}, {"inspect", inspectChecks}, {"consume", consumeChecks},
		{"at most once", onceChecks}, {"receipt", receiptChecks}, {"limit", limitChecks},
	} {
		t.Run(part.name, func(t *testing.T) {
			for _, c := range part.checks {
				t.Run(c.name, func(t *testing.T) {
					before := workers()
					t.Cleanup(func() { requireNoWorkers(t, before) })
					c.run(t, open(t))
				})
			}
		})
	}
}

// check is one promise and how it is checked, on an empty database.
type check struct {
	name string
	run  func(t *testing.T, db *gorm.DB)
}

// requireNoWorkers waits until no goroutine that the outbox has started since then is left.
func requireNoWorkers(t *testing.T, since map[string]bool) {
	t.Helper()
	require.Eventually(t, func() bool {
		for goroutine := range workers() {
			if !since[goroutine] {
				return false
			}
		}
		return true
	}, waitLimit, 5*time.Millisecond, "the outbox left goroutines behind")
}

// workers are the names of the goroutines that the outbox has started.
func workers() map[string]bool {
	stacks := make([]byte, 1<<20)
	for runtime.Stack(stacks, true) == len(stacks) {
		stacks = make([]byte, 2*len(stacks))
	}
	found := map[string]bool{}
	for _, stack := range strings.Split(string(stacks), "\n\n") {
		if strings.Contains(stack, "created by github.com/gorm-outbox/outbox.") {
			name, _, _ := strings.Cut(stack, " [") // goroutine 7 [running]:
			found[name] = true
		}
	}
	return found
}
