package pgtest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	startTimeout = time.Minute           // for initdb, and for a server to answer: generous, for a loaded CI machine
	stopTimeout  = 15 * time.Second      // PostgreSQL itself gives its children 5 s before it kills them
	pollInterval = 20 * time.Millisecond // between two looks at a starting server
	portAttempts = 5                     // how many ports to try when each is taken just before the server binds it
	superuser    = "postgres"
	maintenance  = "postgres" // the database that exists from the start
)

// Options choose what kind of cluster [Start] makes. The zero value is right for tests.
type Options struct {
	// Durable leaves fsync and full_page_writes on, as in production: benchmarks need that. They are off otherwise, which
	// is safe here, because Crash ends processes and not the machine: what reached the operating system is kept.
	Durable bool

	// Settings are further parameters of postgresql.conf, by name; they win over this package's own.
	Settings map[string]string
}

// Cluster is one running PostgreSQL server and its files. Its methods may be called from several goroutines.
type Cluster struct {
	bin     string   // directory of the server binaries
	dir     string   // everything of this cluster lives here
	account *account // who runs the server; nil means the current user
	port    int
	version int

	databases atomic.Int64 // how many CreateDatabase made; their names are numbered

	mu      sync.Mutex
	server  *process // nil while the server is down
	stopped bool
}

// Start makes a new cluster in a temporary directory and waits until its server answers. The caller ends it with Stop.
// When the test process is killed the server ends too, on Linux; its directory stays behind.
func Start(o Options) (*Cluster, error) {
	bin, err := BinDir()
	if err != nil {
		return nil, err
	}
	account, err := serverAccount()
	if err != nil {
		return nil, err
	}
	dir, err := account.makeTempDir()
	if err != nil {
		return nil, err
	}
	c := &Cluster{bin: bin, dir: dir, account: account}
	if err := c.create(o); err != nil {
		c.Stop()
		return nil, err
	}
	return c, nil
}

// DSN returns the URL of a database of this cluster, for its superuser. The database need not exist.
func (c *Cluster) DSN(dbname string) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.User(superuser),
		Host:     c.addr(),
		Path:     "/" + dbname,
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// Version returns the server's version as PostgreSQL counts it: 150018 is 15.18.
func (c *Cluster) Version() int { return c.version }

// Crash ends the server as if it had died: every connection breaks, no checkpoint is made, and the next start recovers
// from the log. It returns once all of its processes are gone, and does nothing when the server is down already.
func (c *Cluster) Crash() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end(syscall.SIGQUIT)
}

// Restart brings the server back on the same port with the same data, after a Crash or while it runs; a running server
// is shut down properly first. It returns once the server answers.
func (c *Cluster) Restart() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return errors.New("pgtest: restart: the cluster is stopped and its files are gone: start a new one")
	}
	c.end(syscall.SIGINT)
	return c.launch()
}

// Stop ends the server at once and removes its files. Further calls do nothing.
func (c *Cluster) Stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end(syscall.SIGQUIT)
	c.stopped = true
	_ = os.RemoveAll(c.dir) // what is left over lies in the system's temporary directory: no reason to fail a test
}

// create makes the data directory and starts the server for the first time.
func (c *Cluster) create(o Options) error {
	if err := c.initdb(); err != nil {
		return err
	}
	if err := c.configure(o); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var err error
	for range portAttempts {
		if c.port, err = freePort(); err != nil {
			return err
		}
		if err = c.launch(); !errors.Is(err, errPortTaken) {
			return err
		}
	}
	return err
}

// launch starts the server and waits until it answers. The caller holds c.mu, and the server is down.
func (c *Cluster) launch() error {
	server, err := c.startServer()
	if err != nil {
		return err
	}
	c.server = server
	if err := c.awaitAnswer(server); err != nil {
		c.end(syscall.SIGQUIT)
		return c.explain(server, err)
	}
	return nil
}

// end sends the server a signal and waits for its exit. The caller holds c.mu.
func (c *Cluster) end(signal syscall.Signal) {
	if c.server != nil {
		c.server.end(signal)
		c.server = nil
	}
}

// awaitAnswer polls the server until it answers a query, exits or has had its time.
func (c *Cluster) awaitAnswer(server *process) error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), startTimeout, fmt.Errorf("no answer within %s", startTimeout))
	defer cancel()
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	go func() {
		select {
		case <-server.done: // and whoever listens on its port now may never say a word
			giveUp(fmt.Errorf("it ended with %s", server.cmd.ProcessState))
		case <-ctx.Done():
		}
	}()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		err := c.greet(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w (last try: %w)", context.Cause(ctx), err)
		case <-tick.C:
		}
	}
}

// greet asks the server who it is. Another program's server may have taken the port just before ours: its answer must
// not count, hence the look at the data directory.
func (c *Cluster) greet(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, c.DSN(maintenance))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	var dir string
	var version int
	const who = `SELECT current_setting('data_directory'), current_setting('server_version_num')::int`
	if err := conn.QueryRow(ctx, who).Scan(&dir, &version); err != nil {
		return err
	}
	if dir != c.dataDir() {
		return fmt.Errorf("another server answers, with its data in %s", dir)
	}
	if c.version == 0 { // a restart changes nothing, and must not race with readers
		c.version = version
	}
	return nil
}

func (c *Cluster) addr() string    { return loopback + ":" + strconv.Itoa(c.port) }
func (c *Cluster) dataDir() string { return filepath.Join(c.dir, "data") }
func (c *Cluster) logFile() string { return filepath.Join(c.dir, "server.log") }
