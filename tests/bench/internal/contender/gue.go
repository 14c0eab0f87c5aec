package contender

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/vgarvardt/gue/v5"
	"github.com/vgarvardt/gue/v5/adapter/pgxv5"
	"golang.org/x/sync/errgroup"
)

var gues = []Definition{
	{
		Name: "gue-default", About: "gue: 10 workers, priority strategy, poll 5 s",
		Cases: []string{"C1", "E", "G"}, Open: gueConfig{workers: 10}.open,
	},
	{
		Name: "gue-tuned", About: "16 workers, RunAt strategy, poll 20 ms",
		Cases: []string{"A", "B", "C", "D", "E", "F-plain", "F-future", "F-other", "X", "G"},
		Open: gueConfig{workers: 16, options: []gue.WorkerPoolOption{
			gue.WithPoolPollStrategy(gue.RunAtPollStrategy), gue.WithPoolPollInterval(20 * time.Millisecond),
		}}.open,
	},
}

type gueConfig struct {
	workers int
	options []gue.WorkerPoolOption
}

// gueQueue holds a transaction, and so a connection, for each job at work.
type gueQueue struct {
	database
	cfg    gueConfig
	client *gue.Client
}

// gueSpare are connections beyond those of the workers.
const gueSpare = 4

func (cfg gueConfig) open(ctx context.Context, o Options) (Contender, error) {
	db, err := openDatabase(ctx, o, cfg.workers+gueSpare)
	if err != nil {
		return nil, err
	}
	client, err := gue.NewClient(pgxv5.NewConnPool(db.pool))
	return &gueQueue{database: db, cfg: cfg, client: client}, err
}

// gueSchema is migrations/schema.sql of the module, which does not embed it.
const gueSchema = `
CREATE TABLE IF NOT EXISTS gue_jobs
(
  job_id      TEXT        NOT NULL PRIMARY KEY,
  priority    SMALLINT    NOT NULL,
  run_at      TIMESTAMPTZ NOT NULL,
  job_type    TEXT        NOT NULL,
  args        BYTEA       NOT NULL,
  error_count INTEGER     NOT NULL DEFAULT 0,
  last_error  TEXT,
  queue       TEXT        NOT NULL,
  created_at  TIMESTAMPTZ NOT NULL,
  updated_at  TIMESTAMPTZ NOT NULL
)`

const gueIndex = `CREATE INDEX IF NOT EXISTS idx_gue_jobs_selector ON gue_jobs (queue, run_at, priority)`

// Setup makes the table and its index.
func (c *gueQueue) Setup(ctx context.Context) error { return c.setup(ctx, gueSchema, gueIndex) }

const gueType = "order_placed"

func gueJob(n int) *gue.Job { return &gue.Job{Type: gueType, Args: Payload(n)} }

// EnqueueTx is one EnqueueTx.
func (c *gueQueue) EnqueueTx(ctx context.Context, n int) error {
	return c.order(ctx, n, func(tx pgx.Tx) error { return c.client.EnqueueTx(ctx, gueJob(n), pgxv5.NewTx(tx)) })
}

// Bulk is one EnqueueBatch.
func (c *gueQueue) Bulk(ctx context.Context, from, to int) error {
	jobs := make([]*gue.Job, 0, to-from)
	for n := from; n < to; n++ {
		jobs = append(jobs, gueJob(n))
	}
	return c.client.EnqueueBatch(ctx, jobs)
}

// Drain runs a pool of workers for each queue.
func (c *gueQueue) Drain(ctx context.Context, w Work) error {
	handlers := gue.WorkMap{gueType: func(ctx context.Context, job *gue.Job) error {
		w.Handle(ctx, job.Args)
		return nil
	}}
	workers := c.cfg.workers
	if w.Concurrency > 0 {
		workers = w.Concurrency
	}
	var pools errgroup.Group
	for i := range max(w.Topics, 1) {
		options := append([]gue.WorkerPoolOption{gue.WithPoolGracefulShutdown(nil)}, c.cfg.options...)
		if i > 0 {
			options = append(options, gue.WithPoolQueue(fmt.Sprintf("queue-%d", i)))
		}
		pool, err := gue.NewWorkerPool(c.client, handlers, workers, options...)
		if err != nil {
			return err
		}
		pools.Go(func() error { return pool.Run(ctx) })
	}
	return pools.Wait()
}

// Background copies one job. gue deletes what it has done, so that nothing finished can be in the way.
func (c *gueQueue) Background(ctx context.Context, kind Background, rows int) error {
	job := gueJob(template)
	others := map[string]string{"job_id": "gen_random_uuid()::text"}
	switch kind {
	case FutureRows:
		job.RunAt = time.Now().Add(24 * time.Hour)
		others["run_at"] = "run_at + random() * interval '30 days'"
	case OtherRows:
		job.Queue = "other"
		others["run_at"] = "run_at - random() * interval '1 day'"
	}
	if err := c.client.Enqueue(ctx, job); err != nil {
		return err
	}
	return c.multiply(ctx, "gue_jobs", rows, others)
}

// Store is the one table; a job that is done is gone.
func (c *gueQueue) Store() Store {
	return Store{Table: "gue_jobs", Number: "(convert_from(args, 'UTF8')::json->>'n')::bigint", Finished: "false"}
}
