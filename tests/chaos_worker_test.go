package tests

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/gorm-outbox/outbox/tests/internal/chaos"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

const (
	chaosWorkerName = "chaos"
	chaosTimeout    = 1500 * time.Millisecond
)

func init() { workers[chaosWorkerName] = chaosWorker }

// chaosWorkerConfig is what a worker process of a chaos run is told.
type chaosWorkerConfig struct {
	Name           string        // of this process: its leases' owner and its sessions' application
	DSN, Addr      string        // the outbox's database, and the proxy to reach it by
	Sink           string        // where deliveries are noted
	Rounds, Simple bool          // ProcessOnce instead of Run; the simple protocol
	Batch, At      int           // how many it claims, and delivers at a time
	Zone           string        // of its sessions; its own is in its environment
	Clock          time.Duration // how wrong its clock is to be
	Log            bool          // to standard error
}

// chaosWorker is the worker process: two processors, since one with a topic that is delivered at most once claims
// nothing ahead.
func chaosWorker() error {
	var cfg chaosWorkerConfig
	if err := json.Unmarshal([]byte(os.Getenv(workerConfigEnv)), &cfg); err != nil {
		return err
	}
	sink, err := openSink(cfg.Sink)
	if err != nil {
		return err
	}
	if off, err := sink.clockOff(); err != nil {
		return err
	} else if (off - cfg.Clock).Abs() > time.Minute {
		return fmt.Errorf("the clock is off by %v and not by %v: build the test as scripts/soak.sh does", off, cfg.Clock)
	}
	w := &chaosWork{cfg: cfg, sink: sink, report: chaos.Report{Attempts: map[outbox.Status]int{}}}
	db, err := cfg.open()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // ends with the parent at the latest
		cancel()
	}()
	go w.watch(ctx)
	var work sync.WaitGroup
	for _, topic := range []string{chaos.Orders, chaos.Once} {
		p, err := outbox.NewProcessor(db, w.processorConfig(topic))
		if err != nil {
			return err
		}
		work.Go(func() { w.run(ctx, p) })
	}
	work.Wait()
	return json.NewEncoder(os.Stdout).Encode(w.report)
}

// open connects to the outbox through the worker's proxy; the database may be down at the time.
func (cfg chaosWorkerConfig) open() (*gorm.DB, error) {
	config, err := pgx.ParseConfig(cfg.DSN)
	if err != nil {
		return nil, err
	}
	through(cfg.Addr)(config)
	setting("application_name", cfg.Name)(config)
	setting("timezone", cfg.Zone)(config)
	if cfg.Simple {
		execMode(pgx.QueryExecModeSimpleProtocol)(config)
	}
	pool := stdlib.OpenDB(*config)
	pool.SetMaxOpenConns(8)
	db, err := gorm.Open(postgres.New(postgres.Config{Conn: pool}), &gorm.Config{Logger: logger.Discard, DisableAutomaticPing: true})
	if err != nil {
		return nil, err
	}
	return db, db.Use(outbox.Plugin{SkipMigrate: true})
}

// chaosWork is a worker process at work.
type chaosWork struct {
	cfg   chaosWorkerConfig
	sink  *sink
	calls atomic.Int64

	mu     sync.Mutex
	report chaos.Report
}

func (w *chaosWork) processorConfig(topic string) outbox.ProcessorConfig {
	cfg := outbox.ProcessorConfig{
		Transports: map[string]outbox.Transport{topic: w}, AtMostOnce: map[string]bool{},
		BatchSize: w.cfg.Batch, Concurrency: w.cfg.At, Lease: shortLease, Timeout: chaosTimeout, Owner: w.cfg.Name,
		Backoff:      policy.Backoff{Base: 100 * time.Millisecond, Max: time.Second},
		PollInterval: 50 * time.Millisecond,
		OnAttempt:    w.attempted,
	}
	if topic == chaos.Once {
		cfg.AtMostOnce[topic] = true
	}
	if w.cfg.Log {
		cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil)).With("worker", w.cfg.Name)
	}
	return cfg
}

// run works until ctx ends.
func (w *chaosWork) run(ctx context.Context, p *outbox.Processor) {
	if !w.cfg.Rounds {
		_ = p.Run(ctx)
		return
	}
	for ctx.Err() == nil {
		s := p.ProcessOnce(ctx)
		w.count(func(r *chaos.Report) { r.Add(s) })
		if s.Claimed == 0 {
			pass(20 * time.Millisecond)
		}
	}
}

func (w *chaosWork) count(f func(*chaos.Report)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f(&w.report)
}

func (w *chaosWork) attempted(_ context.Context, a outbox.Attempt) {
	w.count(func(r *chaos.Report) {
		r.Attempts[a.Status]++
		if a.Code == "still_running" {
			r.NotStarted++
		}
	})
}

// Send is the transport: it does what the message says, and notes when that began and ended.
func (w *chaosWork) Send(ctx context.Context, d outbox.Delivery) (string, error) {
	content, err := outbox.Decode[chaos.Content](d)
	if err != nil {
		return "", err
	}
	id := fmt.Sprintf("%s-%d", w.cfg.Name, w.calls.Add(1))
	behaviour := content.Behaviour(d.Attempt)
	if err := w.sink.begin(ctx, id, w.cfg.Name, d, content.Fact, behaviour); err != nil {
		w.count(func(r *chaos.Report) { r.Unnoted++ })
		w.sink.end(id, chaos.Refused)
		return "", &policy.Failure{Category: policy.CategoryNetwork, Code: "sink", Err: err}
	}
	outcome, err := perform(ctx, behaviour)
	w.sink.end(id, outcome)
	if outcome == chaos.Panicked {
		panic("as planned")
	}
	return id, err
}

// perform is what the provider and the way there do.
func perform(ctx context.Context, b chaos.Behaviour) (chaos.Outcome, error) {
	work := time.Millisecond + rand.N(4*time.Millisecond)
	switch b {
	case chaos.Slow:
		work = 100*time.Millisecond + rand.N(400*time.Millisecond)
	case chaos.Refuser:
		return chaos.Refused, &policy.Failure{Category: policy.CategoryNetwork, Code: "refused"}
	case chaos.Never:
		return chaos.Rejected, &policy.Failure{Category: policy.CategoryRejected}
	case chaos.Panics:
		return chaos.Panicked, nil
	case chaos.Hangs, chaos.Loses:
		<-ctx.Done()
		return chaos.TimedOut, ctx.Err()
	case chaos.Deaf:
		pass(chaosTimeout + time.Second + rand.N(2*time.Second))
		return chaos.Accepted, nil
	}
	select {
	case <-time.After(work):
		return chaos.Accepted, nil
	case <-ctx.Done():
		return chaos.TimedOut, ctx.Err()
	}
}

// A worker that got no time to run for so long says so: its lease may have ended meanwhile.
const (
	stallTick  = 50 * time.Millisecond
	stallWorth = 400 * time.Millisecond
)

func (w *chaosWork) watch(ctx context.Context) {
	last := time.Now()
	for ctx.Err() == nil {
		pass(stallTick)
		now := time.Now()
		if lasted := now.Sub(last); lasted > stallWorth {
			w.sink.stall(w.cfg.Name, lasted)
			now = time.Now()
		}
		last = now
	}
}

// readReport takes what a worker process printed; nothing, if it could not.
func readReport(stdout *bytes.Buffer) (*chaos.Report, error) {
	report := &chaos.Report{}
	err := json.Unmarshal(stdout.Bytes(), report)
	if errors.Is(err, io.EOF) || stdout.Len() == 0 {
		return nil, nil
	}
	return report, err
}
