package workload

import (
	"context"
	"time"

	"github.com/gorm-outbox/outbox/tests/bench/internal/contender"
	"github.com/gorm-outbox/outbox/tests/bench/internal/ledger"
	"github.com/gorm-outbox/outbox/tests/bench/internal/report"
	"github.com/gorm-outbox/outbox/tests/bench/internal/trial"
)

// backlogs are F: the drain of C1 in a table with other rows in it, and without for comparison.
var backlogs = []Case{
	backlog("F-plain", "drain as in C1, to compare with", ""),
	backlog("F-sent", "drain behind finished rows", contender.SentRows),
	backlog("F-future", "drain behind rows that are due in weeks", contender.FutureRows),
	backlog("F-other", "drain beside due rows of a topic that nobody delivers", contender.OtherRows),
}

func backlog(name, about string, kind contender.Background) Case {
	return Case{
		Table: drainTable(name, about, "river-tuned"),
		measure: func(ctx context.Context, s *trial.Session, z Sizes) (values, error) {
			task := trial.Task{Until: z.Messages}
			if kind == "" {
				return drained(ctx, s, z, 1, task)
			}
			rows := trial.Task{Role: trial.Prepare, Setup: true, Background: string(kind), Rows: z.Background}
			if _, err := s.Run(ctx, rows); err != nil {
				return nil, err
			}
			for _, statement := range []string{"VACUUM ANALYZE", "CHECKPOINT"} { // these rows have been there for long
				if err := s.Exec(ctx, statement); err != nil {
					return nil, err
				}
			}
			if err := fill(ctx, s, trial.Task{Role: trial.Prepare, To: z.Messages}); err != nil {
				return nil, err
			}
			return deliver(ctx, s, z, 1, task)
		},
	}
}

// snapshots are X: two rounds while an old transaction keeps the database from cleaning up behind them.
var snapshots = []Case{{
	Table: report.Table{
		Case: "X", About: "two drains while an old snapshot is held",
		Columns: []report.Column{
			{Title: "first msg/s", Key: First, Range: true}, {Title: "second", Key: Second, Range: true},
			{Title: "second ÷ first", Key: SecondFirst}, {Title: "last ÷ first tenth", Key: LastFirst},
		},
	},
	measure: measureSnapshot,
}}

func measureSnapshot(ctx context.Context, s *trial.Session, z Sizes) (values, error) {
	if err := prepare(ctx, s, 0); err != nil {
		return nil, err
	}
	release, err := s.HoldSnapshot(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := s.OpenLedger(2 * z.Messages); err != nil {
		return nil, err
	}
	var rates []float64
	var began []time.Time
	for _, until := range []int{z.Messages, 2 * z.Messages} {
		if err := fill(ctx, s, trial.Task{Role: trial.Prepare, From: until - z.Messages, To: until}); err != nil {
			return nil, err
		}
		before := s.Ledger.Handled()
		m, err := s.Run(ctx, trial.Task{Role: trial.Drain, Until: until, Limit: z.Limit})
		if err != nil {
			return nil, err
		}
		began = append(began, m.Began)
		rates = append(rates, float64(s.Ledger.Handled()-before)/m.Elapsed.Seconds())
		if s.Ledger.Handled() < until { // cut off: a second round would not compare
			return values{First: rates[0]}, checkDelivered(ctx, s, z, m)
		}
		if err := violation(s.CheckRecorded(ctx)); err != nil {
			return nil, err
		}
	}
	return snapshotValues(s.Ledger, rates, began[0]), violation(s.Ledger.Check(true))
}

// snapshotValues lets the first tenth begin with the worker, whose first claim belongs to it.
func snapshotValues(l *ledger.Ledger, rates []float64, began time.Time) values {
	first := l.Mark(1).Sub(began)
	last := l.Mark(ledger.Tenths).Sub(l.Mark(ledger.Tenths - 1))
	return values{
		First: rates[0], Second: rates[1], SecondFirst: rates[1] / rates[0],
		LastFirst: first.Seconds() / last.Seconds(), // the same number of messages in both
	}
}
