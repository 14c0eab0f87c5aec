package tests

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/tests/internal/chaos"
	"github.com/gorm-outbox/outbox/tests/internal/pgtest"
	"github.com/gorm-outbox/outbox/tests/internal/proxy"
	"github.com/stretchr/testify/require"
)

// chaosRun is a run under way.
type chaosRun struct {
	*rig
	own   *pgtest.Cluster // the outbox's, which is crashed
	sink  *sink           // on the shared one, which is not
	slots []*chaosSlot
	door  *proxy.Proxy // of the producers
	began time.Time

	mu       sync.Mutex
	history  chaos.History
	injected map[chaos.Kind]int
	problems []error
	outages  []chaosOutage
}

// chaosOutage is a time in which a slot's way to the database was disturbed; all slots', for chaos.Everybody.
type chaosOutage struct {
	worker   int
	from, to time.Time
}

// chaosSlot is the place of one worker: the processes that had it one after another, and their proxy.
type chaosSlot struct {
	run    *chaosRun
	number int
	proxy  *proxy.Proxy
	sink   string

	mu    sync.Mutex // held while a fault has the process in its hands
	lives []*chaosLife
}

// chaosLife is one worker process.
type chaosLife struct {
	chaos.Life
	cmd    *exec.Cmd
	stdin  io.Closer
	stdout bytes.Buffer
	over   chan struct{} // closed when it has ended, with err
	err    error
}

// chaosWorkers are the kinds of workers that share the table. Their clocks are wrong only where CHAOS_CLOCKS is set, for
// which the test has to be built as scripts/soak.sh does.
var chaosWorkers = []chaosWorkerConfig{
	{Batch: 20, At: 8, Zone: "America/New_York", Clock: 10 * time.Minute},
	{Batch: 100, At: 4, Zone: "UTC", Simple: true},
	{Batch: 50, At: 4, Zone: "Asia/Tokyo", Rounds: true, Clock: -10 * time.Minute},
	{Batch: 10, At: 10, Zone: "Pacific/Kiritimati", Rounds: true, Simple: true},
}

// chaosZones are what the workers' own clocks show.
var chaosZones = []string{"America/Argentina/Buenos_Aires", "Asia/Tokyo", "UTC", "Pacific/Kiritimati"}

// chaosSchema has the app's facts, and notes every update of the outbox and whose session made it.
const chaosSchema = `
CREATE TABLE facts (id text PRIMARY KEY, key text NOT NULL);
CREATE TABLE writes (n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, writer text, was outbox, became outbox);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
	INSERT INTO writes (writer, was, became) VALUES (current_setting('application_name'), OLD, NEW);
	RETURN NULL;
END $$;
CREATE TRIGGER note AFTER UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION note();`

func newChaos(t *testing.T) *chaosRun {
	own, err := pgtest.Start(pgtest.Options{})
	require.NoError(t, err)
	t.Cleanup(own.Stop)
	c := &chaosRun{rig: newRigOn(t, own, outbox.Plugin{}), own: own, injected: map[chaos.Kind]int{}}
	c.exec(chaosSchema)
	sinkDSN := cluster.CreateDatabase(t)
	c.sink, err = openSink(sinkDSN)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.sink.Close()) })
	_, err = c.sink.Exec(sinkSchema)
	require.NoError(t, err)
	c.door = c.newProxy()
	for n := range chaosWorkers {
		c.slots = append(c.slots, &chaosSlot{run: c, number: n, proxy: c.newProxy(), sink: sinkDSN})
	}
	return c
}

func (c *chaosRun) newProxy() *proxy.Proxy {
	p, err := proxy.New(c.addr())
	require.NoError(c, err)
	c.Cleanup(p.Close)
	return p
}

// start puts a new process into the slot.
func (s *chaosSlot) start() {
	cfg := chaosWorkers[s.number]
	cfg.Name = fmt.Sprintf("w%d.%d", s.number, len(s.lives))
	cfg.DSN, cfg.Addr, cfg.Sink, cfg.Log = s.run.dsn, s.proxy.Addr(), s.sink, os.Getenv("CHAOS_LOG") != ""
	if os.Getenv("CHAOS_CLOCKS") != "1" {
		cfg.Clock = 0
	}
	text, _ := json.Marshal(cfg) // strings and numbers
	life := &chaosLife{Life: chaos.Life{Worker: cfg.Name}, over: make(chan struct{}), cmd: exec.Command(os.Args[0])}
	life.cmd.Env = append(os.Environ(), "OUTBOX_TEST_WORKER="+chaosWorkerName, workerConfigEnv+"="+string(text), "TZ="+chaosZones[s.number],
		"OUTBOX_TEST_CLOCK="+cfg.Clock.String())
	life.cmd.Stdout, life.cmd.Stderr = &life.stdout, os.Stderr
	var err error
	if life.stdin, err = life.cmd.StdinPipe(); err == nil {
		err = life.cmd.Start()
	}
	if err != nil {
		s.run.problem(err)
		close(life.over)
	} else {
		go func() {
			defer close(life.over)
			life.err = life.cmd.Wait()
		}()
	}
	s.lives = append(s.lives, life)
}

// end asks the worker of the slot to end, and takes its report. One that found a data race fails at its end.
func (s *chaosSlot) end() {
	life := s.lives[len(s.lives)-1]
	_ = life.stdin.Close()
	select {
	case <-life.over:
	case <-time.After(workerPatience):
		s.run.problem(fmt.Errorf("%s does not end", life.Worker))
		return
	}
	life.Dead = time.Now()
	report, err := readReport(&life.stdout)
	life.Report = report
	if err != nil || report == nil || life.err != nil {
		s.run.problem(fmt.Errorf("%s ended badly: %v, %v", life.Worker, life.err, err))
	}
}

func (c *chaosRun) note(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

func (c *chaosRun) problem(err error) { c.note(func() { c.problems = append(c.problems, err) }) }

// outage notes that a slot's way to the database was disturbed until now.
func (c *chaosRun) outage(worker int, from time.Time) {
	c.note(func() { c.outages = append(c.outages, chaosOutage{worker, from, time.Now()}) })
}

// until waits for a time of the run's.
func (c *chaosRun) until(ctx context.Context, at time.Duration) {
	select {
	case <-time.After(time.Until(c.began.Add(at))):
	case <-ctx.Done():
	}
}

// collect brings together what is known of the run.
func (c *chaosRun) collect() *chaos.History {
	h := &c.history
	h.Timeout = chaosTimeout
	for _, s := range c.slots {
		for _, life := range s.lives {
			h.Lives = append(h.Lives, life.Life)
			for _, o := range c.outages {
				if o.worker == s.number || o.worker == chaos.Everybody {
					h.Outages = append(h.Outages, chaos.Span{Worker: life.Worker, From: o.from, To: o.to})
				}
			}
		}
	}
	h.Deliveries, h.Stalls = c.sink.deliveries(c.rig), c.sink.stalls(c.rig)
	db := c.open() // its connections are whole
	require.NoError(c, db.Raw(`SELECT id, key FROM facts`).Scan(&h.Facts).Error)
	require.NoError(c, db.Raw(`SELECT *, payload->>'Fact' AS fact, idempotency_key AS key FROM outbox`).Scan(&h.Records).Error)
	require.NoError(c, db.Raw(`SELECT (became).id AS record, writer, (became).updated_at AS at,
		(was).status AS was_status, (became).status AS status, (was).attempts AS was_attempts, (became).attempts AS attempts,
		(was).lease_token AS was_token, (became).lease_token AS token, (was).lease_owner AS was_owner, (became).lease_owner AS owner,
		(was).leased_until AS was_until, (became).leased_until AS until, (became).last_error_category AS category,
		(became).last_error_code AS code, (became).external_id AS external FROM writes ORDER BY n`).Scan(&h.Writes).Error)
	return h
}

// faults says what was done, for the report.
func (c *chaosRun) faults() (total int, text string) {
	for _, kind := range slices.Sorted(maps.Keys(c.injected)) {
		total += c.injected[kind]
		text += fmt.Sprintf(" %s %d;", kind, c.injected[kind])
	}
	return total, text
}
