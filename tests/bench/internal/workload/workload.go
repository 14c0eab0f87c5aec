// Package workload is what is measured: one file for each kind of case, and the targets that this library is to reach.
package workload

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gorm-outbox/outbox/tests/bench/internal/contender"
	"github.com/gorm-outbox/outbox/tests/bench/internal/report"
	"github.com/gorm-outbox/outbox/tests/bench/internal/server"
	"github.com/gorm-outbox/outbox/tests/bench/internal/trial"
)

// Sizes are how much is measured.
type Sizes struct {
	Messages   int           // in a drain and a bulk enqueue
	Background int           // rows in the way
	Period     time.Duration // of an enqueue; latencies take 5 of these, idling takes 2
	Settle     time.Duration // what a worker gets to start up before latencies and idling count
	Limit      time.Duration // a drain that takes longer is cut off
}

// Case is one thing to measure.
type Case struct {
	report.Table
	measure func(ctx context.Context, s *trial.Session, z Sizes) (values, error)
}

// values are the numbers of one measurement, by the keys below.
type values = map[string]float64

// Keys of numbers.
const (
	Rate        = "rate"             // messages or transactions per second
	PgCPU       = "pg_us"            // CPU of the whole server per message, in microseconds
	ClientCPU   = "client_us"        // CPU of the measuring processes per message, in microseconds
	Allocs      = "allocs"           // allocations of those per message
	AllocBytes  = "alloc_bytes"      // and their size
	WAL         = "wal_bytes"        // write-ahead log per message
	Statements  = "statements"       // per message
	P50         = "p50_ms"           // milliseconds
	P95         = "p95_ms"           //
	P99         = "p99_ms"           //
	Worst       = "max_ms"           //
	First       = "rate_first"       // of the first round
	Second      = "rate_second"      // of the second
	SecondFirst = "second_first"     // the second divided by the first
	LastFirst   = "last_first"       // the last tenth of both rounds divided by the first
	StatementsS = "statements_per_s" // of an idle worker
	PgCPUS      = "pg_ms_per_s"      // CPU of the whole server per second of idling, in milliseconds
	ClientCPUS  = "client_ms_per_s"  // and of the worker
)

// The columns of most tables.
var costColumns = []report.Column{
	{Title: "PG µs", Key: PgCPU}, {Title: "client µs", Key: ClientCPU}, {Title: "allocs", Key: Allocs},
	{Title: "WAL B", Key: WAL}, {Title: "stmts", Key: Statements},
}

// All are the cases, in the order in which they are measured.
func All() []Case {
	return slices.Concat(enqueues, bulks, drains, handlers, latencies, backlogs, snapshots, idles)
}

// Measure takes one measurement. Whatever goes wrong is the sample's problem.
func (c Case) Measure(ctx context.Context, srv *server.Server, d contender.Definition, z Sizes, run int) report.Sample {
	sample := report.Sample{Case: c.Case, Contender: d.Name, Run: run}
	err := func() (err error) {
		session, err := trial.Start(ctx, srv, d)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, session.Close()) }()
		sample.Values, err = c.measure(ctx, session, z)
		return err
	}()
	if err != nil {
		sample.Problem = err.Error()
	}
	return sample
}

// costs gives what each of count messages cost.
func costs(m trial.Measured, count int) values {
	if count == 0 {
		return values{Rate: 0}
	}
	each := func(total float64) float64 { return total / float64(count) }
	v := values{
		Rate: float64(count) / m.Elapsed.Seconds(), ClientCPU: each(micros(m.CPU)), Allocs: each(float64(m.Mallocs)),
		AllocBytes: each(float64(m.Bytes)), WAL: each(float64(m.Server.WAL)), Statements: each(float64(m.Server.Calls())),
	}
	if m.Server.KnowsCPU {
		v[PgCPU] = each(micros(m.Server.CPU))
	}
	return v
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// prepare makes the schema and the first so many messages.
func prepare(ctx context.Context, s *trial.Session, messages int) error {
	return fill(ctx, s, trial.Task{Role: trial.Prepare, Setup: true, To: messages})
}

// fill enqueues messages, and has the planner know of them as it would in an app.
func fill(ctx context.Context, s *trial.Session, task trial.Task) error {
	if _, err := s.Run(ctx, task); err != nil {
		return err
	}
	return s.Exec(ctx, "ANALYZE")
}

// violation marks what no contender may do.
func violation(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("incorrect: %w", err)
}
