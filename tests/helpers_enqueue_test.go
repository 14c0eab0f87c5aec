package tests

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	_ "time/tzdata" // the time zones that other processes run in, on machines without them

	"github.com/gorm-outbox/outbox"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/libtnb/sqlite"
	"github.com/stretchr/testify/require"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

// How long a test waits for what must happen, and how often it looks.
const (
	patience = 20 * time.Second
	glance   = 10 * time.Millisecond
)

// engines are the databases that a test runs on which is about none in particular.
var engines = []struct {
	name string
	open func(t *testing.T, cfg gorm.Config) *gorm.DB
}{
	{"postgres", func(t *testing.T, cfg gorm.Config) *gorm.DB {
		return openGorm(t, postgres.Open(cluster.CreateDatabase(t)), cfg)
	}},
	{"sqlite", openSQLite},
}

// eachEngine runs the test on a fresh database of each engine, with an outbox in it.
func eachEngine(t *testing.T, cfg gorm.Config, test func(t *testing.T, db *gorm.DB)) {
	t.Helper()
	for _, engine := range engines {
		t.Run(engine.name, func(t *testing.T) {
			db := engine.open(t, cfg)
			require.NoError(t, db.Use(outbox.Plugin{}))
			test(t, db)
		})
	}
}

// openGorm opens a pool that ends with the test. GORM says nothing unless cfg brings a logger.
func openGorm(t *testing.T, dialector gorm.Dialector, cfg gorm.Config) *gorm.DB {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = logger.Discard
	}
	db, err := gorm.Open(dialector, &cfg)
	require.NoError(t, err)
	pool, err := db.DB()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pool.Close()) })
	return db
}

// newPostgres opens a fresh PostgreSQL database with an outbox in it.
func newPostgres(t *testing.T, cfg gorm.Config) *gorm.DB {
	t.Helper()
	db := openGorm(t, postgres.Open(cluster.CreateDatabase(t)), cfg)
	require.NoError(t, db.Use(outbox.Plugin{}))
	return db
}

func openSQLite(t *testing.T, cfg gorm.Config) *gorm.DB {
	t.Helper()
	return openGorm(t, sqlite.Open(sqliteDSN(filepath.Join(t.TempDir(), "app.db"))), cfg)
}

// sqliteDSN has writers wait for each other, and readers for nobody.
func sqliteDSN(file string) string {
	path := (&url.URL{Path: file}).EscapedPath() // a test's directory may have a '#'
	return "file:" + path + "?_txlock=immediate&_pragma=busy_timeout(20000)&_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)"
}

// sqlLog notes every statement of a pool.
type sqlLog struct {
	mu         sync.Mutex
	statements []pgx.TraceQueryStartData
}

// TraceQueryStart implements pgx.QueryTracer.
func (l *sqlLog) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.statements = append(l.statements, data)
	return ctx
}

// TraceQueryEnd implements pgx.QueryTracer.
func (*sqlLog) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// take gives what was noted since the last take.
func (l *sqlLog) take() []pgx.TraceQueryStartData {
	l.mu.Lock()
	defer l.mu.Unlock()
	taken := l.statements
	l.statements = nil
	return taken
}

// openTraced opens a pool whose statements are noted; change, if not nil, sets more of its configuration.
func openTraced(t *testing.T, dsn string, cfg gorm.Config, change func(*pgx.ConnConfig)) (*gorm.DB, *sqlLog) {
	t.Helper()
	config, err := pgx.ParseConfig(dsn)
	require.NoError(t, err)
	log := &sqlLog{}
	config.Tracer = log
	if change != nil {
		change(config)
	}
	return openGorm(t, postgres.New(postgres.Config{Conn: stdlib.OpenDB(*config)}), cfg), log
}

// purchase is a business fact that causes messages.
type purchase struct {
	ID   int64 `gorm:"primaryKey;autoIncrement:false"`
	Note string
}

// mail is a message with no more than it must have, told apart from others by its type.
func mail(kind string) outbox.Message { return outbox.Message{Topic: "email", Type: kind} }

// keyed is a mail with an idempotency key.
func keyed(kind, tenant, key string) outbox.Message {
	return outbox.Message{Topic: "email", Type: kind, TenantID: tenant, IdempotencyKey: key}
}

// enqueue writes messages in a transaction of their own.
func enqueue(t *testing.T, db *gorm.DB, ms ...outbox.Message) []outbox.Receipt {
	t.Helper()
	var receipts []outbox.Receipt
	require.NoError(t, db.Transaction(func(tx *gorm.DB) (err error) {
		receipts, err = outbox.EnqueueAll(tx, ms)
		return err
	}))
	return receipts
}

// records reads the whole table of the default outbox, in the order of ids.
func records(t *testing.T, db *gorm.DB) []outbox.Record {
	t.Helper()
	var found []outbox.Record
	require.NoError(t, db.Session(&gorm.Session{NewDB: true, Context: t.Context()}).Order("id").Find(&found).Error)
	return found
}

// typesOf tells records by their types.
func typesOf(rs []outbox.Record) []string {
	types := make([]string, len(rs))
	for i, r := range rs {
		types[i] = r.Type
	}
	return types
}

// count counts the rows of a table.
func count(t *testing.T, db *gorm.DB, table string) int64 {
	t.Helper()
	var n int64
	require.NoError(t, db.Session(&gorm.Session{NewDB: true, Context: t.Context()}).Table(table).Count(&n).Error)
	return n
}

// scalar runs a query that gives one value.
func scalar[T any](t *testing.T, db *gorm.DB, query string, args ...any) T {
	t.Helper()
	var v T
	require.NoError(t, db.Session(&gorm.Session{NewDB: true, Context: t.Context()}).Raw(query, args...).Row().Scan(&v))
	return v
}

// mustExec runs a statement that must work.
func mustExec(t *testing.T, db *gorm.DB, statement string, args ...any) {
	t.Helper()
	require.NoError(t, db.Session(&gorm.Session{NewDB: true, Context: t.Context()}).Exec(statement, args...).Error)
}

// mailbox is a transport that accepts everything and keeps it.
type mailbox struct {
	mu  sync.Mutex
	got []outbox.Delivery
}

// Send implements outbox.Transport.
func (b *mailbox) Send(_ context.Context, d outbox.Delivery) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.got = append(b.got, d)
	return "accepted", nil
}

// deliveries gives what has come, in the order of ids.
func (b *mailbox) deliveries() []outbox.Delivery {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.SortedFunc(slices.Values(b.got), func(a, b outbox.Delivery) int { return int(a.ID - b.ID) })
}

// types tells what has come by its types, in the order of ids.
func (b *mailbox) types() []string {
	types := []string{}
	for _, d := range b.deliveries() {
		types = append(types, d.Type)
	}
	return types
}

// andIdle serves the topic email and others that have nothing: several topics are looked for in another way than one.
func andIdle(transport outbox.Transport) map[string]outbox.Transport {
	return map[string]outbox.Transport{"email": transport, "idle": transport, "idler": transport}
}

// drain runs one round of the default outbox for the topic email.
func drain(t *testing.T, db *gorm.DB, transport outbox.Transport) outbox.Summary {
	t.Helper()
	p, err := outbox.NewProcessor(db, outbox.ProcessorConfig{Transports: map[string]outbox.Transport{"email": transport}})
	require.NoError(t, err)
	summary := p.ProcessOnce(t.Context())
	require.Zero(t, summary.Errors, "database errors, the last: %s", summary.LastError)
	return summary
}

// errUndo ends a transaction that is to be rolled back.
var errUndo = errors.New("undo")

// child is this test binary as another process, in the part of one of the workers. It is told things line by line, and
// answers line by line.
type child struct {
	in  io.WriteCloser
	out *bufio.Scanner
	err *strings.Builder
}

// startChild starts a worker with further environment variables; it is stopped with the test.
func startChild(t *testing.T, worker string, env ...string) *child {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(append(os.Environ(), "OUTBOX_TEST_WORKER="+worker), env...)
	c := &child{err: &strings.Builder{}}
	cmd.Stderr = c.err
	c.in, err = cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	c.out = bufio.NewScanner(out)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		defer cancel()
		_ = c.in.Close() // the worker ends when there is nothing more to read
		require.NoError(t, cmd.Wait(), c.err)
	})
	return c
}

// tell sends the child a line.
func (c *child) tell(t *testing.T, line string) {
	t.Helper()
	_, err := io.WriteString(c.in, line+"\n")
	require.NoError(t, err)
}

// hear waits for a line of the child's.
func (c *child) hear(t *testing.T) string {
	t.Helper()
	require.True(t, c.out.Scan(), "the worker said nothing and ended: %s", c.err)
	return c.out.Text()
}

// ask tells the child a line and waits for the answer.
func (c *child) ask(t *testing.T, line string) string {
	t.Helper()
	c.tell(t, line)
	return c.hear(t)
}

// listen is the child's side: it answers each line of the parent's until there are no more.
func listen(answer func(line string) string) error {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		if _, err := io.WriteString(os.Stdout, answer(lines.Text())+"\n"); err != nil {
			return err
		}
	}
	return lines.Err()
}

// oneLine makes an answer of an error.
func oneLine(err error) string {
	if err == nil {
		return "ok"
	}
	return strings.ReplaceAll("error: "+err.Error(), "\n", "; ")
}

// waitsForLock waits until a session of the database waits for a lock.
func waitsForLock(t *testing.T, db *gorm.DB) {
	t.Helper()
	require.Eventually(t, func() bool {
		var waiting int
		err := db.Raw(`SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock'`).Row().Scan(&waiting)
		return err == nil && waiting > 0
	}, patience, glance, "nobody waits for a lock")
}

// begin opens a transaction that is rolled back with the test, should it still be open.
func begin(t *testing.T, db *gorm.DB, options ...*sql.TxOptions) *gorm.DB {
	t.Helper()
	tx := db.Begin(options...)
	require.NoError(t, tx.Error)
	t.Cleanup(func() { tx.Rollback() })
	return tx
}
