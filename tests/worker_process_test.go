package tests

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/stretchr/testify/require"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

const (
	workerName      = "processor"
	workerConfigEnv = "OUTBOX_TEST_WORKER_CONFIG"
)

func init() { workers[workerName] = runWorker }

// workerConfig is what a worker in a process of its own does.
type workerConfig struct {
	DSN, Journal, Owner    string
	Topics                 []string
	BatchSize, Concurrency int
	Lease, Timeout, Poll   time.Duration
	Once                   bool          // one round, whose Summary is printed; else Run until standard input ends
	Hang                   bool          // the handler never comes back
	Work                   time.Duration // how long the handler takes; zero: 1 to 5 ms
}

// runWorker is the worker process.
func runWorker() error {
	var cfg workerConfig
	if err := json.Unmarshal([]byte(os.Getenv(workerConfigEnv)), &cfg); err != nil {
		return err
	}
	db, err := gorm.Open(postgres.Open(cfg.DSN), &gorm.Config{Logger: logger.Discard})
	if err != nil {
		return err
	}
	if err := db.Use(outbox.Plugin{SkipMigrate: true}); err != nil {
		return err
	}
	j, err := openJournal(cfg.Journal)
	if err != nil {
		return err
	}
	transports := map[string]outbox.Transport{}
	for _, topic := range cfg.Topics {
		transports[topic] = j.transport(cfg.Owner, cfg.deliver)
	}
	p, err := outbox.NewProcessor(db, outbox.ProcessorConfig{
		Transports: transports, BatchSize: cfg.BatchSize, Concurrency: cfg.Concurrency, Owner: cfg.Owner,
		Lease: cfg.Lease, Timeout: cfg.Timeout, PollInterval: cfg.Poll,
	})
	if err != nil {
		return err
	}
	if cfg.Once {
		return json.NewEncoder(os.Stdout).Encode(p.ProcessOnce(context.Background()))
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // ends with the parent at the latest
		cancel()
	}()
	return p.Run(ctx)
}

func (c workerConfig) deliver(context.Context, outbox.Delivery) (string, error) {
	if c.Hang {
		select {}
	}
	if c.Work > 0 {
		pass(c.Work)
	} else {
		pass(time.Millisecond + rand.N(4*time.Millisecond))
	}
	return c.Owner, nil
}

// workerProcess is a worker process under the test's control.
type workerProcess struct {
	r      *rig
	cmd    *exec.Cmd
	stdin  io.Closer
	stdout bytes.Buffer
	ended  chan error
}

func (r *rig) startWorker(cfg workerConfig) *workerProcess {
	r.Helper()
	cfg.DSN = r.dsn
	if cfg.Topics == nil {
		cfg.Topics = []string{orders}
	}
	text, err := json.Marshal(cfg)
	require.NoError(r, err)
	exe, err := os.Executable()
	require.NoError(r, err)
	c := &workerProcess{r: r, cmd: exec.Command(exe), ended: make(chan error, 1)}
	c.cmd.Env = append(os.Environ(), "OUTBOX_TEST_WORKER="+workerName, workerConfigEnv+"="+string(text))
	c.cmd.Stdout, c.cmd.Stderr = &c.stdout, os.Stderr
	c.stdin, err = c.cmd.StdinPipe()
	require.NoError(r, err)
	require.NoError(r, c.cmd.Start())
	go func() { c.ended <- c.cmd.Wait() }()
	r.Cleanup(func() { _ = c.cmd.Process.Kill() }) // fails when it has ended as it should
	return c
}

// kill ends the process as kill -9 does, in the middle of whatever it is about.
func (c *workerProcess) kill() {
	c.r.Helper()
	require.NoError(c.r, c.cmd.Process.Kill())
	require.Error(c.r, wait(c.r, "the end of a killed worker process", c.ended))
}

// stop ends Run in the process and waits for its exit, which fails if the race detector found something.
func (c *workerProcess) stop() {
	c.r.Helper()
	_ = c.stdin.Close()
	require.NoError(c.r, wait(c.r, "the end of a worker process", c.ended))
}

// summary waits for the process's round.
func (c *workerProcess) summary() (s outbox.Summary) {
	c.r.Helper()
	require.NoError(c.r, wait(c.r, "the end of a worker process", c.ended))
	require.NoError(c.r, json.Unmarshal(c.stdout.Bytes(), &s))
	return s
}

// journal is a file to which transports of any number of processes add a line when a delivery begins and one when it
// ends. Appended lines have one order: deliveries of one message that overlap in time do so in the file, and the other
// way round.
type journal struct{ file *os.File }

func newJournal(t testing.TB) *journal {
	t.Helper()
	j, err := openJournal(filepath.Join(t.TempDir(), "journal"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = j.file.Close() })
	return j
}

func openJournal(path string) (*journal, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	return &journal{file}, err
}

func (j *journal) path() string { return j.file.Name() }

// transport notes the deliveries of inner.
func (j *journal) transport(who string, inner outbox.TransportFunc) outbox.Transport {
	return outbox.TransportFunc(func(ctx context.Context, d outbox.Delivery) (string, error) {
		if _, err := fmt.Fprintf(j.file, "begin %d %s\n", d.ID, who); err != nil {
			return "", err
		}
		id, err := inner(ctx, d)
		_, noteErr := fmt.Fprintf(j.file, "end %d %s\n", d.ID, who)
		if err == nil {
			err = noteErr
		}
		return id, err
	})
}

// event is one line of a journal.
type event struct {
	begin bool
	id    int64
	who   string
}

func (j *journal) events(t testing.TB) []event {
	t.Helper()
	text, err := os.ReadFile(j.path())
	require.NoError(t, err)
	var events []event
	for line := range strings.Lines(string(text)) {
		var e event
		var word string
		_, err := fmt.Sscanf(line, "%s %d %s", &word, &e.id, &e.who)
		require.NoError(t, err, line)
		e.begin = word == "begin"
		events = append(events, e)
	}
	return events
}

// begun counts the deliveries that began, by message.
func (j *journal) begun(t testing.TB) map[int64]int {
	t.Helper()
	begun := map[int64]int{}
	for _, e := range j.events(t) {
		if e.begin {
			begun[e.id]++
		}
	}
	return begun
}

// requireOnceEach holds that each message was delivered exactly once.
func (j *journal) requireOnceEach(t testing.TB, receipts []outbox.Receipt) {
	t.Helper()
	begun := j.begun(t)
	for _, receipt := range receipts {
		require.Equal(t, 1, begun[receipt.ID], "deliveries of message %d", receipt.ID)
	}
	require.Len(t, begun, len(receipts))
}

// requireNeverTwoAtATime holds that no message was inside two deliveries at once.
func (j *journal) requireNeverTwoAtATime(t testing.TB) {
	t.Helper()
	inside := map[int64]string{}
	for _, e := range j.events(t) {
		if !e.begin {
			delete(inside, e.id)
			continue
		}
		require.Empty(t, inside[e.id], "message %d went to %s while it was inside", e.id, e.who)
		inside[e.id] = e.who
	}
}
