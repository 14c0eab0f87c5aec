// Package scheduling shows the ways to run a processor; take the one that fits the app.
package scheduling

import (
	"context"
	"log/slog"
	"os/signal"
	"syscall"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/gorm-outbox/outbox"
	"github.com/robfig/cron/v3"
)

// Loop runs the processor until the process is told to stop: the lowest latency, and no scheduler needed.
func Loop(processor *outbox.Processor) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	return processor.Run(ctx) // on the signal: finishes what has started, releases the rest
}

// Gocron runs a round every few seconds. Rounds may overlap, here and on other machines.
func Gocron(ctx context.Context, scheduler gocron.Scheduler, processor *outbox.Processor) error {
	_, err := scheduler.NewJob(
		gocron.DurationJob(5*time.Second),
		gocron.NewTask(func() { report(processor.ProcessOnce(ctx)) }),
	)
	return err
}

// Cron runs a round every ten seconds.
func Cron(ctx context.Context, scheduler *cron.Cron, processor *outbox.Processor) error {
	_, err := scheduler.AddFunc("@every 10s", func() { report(processor.ProcessOnce(ctx)) })
	return err
}

// Job works off what is due and ends: for a Kubernetes CronJob, whose container runs it as its main.
func Job(ctx context.Context, processor *outbox.Processor) {
	for ctx.Err() == nil {
		summary := processor.ProcessOnce(ctx)
		report(summary)
		if summary.Claimed == 0 {
			return
		}
	}
}

// report is where a summary goes: to the log, or to metrics.
func report(s outbox.Summary) {
	if s.Errors > 0 || s.Lost > 0 || s.Released > 0 || s.Failed > 0 {
		slog.Warn("outbox round", "summary", s)
	}
}
