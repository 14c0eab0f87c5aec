package outbox

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/gorm-outbox/outbox/policy"
)

// Settings are the knobs that an operator turns without a new release. A zero field was not set and leaves what the
// code says.
type Settings struct {
	BatchSize   int           // OUTBOX_BATCH_SIZE, 1 to 500
	Lease       time.Duration // OUTBOX_LEASE_SECONDS, 10 to 3600: longer than the slowest delivery
	MaxAttempts int           // OUTBOX_MAX_ATTEMPTS, 1 to 50; for messages enqueued from then on
	Backoff     time.Duration // OUTBOX_BACKOFF_SECONDS, 1 to 3600: the wait after the first failure
	BackoffMax  time.Duration // OUTBOX_BACKOFF_MAX_SECONDS, 1 to 86,400, at least the backoff
	Retention   time.Duration // OUTBOX_RETENTION_DAYS, 1 to 3650: for the app's call of Purge
}

// ReadSettings reads the settings from any store of texts by name; os.LookupEnv reads the environment. Everything that
// is wrong comes back in one [ErrInvalid].
func ReadSettings(lookup func(key string) (string, bool)) (Settings, error) {
	var found problems
	number := func(key string, least, most int) int {
		text, ok := lookup(key)
		if !ok || text == "" {
			return 0
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < least || n > most {
			found.addf("%s must be a whole number from %d to %d", key, least, most)
			return 0
		}
		return n
	}
	s := Settings{
		BatchSize:   number("OUTBOX_BATCH_SIZE", 1, 500),
		Lease:       time.Duration(number("OUTBOX_LEASE_SECONDS", 10, 3600)) * time.Second,
		MaxAttempts: number("OUTBOX_MAX_ATTEMPTS", 1, 50),
		Backoff:     time.Duration(number("OUTBOX_BACKOFF_SECONDS", 1, 3600)) * time.Second,
		BackoffMax:  time.Duration(number("OUTBOX_BACKOFF_MAX_SECONDS", 1, 86400)) * time.Second,
		Retention:   time.Duration(number("OUTBOX_RETENTION_DAYS", 1, 3650)) * 24 * time.Hour,
	}
	if s.Backoff > 0 && s.BackoffMax > 0 && s.BackoffMax < s.Backoff {
		found.addf("OUTBOX_BACKOFF_MAX_SECONDS must be at least OUTBOX_BACKOFF_SECONDS")
	}
	return s, found.err("settings")
}

// Processor gives cfg with the settings applied. A Timeout or a Backoff.Max that cfg leaves zero follows them.
func (s Settings) Processor(cfg ProcessorConfig) ProcessorConfig {
	set(&cfg.BatchSize, s.BatchSize)
	set(&cfg.Lease, s.Lease)
	set(&cfg.Backoff.Base, s.Backoff)
	set(&cfg.Backoff.Max, s.BackoffMax)
	return cfg
}

// Plugin gives p with the settings applied.
func (s Settings) Plugin(p Plugin) Plugin {
	set(&p.MaxAttempts, s.MaxAttempts)
	return p
}

func set[T int | time.Duration](field *T, value T) {
	if value != 0 {
		*field = value
	}
}

// terms are what may change while a processor runs. A claim keeps those that it was made under.
type terms struct {
	from      Settings // the settings applied, zero for none
	BatchSize int
	Lease     time.Duration
	Timeout   time.Duration
	Backoff   policy.Backoff
}

func (c ProcessorConfig) terms() *terms {
	return &terms{BatchSize: c.BatchSize, Lease: c.Lease, Timeout: c.Timeout, Backoff: c.Backoff}
}

// agree gives the terms for the next claim: the last ones, unless the configured source has others that fit.
func (p *Processor) agree(ctx context.Context, last *terms) *terms {
	if p.cfg.Settings == nil {
		return last
	}
	settings, err := p.askSettings(ctx)
	if err == nil && settings == last.from {
		return last
	}
	next := settings.Processor(p.given).withDefaults()
	if err == nil {
		err = next.validate()
	}
	if err != nil {
		why := errorCode(err)
		if errors.Is(err, ErrInvalid) {
			why = err.Error() // ours, and about names and numbers
		}
		p.cfg.Logger.Warn("outbox: settings not applied, the last ones stay in force", "error", why)
		return last
	}
	terms := next.terms()
	terms.from = settings
	p.cfg.Logger.Info("outbox: settings applied", "batch_size", terms.BatchSize, "lease", terms.Lease, "timeout", terms.Timeout,
		"backoff", terms.Backoff.Base, "backoff_max", terms.Backoff.Max)
	return terms
}

// askSettings calls the app's source, whose panic is an error like any other.
func (p *Processor) askSettings(ctx context.Context) (s Settings, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("the source of the settings panicked with a %T", v)
		}
	}()
	return p.cfg.Settings(ctx)
}
