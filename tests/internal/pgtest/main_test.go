package pgtest

import (
	"fmt"
	"io"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// shared serves the tests that leave the server running.
var shared *Cluster

func TestMain(m *testing.M) {
	if os.Getenv(orphanEnv) != "" {
		orphan()
	}
	var err error
	if shared, err = Start(Options{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	shared.Stop()
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// orphanEnv makes the test binary a process that starts a cluster and waits to be killed.
const orphanEnv = "OUTBOX_PGTEST_ORPHAN"

func orphan() {
	c, err := Start(Options{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(c.addr(), c.dir)
	_, _ = io.Copy(io.Discard, os.Stdin) // ends with the parent
	c.Stop()
	os.Exit(0)
}
