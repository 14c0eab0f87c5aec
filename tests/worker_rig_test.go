package tests

import (
	"context"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/tests/internal/pgtest"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

// workerPatience is how long a test of the worker waits for what must happen; a passing test never waits that long.
const workerPatience = 45 * time.Second

// orders is the topic of a test that needs but one.
const orders = "orders"

// rig is a database with an outbox, and what the tests of the worker need around it.
type rig struct {
	testing.TB
	dsn    string
	plugin outbox.Plugin
	db     *gorm.DB // the app's pool, not the worker's; the test looks through it too
}

func newRig(t testing.TB) *rig { return newRigOn(t, cluster, outbox.Plugin{}) }

func newRigOn(t testing.TB, c *pgtest.Cluster, p outbox.Plugin) *rig {
	t.Helper()
	p.SkipMigrate = true // every pool of the rig is as another process's; one of them migrates
	r := &rig{TB: t, dsn: c.CreateDatabase(t), plugin: p}
	r.db = r.open()
	require.NoError(t, outbox.Migrate(r.db))
	return r
}

// option changes how a pool connects.
type option func(*pgx.ConnConfig)

// setting has every session of the pool start with a parameter of the server's.
func setting(name, value string) option {
	return func(c *pgx.ConnConfig) { c.RuntimeParams[name] = value }
}

// through has the pool connect to another address, a proxy's.
func through(addr string) option {
	return func(c *pgx.ConnConfig) {
		host, port, _ := net.SplitHostPort(addr)
		n, _ := strconv.Atoi(port)
		c.Host, c.Port = host, uint16(n)
	}
}

// execMode has the pool use one of the driver's protocols.
func execMode(mode pgx.QueryExecMode) option {
	return func(c *pgx.ConnConfig) { c.DefaultQueryExecMode = mode }
}

// open gives another pool on the database, as another process would have.
func (r *rig) open(options ...option) *gorm.DB {
	r.Helper()
	config, err := pgx.ParseConfig(r.dsn)
	require.NoError(r, err)
	for _, o := range options {
		o(config)
	}
	pool := stdlib.OpenDB(*config)
	r.Cleanup(func() { _ = pool.Close() }) // the server may be gone
	db, err := gorm.Open(postgres.New(postgres.Config{Conn: pool}), &gorm.Config{Logger: logger.Discard})
	require.NoError(r, err)
	require.NoError(r, db.Use(r.plugin))
	return db
}

// addr is where the database's server listens.
func (r *rig) addr() string {
	r.Helper()
	config, err := pgx.ParseConfig(r.dsn)
	require.NoError(r, err)
	return net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port)))
}

// enqueue commits n messages like m in one transaction.
func (r *rig) enqueue(n int, m outbox.Message) []outbox.Receipt {
	r.Helper()
	if m.Topic == "" {
		m.Topic = orders
	}
	messages := make([]outbox.Message, n)
	for i := range messages {
		messages[i] = m
	}
	var receipts []outbox.Receipt
	require.NoError(r, r.db.Transaction(func(tx *gorm.DB) (err error) {
		receipts, err = outbox.EnqueueAll(tx, messages)
		return err
	}))
	return receipts
}

// processor gives a worker on its own pool. Without transports it accepts every message of the topic orders.
func (r *rig) processor(db *gorm.DB, cfg outbox.ProcessorConfig) *outbox.Processor {
	r.Helper()
	if cfg.Transports == nil {
		cfg.Transports = only(accept)
	}
	p, err := outbox.NewProcessor(db, cfg)
	require.NoError(r, err)
	return p
}

func only(f outbox.TransportFunc) map[string]outbox.Transport {
	return map[string]outbox.Transport{orders: f}
}

func accept(context.Context, outbox.Delivery) (string, error) { return "accepted", nil }

// records are all there are, in the order of enqueue.
func (r *rig) records() []outbox.Record {
	r.Helper()
	var records []outbox.Record
	require.NoError(r, r.db.Table("outbox").Order("id").Find(&records).Error)
	return records
}

// record is the only one there is.
func (r *rig) record() outbox.Record {
	r.Helper()
	records := r.records()
	require.Len(r, records, 1)
	return records[0]
}

// count gives how many records fulfil a condition.
func (r *rig) count(where string, args ...any) int {
	r.Helper()
	var n int64
	require.NoError(r, r.db.Table("outbox").Where(where, args...).Count(&n).Error)
	return int(n)
}

func (r *rig) exec(statement string, args ...any) {
	r.Helper()
	require.NoError(r, r.db.Exec(statement, args...).Error)
}

// endLeases lets every lease run out now by the database's clock, while its holder still believes in it: what a worker
// that stalled for so long would meet.
func (r *rig) endLeases() {
	r.Helper()
	r.exec("UPDATE outbox SET leased_until = statement_timestamp() WHERE leased_until IS NOT NULL")
}

// makeDue lets every wait for a retry be over.
func (r *rig) makeDue() {
	r.Helper()
	r.exec("UPDATE outbox SET due_at = statement_timestamp() WHERE status = 'pending'")
}

// await waits until a condition holds. It asks on the test's own goroutine, so that the condition may use require.
func (r *rig) await(what string, holds func() bool) {
	r.Helper()
	deadline := time.NewTimer(workerPatience)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline.C:
			require.FailNow(r, "waited in vain: "+what)
		}
	}
}

// wait gives the next value of a channel.
func wait[T any](r *rig, what string, values <-chan T) T {
	r.Helper()
	deadline := time.NewTimer(workerPatience)
	defer deadline.Stop()
	select {
	case v := <-values:
		return v
	case <-deadline.C:
		require.FailNow(r, "waited in vain: "+what)
		panic("unreachable")
	}
}

// pass lets time go by that is itself the case: a handler's work, an outage, a wait in which nothing may happen.
func pass(d time.Duration) { <-time.After(d) }

// start runs a worker in the background; stop ends it, and so does the end of the test.
func (r *rig) start(p *outbox.Processor) (stop func()) {
	r.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(r, wait(r, "the end of Run", ended))
	})
	r.Cleanup(stop)
	return stop
}

// round runs one round in the background.
func (r *rig) round(ctx context.Context, p *outbox.Processor) <-chan outbox.Summary {
	summaries := make(chan outbox.Summary, 1)
	go func() { summaries <- p.ProcessOnce(ctx) }()
	return summaries
}

// counts is a Summary without its warnings about settings that a test chose to be tight.
func counts(s outbox.Summary) outbox.Summary {
	s.Warnings = nil
	return s
}

// gate is a transport that keeps each delivery inside, whatever its context says, until it is opened.
type gate struct {
	entered chan outbox.Delivery
	opened  chan struct{}
	open    func()
	over    <-chan struct{} // the test is, perhaps before the gate was opened
	answer  outbox.TransportFunc
}

func newGate(t testing.TB, answer outbox.TransportFunc) *gate {
	g := &gate{entered: make(chan outbox.Delivery, 10_000), opened: make(chan struct{}), over: t.Context().Done(), answer: answer}
	g.open = sync.OnceFunc(func() { close(g.opened) })
	return g
}

func (g *gate) Send(ctx context.Context, d outbox.Delivery) (string, error) {
	g.entered <- d
	select {
	case <-g.opened:
		return g.answer(ctx, d)
	case <-g.over:
		return "", context.Canceled
	}
}

// tape records the statements of a pool.
type tape struct {
	mu         sync.Mutex
	statements []pgx.TraceQueryStartData
}

func (t *tape) record(c *pgx.ConnConfig) { c.Tracer = t }

func (t *tape) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.statements = append(t.statements, data)
	return ctx
}

func (t *tape) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// all gives what was recorded since the last call.
func (t *tape) all() []pgx.TraceQueryStartData {
	t.mu.Lock()
	defer t.mu.Unlock()
	statements := t.statements
	t.statements = nil
	return statements
}
