package workload

import (
	"context"
	"fmt"

	"github.com/gorm-outbox/outbox/tests/bench/internal/report"
	"github.com/gorm-outbox/outbox/tests/bench/internal/trial"
)

// enqueues are A: what a message adds to the transaction that it belongs to.
var enqueues = []Case{enqueue(1), enqueue(8), enqueue(32)}

func enqueue(goroutines int) Case {
	return Case{
		Table: report.Table{
			Case: fmt.Sprintf("A%d", goroutines), About: fmt.Sprintf("a row of the app's and a message in each transaction, %d at a time", goroutines),
			Columns: append([]report.Column{
				{Title: "tx/s", Key: Rate, Range: true}, {Title: "p50 ms", Key: P50}, {Title: "p99 ms", Key: P99},
			}, costColumns...),
			Against: []string{"no-outbox-gorm", "no-outbox-pgx"},
		},
		measure: func(ctx context.Context, s *trial.Session, z Sizes) (values, error) {
			if err := prepare(ctx, s, 0); err != nil {
				return nil, err
			}
			m, err := s.Run(ctx, trial.Task{Role: trial.Enqueue, Goroutines: goroutines, Period: z.Period})
			if err != nil {
				return nil, err
			}
			r := m.Results[0]
			v := costs(m, r.Count)
			v[P50], v[P99] = millis(r.P50), millis(r.P99)
			return v, violation(s.CheckStored(ctx, r.Total, r.Total))
		},
	}
}

// bulks are B: many messages at once.
var bulks = []Case{{
	Table: report.Table{
		Case: "B", About: fmt.Sprintf("messages in transactions of %d", trial.BulkSize),
		Columns: append([]report.Column{{Title: "msg/s", Key: Rate, Range: true}}, costColumns...),
		Against: []string{"raw-lease", "river-tuned"},
	},
	measure: func(ctx context.Context, s *trial.Session, z Sizes) (values, error) {
		if err := prepare(ctx, s, 0); err != nil {
			return nil, err
		}
		m, err := s.Run(ctx, trial.Task{Role: trial.Bulk, To: z.Messages})
		if err != nil {
			return nil, err
		}
		return costs(m, z.Messages), violation(s.CheckStored(ctx, z.Messages, 0))
	},
}}
