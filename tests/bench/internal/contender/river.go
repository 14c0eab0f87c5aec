package contender

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

var rivers = []Definition{
	{
		Name: "river-default", About: "River: MaxWorkers 100, FetchCooldown 100 ms, FetchPollInterval 1 s",
		Cases: []string{"A", "C", "D", "E", "G"}, Open: riverConfig{workers: 100}.open,
	},
	{
		Name: "river-tuned", About: "MaxWorkers 10000, FetchCooldown 5 ms: its plateau in a sweep",
		Cases: []string{"B", "C", "F", "X"}, Open: riverConfig{workers: 10000, cooldown: 5 * time.Millisecond}.open,
	},
	{
		Name: "river-lowlat", About: "MaxWorkers 1000, FetchCooldown 1 ms",
		Cases: []string{"D", "E", "G"}, Open: riverConfig{workers: 1000, cooldown: time.Millisecond}.open,
	},
}

type riverConfig struct {
	workers  int
	cooldown time.Duration // zero: River's own
}

type riverQueue struct {
	database
	cfg    riverConfig
	insert *river.Client[pgx.Tx] // a client without queues inserts only
}

// riverArgs are the job's arguments; a job is decoded without looking into them, as everywhere here.
type riverArgs struct{ message }

// Kind names the job.
func (riverArgs) Kind() string { return "order_placed" }

type riverWorker struct {
	river.WorkerDefaults[riverArgs]
	work Work
}

// Work handles one job.
func (w *riverWorker) Work(ctx context.Context, job *river.Job[riverArgs]) error {
	w.work.Handle(ctx, job.Args.payload)
	return nil
}

func (cfg riverConfig) open(ctx context.Context, o Options) (Contender, error) {
	db, err := openDatabase(ctx, o, 10)
	if err != nil {
		return nil, err
	}
	// The cooldown also bounds how often the inserting side wakes the others.
	insert, err := river.NewClient(riverpgxv5.New(db.pool), &river.Config{FetchCooldown: cfg.cooldown})
	return &riverQueue{database: db, cfg: cfg, insert: insert}, err
}

// Setup runs River's migrations.
func (c *riverQueue) Setup(ctx context.Context) error {
	if err := c.setup(ctx); err != nil {
		return err
	}
	migrator, err := rivermigrate.New(riverpgxv5.New(c.pool), &rivermigrate.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	return err
}

func riverMessage(n int) riverArgs { return riverArgs{message{Payload(n)}} }

// EnqueueTx is one InsertTx.
func (c *riverQueue) EnqueueTx(ctx context.Context, n int) error {
	return c.order(ctx, n, func(tx pgx.Tx) error {
		_, err := c.insert.InsertTx(ctx, tx, riverMessage(n), nil)
		return err
	})
}

// Bulk is River's fastest: InsertManyFastTx, by COPY.
func (c *riverQueue) Bulk(ctx context.Context, from, to int) error {
	params := make([]river.InsertManyParams, 0, to-from)
	for n := from; n < to; n++ {
		params = append(params, river.InsertManyParams{Args: riverMessage(n)})
	}
	return pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error {
		_, err := c.insert.InsertManyFastTx(ctx, tx, params)
		return err
	})
}

// Drain runs a client.
func (c *riverQueue) Drain(ctx context.Context, w Work) error {
	workers := river.NewWorkers()
	river.AddWorker(workers, &riverWorker{work: w})
	queue := river.QueueConfig{MaxWorkers: c.cfg.workers}
	if w.Concurrency > 0 {
		queue.MaxWorkers = w.Concurrency
	}
	queues := map[string]river.QueueConfig{river.QueueDefault: queue}
	for i := 1; i < w.Topics; i++ {
		queues[fmt.Sprintf("queue_%d", i)] = queue
	}
	client, err := river.NewClient(riverpgxv5.New(c.pool), &river.Config{
		Queues: queues, Workers: workers, FetchCooldown: c.cfg.cooldown, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	whole := context.WithoutCancel(ctx) // Stop lets the jobs at work finish; a context that ends would cancel them
	if err := client.Start(whole); err != nil {
		return err
	}
	<-ctx.Done()
	return client.Stop(whole)
}

// Background copies one job.
func (c *riverQueue) Background(ctx context.Context, kind Background, rows int) error {
	var opts river.InsertOpts
	others := map[string]string{}
	switch kind {
	case FutureRows:
		opts.ScheduledAt = time.Now().Add(24 * time.Hour)
		others["scheduled_at"] = "scheduled_at + random() * interval '30 days'"
	case OtherRows:
		opts.Queue = "other"
		others["scheduled_at"] = "scheduled_at - random() * interval '1 day'"
	}
	if _, err := c.insert.Insert(ctx, riverMessage(template), &opts); err != nil {
		return err
	}
	if kind == SentRows {
		const finish = `UPDATE river_job SET state = 'completed', attempt = 1, attempted_at = now(), finalized_at = now()`
		if _, err := c.pool.Exec(ctx, finish); err != nil {
			return err
		}
	}
	return c.multiply(ctx, "river_job", rows, others)
}

// Store is the table of jobs.
func (c *riverQueue) Store() Store {
	return Store{Table: "river_job", Number: "(args->>'n')::bigint", Finished: "state = 'completed' AND attempt = 1"}
}
