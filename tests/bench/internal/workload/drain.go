package workload

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gorm-outbox/outbox/tests/bench/internal/report"
	"github.com/gorm-outbox/outbox/tests/bench/internal/trial"
)

// drains are C: ready messages and a handler that does nothing, in one process and in several.
var drains = []Case{drain(1), drain(2), drain(4)}

func drain(processes int) Case {
	return Case{
		Table: drainTable(fmt.Sprintf("C%d", processes), fmt.Sprintf("drain of ready messages, no-op handler, worker processes: %d", processes), "river-tuned"),
		measure: func(ctx context.Context, s *trial.Session, z Sizes) (values, error) {
			return drained(ctx, s, z, processes, trial.Task{Until: z.Messages})
		},
	}
}

// handlers are D: a hundred handlers at a time that take their time. Half the messages do for the slow ones.
var handlers = []Case{
	handled("D1ms", time.Millisecond, func(z Sizes) int { return z.Messages }),
	handled("D20ms", 20*time.Millisecond, func(z Sizes) int { return z.Messages / 2 }),
}

const handlersAtOnce = 100

func handled(name string, takes time.Duration, messages func(Sizes) int) Case {
	return Case{
		Table: drainTable(name, fmt.Sprintf("drain with handlers of %v, %d at a time: at best %d/s", takes, handlersAtOnce,
			handlersAtOnce*time.Second/takes), "river-lowlat"),
		measure: func(ctx context.Context, s *trial.Session, z Sizes) (values, error) {
			return drained(ctx, s, z, 1, trial.Task{Until: messages(z), Concurrency: handlersAtOnce, Handler: takes})
		},
	}
}

func drainTable(name, about, peer string) report.Table {
	return report.Table{
		Case: name, About: about,
		Columns: append([]report.Column{{Title: "msg/s", Key: Rate, Range: true}}, costColumns...),
		Against: []string{"raw-lease", peer},
	}
}

// drained fills the table with the task's messages and measures their drain.
func drained(ctx context.Context, s *trial.Session, z Sizes, processes int, task trial.Task) (values, error) {
	if err := prepare(ctx, s, task.Until); err != nil {
		return nil, err
	}
	return deliver(ctx, s, z, processes, task)
}

// deliver measures the drain of messages that are there.
func deliver(ctx context.Context, s *trial.Session, z Sizes, processes int, task trial.Task) (values, error) {
	if err := s.OpenLedger(task.Until); err != nil {
		return nil, err
	}
	task.Role, task.Limit = trial.Drain, z.Limit
	m, err := s.Run(ctx, slices.Repeat([]trial.Task{task}, processes)...)
	if err != nil {
		return nil, err
	}
	return costs(m, s.Ledger.Handled()), checkDelivered(ctx, s, z, m)
}

// checkDelivered holds a drain to every message once, and recorded. One that was cut off by the limit may lack some.
func checkDelivered(ctx context.Context, s *trial.Session, z Sizes, m trial.Measured) error {
	cutOff := m.Elapsed >= z.Limit
	err := s.Ledger.Check(!cutOff)
	if !cutOff {
		err = errors.Join(err, s.CheckRecorded(ctx))
	}
	return violation(err)
}
