// Package tests holds the integration tests: real databases, several processes, faults.
package tests

import (
	"fmt"
	"os"
	"testing"

	"github.com/gorm-outbox/outbox/tests/internal/pgtest"
	"go.uber.org/goleak"
)

// cluster is the PostgreSQL server that tests share; each takes a database of its own. A test that stops or crashes
// the server starts its own.
var cluster *pgtest.Cluster

// workers are the programs that this binary turns into when a test starts it again as another process: the value of
// the environment variable OUTBOX_TEST_WORKER names one.
var workers = map[string]func() error{}

func TestMain(m *testing.M) {
	if name := os.Getenv("OUTBOX_TEST_WORKER"); name != "" {
		if err := workers[name](); err != nil {
			fmt.Fprintln(os.Stderr, "worker", name+":", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	var err error
	if cluster, err = pgtest.Start(pgtest.Options{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	cluster.Stop()
	if code != 0 {
		return code
	}
	// GORM's cache of prepared statements keeps a goroutine that nothing ends.
	if err := goleak.Find(goleak.IgnoreAnyFunction("gorm.io/gorm/internal/lru.NewLRU[...].func1")); err != nil {
		fmt.Fprintln(os.Stderr, "goroutines left behind:", err)
		return 1
	}
	return 0
}
