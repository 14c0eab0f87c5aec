package outbox

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"os"
	"reflect"
	"sort"
	"sync/atomic"
	"time"

	"github.com/gorm-outbox/outbox/policy"
	"gorm.io/gorm"
)

// Defaults and bounds of [ProcessorConfig].
const (
	DefaultBatchSize    = 100
	DefaultConcurrency  = 20
	DefaultLease        = 10 * time.Minute
	DefaultPollInterval = time.Second

	maxBatchSize   = 1000
	maxConcurrency = 10000
	minLease       = 5 * time.Second
	maxLease       = 24 * time.Hour
	minTimeout     = time.Second
	defaultTimeout = time.Minute
)

// leaseMargin is what must be left of a lease beyond the Timeout for an attempt to start: time for the transport to
// be cut off, and for the outcome to be written.
const leaseMargin = time.Second

// ProcessorConfig says what a [Processor] delivers and how. Only Transports is required.
type ProcessorConfig struct {
	// Transports maps each topic to what delivers it. Only these topics are claimed: a process never touches a message
	// that it does not know how to send.
	Transports map[string]Transport
	// AtMostOnce names topics whose messages are better lost than doubled, since the provider knows no idempotency keys
	// and the recipient would mind. There an attempt whose outcome is unknown is not repeated: one that timed out, or
	// whose worker died, or that failed with an error that is no policy.Failure. The record ends as failed, category
	// outcome_unknown, for a person to decide; known refusals are retried as ever. A processor with such a topic claims
	// nothing ahead of its free transports, so that its death leaves no more in doubt than it was sending. Every
	// processor of a topic must say the same of it.
	AtMostOnce map[string]bool
	// BatchSize is the most records claimed at once, for all topics together. 1 to 1000; zero: 100.
	BatchSize int
	// Concurrency is the most transports of this Processor working at once, in all of its rounds together. 1 to 10000;
	// zero: 20.
	Concurrency int
	// Lease is how long a claim is good for. A worker that dies holds its records back for this long. 5 s to 24 h;
	// zero: 10 min.
	Lease time.Duration
	// Timeout is how long one attempt may take before its context ends. At least 1 s and at most half the Lease; zero:
	// 60 s or half the Lease, whichever is less.
	Timeout time.Duration
	// Backoff spaces the attempts. Zero: 30 s, doubling up to 1 h, ± 20 %.
	Backoff policy.Backoff
	// PollInterval is how long Run waits when nothing is due. At least 1 ms; zero: 1 s. ProcessOnce has no use for it.
	PollInterval time.Duration
	// Settings, where given, is asked before each round for what an operator has set meanwhile, such as ReadSettings of
	// the environment or of a table; it is applied over this configuration. While it fails, or what it gives does not
	// fit, the last that did stays in force, and the log says so.
	Settings func(context.Context) (Settings, error)
	// Listener, where given, wakes Run when other processes enqueue; see [Plugin].WakeUp. Nil: polling, and what this
	// process enqueues itself.
	Listener Listener
	// Owner is shown to operators as the holder of a lease, and is never what proves it. At most 200 characters;
	// empty: host:pid.
	Owner string
	// Logger gets failures and outages: ids, topics, categories and codes, never a payload, a recipient or a
	// provider's text. Nil: silent.
	Logger *slog.Logger
	// OnAttempt, where given, is called after each attempt: for metrics. It holds a slot of Concurrency while it runs,
	// for the Timeout at most, and does not hold up the recording.
	OnAttempt func(context.Context, Attempt)
}

// Attempt is what [ProcessorConfig].OnAttempt learns.
type Attempt struct {
	Delivery   Delivery        // what the transport was given
	Status     Status          // what becomes of the record: sent, pending (it will be tried again), discarded or failed
	Category   policy.Category // empty when sent
	Code       string          // may be empty
	RetryIn    time.Duration   // when pending: how long until it is due again
	ExternalID string          // the provider's id, as the transport gave it
	Err        error           // as the transport gave it; it may hold private data
	Duration   time.Duration   // of the transport's work
}

// Processor delivers due messages. It is safe for concurrent use, and so are any number of processors, here and on
// other machines: they share the table.
type Processor struct {
	cfg      ProcessorConfig // with its defaults
	given    ProcessorConfig // as the app gave it
	store    *store
	db       *gorm.DB
	topics   []string
	warnings []string
	inside   inside        // records that are inside a transport of this process
	turn     atomic.Uint64 // rotates which topic claims first
	woken    chan struct{} // a message may have come
	slots    chan struct{} // one for each transport that may work
}

// NewProcessor validates cfg and gives a processor for db's outbox. It starts nothing. The errors are ErrNotInstalled
// and ErrInvalid, the latter with everything that is wrong.
func NewProcessor(db *gorm.DB, cfg ProcessorConfig) (*Processor, error) {
	s, err := theOutbox(db)
	if err != nil {
		return nil, err
	}
	return s.newProcessor(db, cfg)
}

// NewProcessor is the package's NewProcessor for the plugin's table.
func (p Plugin) NewProcessor(db *gorm.DB, cfg ProcessorConfig) (*Processor, error) {
	s, err := p.installed(db)
	if err != nil {
		return nil, err
	}
	return s.newProcessor(db, cfg)
}

func (s *store) newProcessor(db *gorm.DB, cfg ProcessorConfig) (*Processor, error) {
	given := cfg
	cfg = cfg.withDefaults()
	// What the app does to its maps later is no concern of the workers.
	cfg.Transports, cfg.AtMostOnce = maps.Clone(cfg.Transports), maps.Clone(cfg.AtMostOnce)
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if db.Error != nil {
		return nil, invalid("processor: the handle already carries an error: %w", db.Error)
	}
	if inTransaction(db.Statement.ConnPool) {
		return nil, invalid("processor: the handle is a transaction; a processor needs the database's own")
	}
	p := &Processor{cfg: cfg, given: given, store: s, db: db, woken: make(chan struct{}, 1), slots: make(chan struct{}, cfg.Concurrency)}
	for topic := range cfg.Transports {
		p.topics = append(p.topics, topic)
	}
	sort.Strings(p.topics)
	if worst := cfg.longestRound(); worst > cfg.Lease {
		p.warnings = append(p.warnings, fmt.Sprintf("lease of %v is too short for the queue: a batch of %d with %d at a time "+
			"and a timeout of %v may take %v, and what is not begun in time is released; raise Lease or Concurrency, "+
			"or lower BatchSize or Timeout", cfg.Lease, cfg.BatchSize, cfg.Concurrency, cfg.Timeout, worst))
	}
	return p, nil
}

// deliversOnce reports whether a topic is delivered at most once.
func (p *Processor) deliversOnce() bool {
	for _, once := range p.cfg.AtMostOnce {
		if once {
			return true
		}
	}
	return false
}

// longestRound is how long a batch may take if every attempt runs into its timeout.
func (c ProcessorConfig) longestRound() time.Duration {
	turns := (c.BatchSize + c.Concurrency - 1) / c.Concurrency
	return time.Duration(turns)*c.Timeout + leaseMargin
}

// ProcessOnce claims one batch of due messages, delivers them and records what came of it: a round, for an app's
// scheduler to call. Rounds may overlap. It never fails and never panics: whatever goes wrong is in the Summary. When
// ctx ends it starts nothing more, lets what has started finish within its Timeout, and releases the rest.
func (p *Processor) ProcessOnce(ctx context.Context) Summary {
	line := p.startLine(ctx, min(p.cfg.Concurrency, maxBatchSize))
	if ctx.Err() == nil {
		claims, _ := newClaimer(line).round(ctx, line.most())
		line.feed(claims)
	}
	line.finish()
	summary := line.tally.Summary
	summary.Warnings = append([]string(nil), p.warnings...)
	return summary
}

// Run delivers until ctx ends, for an app without a scheduler. It claims ahead of its transports, asks again at once
// while there is more, waits PollInterval when there is not, and rides out any outage of the database. When ctx ends
// it claims nothing more, lets what has started finish within its Timeout, releases the rest, records everything, and
// returns nil with no goroutine of its own left.
func (p *Processor) Run(ctx context.Context) error {
	for _, warning := range p.warnings {
		p.cfg.Logger.Warn("outbox: " + warning)
	}
	stopListening := p.wakeable(ctx)
	defer stopListening()
	line := p.startLine(ctx, p.cfg.Concurrency)
	defer line.finish()
	claimer := newClaimer(line)
	plenty := make(chan struct{}, 1)
	defer claimer.claimBeside(ctx, plenty)()
	failures, wait := 0, p.cfg.PollInterval
	for booked := line.waitForRoom(ctx); booked > 0; booked = line.waitForRoom(ctx) {
		line.terms.Store(p.agree(ctx, line.terms.Load()))
		more := claimer.bring(ctx, booked)
		switch {
		case claimer.failed:
			failures++
			pause(ctx, p.outageWait(failures))
			continue
		case more:
			tell(plenty)
		default:
			wait = p.rest(ctx, wait)
		}
		failures = 0
	}
	return nil
}

// tell leaves a signal, unless one is there already.
func tell(signal chan<- struct{}) {
	select {
	case signal <- struct{}{}:
	default:
	}
}

// wakeable lets Run be woken, by this process and through the Listener, until the function it gives is called.
func (p *Processor) wakeable(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	p.store.bell.awake.Store(p, struct{}{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		if p.cfg.Listener != nil {
			p.listen(ctx)
		}
	}()
	return func() {
		cancel()
		p.store.bell.awake.Delete(p)
		<-stopped
	}
}

// outageWait is the wait after claims failed in a row: short at first, since most outages are, and never longer than
// the app is used to waiting for a message.
func (p *Processor) outageWait(failures int) time.Duration {
	const firstWait = 50 * time.Millisecond
	return min(firstWait<<min(failures-1, 16), p.cfg.PollInterval)
}

// pause waits for d or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (c ProcessorConfig) withDefaults() ProcessorConfig {
	if c.BatchSize == 0 {
		c.BatchSize = DefaultBatchSize
	}
	if c.Concurrency == 0 {
		c.Concurrency = DefaultConcurrency
	}
	if c.Lease == 0 {
		c.Lease = DefaultLease
	}
	if c.Timeout == 0 {
		c.Timeout = min(defaultTimeout, c.Lease/2)
	}
	if c.PollInterval == 0 {
		c.PollInterval = DefaultPollInterval
	}
	if c.Owner == "" {
		host, _ := os.Hostname() // an empty host is as good a name
		c.Owner = policy.Clean(fmt.Sprintf("%s:%d", host, os.Getpid()), maxName)
	}
	if c.Logger == nil {
		c.Logger = slog.New(silent{})
	}
	c.Backoff = c.Backoff.WithDefaults()
	return c
}

// validate judges a configuration that has its defaults.
func (c ProcessorConfig) validate() error {
	var found problems
	if len(c.Transports) == 0 {
		found.addf("Transports is empty; it maps each topic to what delivers it")
	}
	for topic, transport := range c.Transports {
		if isNil(transport) {
			found.addf("the transport of topic %q is nil", topic)
		} else if checked, ok := transport.(interface{ check() error }); ok {
			found.add(checked.check())
		}
		if err := checkTexts(Message{Topic: topic}); err != nil {
			found.addf("topic %q: %w", topic, reason(err))
		}
	}
	for topic := range c.AtMostOnce {
		if _, served := c.Transports[topic]; !served {
			found.addf("AtMostOnce names topic %q, which has no transport", topic)
		}
	}
	between(&found, "BatchSize", c.BatchSize, 1, maxBatchSize)
	between(&found, "Concurrency", c.Concurrency, 1, maxConcurrency)
	between(&found, "Lease", c.Lease, minLease, maxLease)
	switch sound := c.Lease >= minLease; { // with an unsound lease its half is no bound, nor a default to judge
	case sound && (c.Timeout < minTimeout || c.Timeout > c.Lease/2):
		found.addf("Timeout is %v, must be at least %v and at most half the Lease, %v", c.Timeout, minTimeout, c.Lease/2)
	case !sound && c.Timeout < minTimeout && c.Timeout != c.Lease/2:
		found.addf("Timeout is %v, must be at least %v", c.Timeout, minTimeout)
	}
	between(&found, "PollInterval", c.PollInterval, time.Millisecond, maxLease)
	if err := checkTexts(Message{Topic: c.Owner}); err != nil {
		found.addf("Owner must be valid UTF-8 of at most %d characters", maxName)
	}
	if err := c.Backoff.Validate(); err != nil {
		found.addf("Backoff: %w", err)
	}
	return found.err("processor")
}

// isNil also sees a nil function or pointer inside the interface, which would only show as a panic of each attempt.
func isNil(t Transport) bool {
	v := reflect.ValueOf(t)
	return t == nil || (v.Kind() == reflect.Func || v.Kind() == reflect.Pointer) && v.IsNil()
}

func between[T int | time.Duration](found *problems, name string, value, least, most T) {
	if value < least || value > most {
		found.addf("%s is %v, must be %v to %v", name, value, least, most)
	}
}

// silent is the handler of a logger that is not there.
type silent struct{ slog.Handler }

func (silent) Enabled(context.Context, slog.Level) bool { return false }

// unknownDuration stands for transports that have not been timed yet.
const unknownDuration = time.Duration(math.MaxInt64)
