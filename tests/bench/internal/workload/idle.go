package workload

import (
	"context"
	"fmt"

	"github.com/gorm-outbox/outbox/tests/bench/internal/report"
	"github.com/gorm-outbox/outbox/tests/bench/internal/trial"
)

// idles are G: what a worker costs while there is nothing to do.
var idles = []Case{idle(1), idle(20)}

func idle(topics int) Case {
	return Case{
		Table: report.Table{
			Case: fmt.Sprintf("G%d", topics), About: fmt.Sprintf("an idle worker, per second; topics: %d", topics),
			Columns: []report.Column{
				{Title: "statements", Key: StatementsS, Range: true}, {Title: "PG ms", Key: PgCPUS}, {Title: "client ms", Key: ClientCPUS},
			},
		},
		measure: func(ctx context.Context, s *trial.Session, z Sizes) (values, error) {
			if err := prepare(ctx, s, 0); err != nil {
				return nil, err
			}
			m, err := s.Run(ctx, trial.Task{Role: trial.Idle, Period: 2 * z.Period, Settle: z.Settle, Topics: topics})
			if err != nil {
				return nil, err
			}
			seconds := m.Elapsed.Seconds()
			v := values{StatementsS: float64(m.Server.Calls()) / seconds, ClientCPUS: millis(m.CPU) / seconds}
			if m.Server.KnowsCPU {
				v[PgCPUS] = millis(m.Server.CPU) / seconds
			}
			return v, nil
		},
	}
}
