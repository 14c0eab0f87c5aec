package workload

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gorm-outbox/outbox/tests/bench/internal/report"
	"github.com/gorm-outbox/outbox/tests/bench/internal/trial"
)

const arrivals = 200 // transactions per second

// latencies are E: how long a message waits for its handler when there is no backlog.
var latencies = []Case{{
	Table: report.Table{
		Case: "E", About: fmt.Sprintf("from commit to handler in ms, %d transactions per second at random moments", arrivals),
		Columns: []report.Column{
			{Title: "p50", Key: P50, Range: true}, {Title: "p95", Key: P95}, {Title: "p99", Key: P99, Range: true},
			{Title: "worst", Key: Worst, Range: true}, {Title: "stmts", Key: Statements},
		},
	},
	measure: func(ctx context.Context, s *trial.Session, z Sizes) (values, error) {
		if err := prepare(ctx, s, 0); err != nil {
			return nil, err
		}
		period := 5 * z.Period
		messages := max(int(arrivals*period.Seconds()), 1)
		if err := s.OpenLedger(messages); err != nil {
			return nil, err
		}
		m, err := s.Run(ctx,
			trial.Task{Role: trial.Drain, Until: messages, Limit: period + z.Limit, Timed: true},
			trial.Task{Role: trial.Produce, To: messages, Rate: arrivals, Goroutines: 32, Settle: z.Settle},
		)
		if err != nil {
			return nil, err
		}
		times := s.Ledger.Latencies()
		slices.Sort(times)
		v := values{
			P50: millis(trial.Quantile(times, 0.5)), P95: millis(trial.Quantile(times, 0.95)),
			P99: millis(trial.Quantile(times, 0.99)), Worst: millis(trial.Quantile(times, 1)),
			Statements: float64(m.Server.Calls()) / float64(messages),
		}
		return v, violation(errors.Join(s.Ledger.Check(true), s.CheckRecorded(ctx)))
	},
}}
