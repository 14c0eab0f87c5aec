// Command bench measures this library beside its peers and beside what the database can do, all in one run on one
// PostgreSQL server, and prints tables, the ratios between them and whether the targets are reached. It ends with
// status 1 if any contender lost or repeated a message.
//
//	go run . -quick
//	go run . -workloads A,C1 -contenders outbox,raw-lease -runs 5 -json result.json
//
// docs/performance.md of the repository explains the workloads and the numbers.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/gorm-outbox/outbox/tests/bench/internal/report"
	"github.com/gorm-outbox/outbox/tests/bench/internal/trial"
	"github.com/gorm-outbox/outbox/tests/bench/internal/workload"
)

func main() {
	if trial.IsChild() {
		os.Exit(trial.Child())
	}
	o, err := parseOptions(os.Args[1:], os.Stderr)
	if err != nil {
		os.Exit(2) // the flag package has said why
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err = run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	srv, stop, err := startServer(ctx, o.dsn)
	if err != nil {
		return err
	}
	defer stop()
	environment, err := describe(ctx, srv)
	if err != nil {
		return err
	}
	fmt.Println(renderEnvironment(environment))
	fmt.Println(renderContenders(o.contenders))

	var samples report.Samples
	for _, c := range o.cases {
		samples = append(samples, o.measure(ctx, srv, c)...)
	}
	outcomes := samples.Judge(workload.Targets())
	if len(outcomes) > 0 {
		fmt.Println(report.RenderOutcomes(outcomes))
	}
	document := report.Document{
		Environment: environment, Options: o.given, Summaries: samples.Summaries(), Targets: outcomes, Samples: samples,
	}
	if err := o.writeJSON(document); err != nil {
		return err
	}
	return samples.Problems()
}
