package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox/tests/bench/internal/contender"
	"github.com/gorm-outbox/outbox/tests/bench/internal/report"
	"github.com/gorm-outbox/outbox/tests/bench/internal/server"
	"github.com/gorm-outbox/outbox/tests/bench/internal/trial"
	"github.com/gorm-outbox/outbox/tests/bench/internal/workload"
	"github.com/gorm-outbox/outbox/tests/internal/pgtest"
	"github.com/stretchr/testify/require"
)

// cluster is not durable: what is tested is that the measurements are correct, not what they say.
var cluster *pgtest.Cluster

func TestMain(m *testing.M) {
	if trial.IsChild() {
		os.Exit(trial.Child())
	}
	os.Exit(func() int {
		var err error
		if cluster, err = pgtest.Start(pgtest.Options{}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer cluster.Stop()
		return m.Run()
	}())
}

func open(t *testing.T) *server.Server {
	t.Helper()
	srv, err := server.Open(context.Background(), cluster.DSN("postgres"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, srv.Close(context.Background())) })
	return srv
}

// TestEverything runs every case with every contender that takes part in it, at a tiny size. The server counts no
// statements here: what takes the place of that is tested on the way.
func TestEverything(t *testing.T) {
	srv := open(t)
	sizes := workload.Sizes{
		Messages: 300, Background: 50, Period: 100 * time.Millisecond, Settle: 100 * time.Millisecond, Limit: 30 * time.Second,
	}
	for _, c := range workload.All() {
		t.Run(c.Case, func(t *testing.T) {
			for _, d := range contender.All() {
				if !d.In(c.Case) {
					continue
				}
				t.Run(d.Name, func(t *testing.T) {
					t.Parallel()
					sample := c.Measure(context.Background(), srv, d, sizes, 1)
					require.Empty(t, sample.Problem)
					for _, column := range c.Columns {
						if column.Key != workload.PgCPU && column.Key != workload.PgCPUS { // /proc is not everywhere
							require.Contains(t, sample.Values, column.Key)
						}
					}
				})
			}
		})
	}
}

// TestTargetsNameWhatIsMeasured keeps a target from being left out of every report for a typing error.
func TestTargetsNameWhatIsMeasured(t *testing.T) {
	cases := map[string]bool{}
	for _, c := range workload.All() {
		cases[c.Case] = true
	}
	for _, target := range workload.Targets() {
		for _, ref := range []report.Ref{target.Top, target.Bottom} {
			if ref == (report.Ref{}) {
				continue
			}
			require.True(t, cases[ref.Case], "%s: no case %s", target.Name, ref.Case)
			d, ok := contender.Find(ref.Contender)
			require.True(t, ok && d.In(ref.Case), "%s: %s is not in %s", target.Name, ref.Contender, ref.Case)
		}
	}
}

func TestOptions(t *testing.T) {
	o, err := parseOptions([]string{"-quick", "-n", "500", "-workloads", "C1,D"}, io.Discard)
	require.NoError(t, err)
	require.Equal(t, 500, o.sizes.Messages, "given beside -quick")
	require.Equal(t, 3, o.runs, "of -quick")
	require.Len(t, o.cases, 3)
	require.Equal(t, "500", o.given["n"])

	for _, wrong := range [][]string{{"-workloads", "Z"}, {"-contenders", "nobody"}, {"-runs", "0"}, {"-n", "x"}} {
		var complaint bytes.Buffer
		_, err := parseOptions(wrong, &complaint)
		require.Error(t, err)
		require.NotEmpty(t, complaint.String())
	}
}
