package outboxtest

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
)

var configChecks = []check{
	{"of a processor is refused if bad", checkBadConfig},
	{"of a processor is refused with all that is wrong", checkAllBadConfig},
	{"of a processor has limits", checkConfigLimits},
	{"of the plugin is refused if bad", checkBadPlugin},
	{"needs the pool", checkProcessorHandle},
}

func checkBadConfig(t *testing.T, db *gorm.DB) {
	install(t, db)
	for name, spoil := range map[string]func(*outbox.ProcessorConfig){
		"no transports":        func(c *outbox.ProcessorConfig) { c.Transports = nil },
		"nil transport":        func(c *outbox.ProcessorConfig) { c.Transports[topic] = nil },
		"empty topic":          func(c *outbox.ProcessorConfig) { c.Transports[""] = NewRecorder() },
		"long topic":           func(c *outbox.ProcessorConfig) { c.Transports[strings.Repeat("x", 201)] = NewRecorder() },
		"topic of bytes":       func(c *outbox.ProcessorConfig) { c.Transports["a\x00"] = NewRecorder() },
		"BatchSize negative":   func(c *outbox.ProcessorConfig) { c.BatchSize = -1 },
		"BatchSize 1001":       func(c *outbox.ProcessorConfig) { c.BatchSize = 1001 },
		"Concurrency negative": func(c *outbox.ProcessorConfig) { c.Concurrency = -1 },
		"Concurrency 10001":    func(c *outbox.ProcessorConfig) { c.Concurrency = 10001 },
		"Lease below 5 s":      func(c *outbox.ProcessorConfig) { c.Lease = 5*time.Second - 1 },
		"Lease negative":       func(c *outbox.ProcessorConfig) { c.Lease = math.MinInt64 },
		"Lease above a day":    func(c *outbox.ProcessorConfig) { c.Lease = 24*time.Hour + 1 },
		"Timeout below 1 s":    func(c *outbox.ProcessorConfig) { c.Timeout = time.Second - 1 },
		"Timeout above half":   func(c *outbox.ProcessorConfig) { c.Lease, c.Timeout = 10*time.Second, 5*time.Second+1 },
		"PollInterval":         func(c *outbox.ProcessorConfig) { c.PollInterval = -1 },
		"Owner of bytes":       func(c *outbox.ProcessorConfig) { c.Owner = "a\x00" },
		"long Owner":           func(c *outbox.ProcessorConfig) { c.Owner = strings.Repeat("x", 201) },
		"Backoff":              func(c *outbox.ProcessorConfig) { c.Backoff = policy.Backoff{Factor: math.NaN()} },
	} {
		cfg := outbox.ProcessorConfig{Transports: map[string]outbox.Transport{topic: NewRecorder()}}
		spoil(&cfg)
		p, err := outbox.NewProcessor(db, cfg)
		require.ErrorIs(t, err, outbox.ErrInvalid, name)
		require.Nil(t, p, name)
	}
}

func checkAllBadConfig(t *testing.T, db *gorm.DB) {
	install(t, db)
	_, err := outbox.NewProcessor(db, outbox.ProcessorConfig{
		Transports: map[string]outbox.Transport{"a": nil, "": NewRecorder()},
		BatchSize:  -1, Concurrency: -1, Lease: time.Second, Timeout: time.Millisecond, PollInterval: -1, Owner: "\xff",
		Backoff: policy.Backoff{Base: -1, Max: time.Second, Factor: 0.5, Jitter: 2},
	})
	require.ErrorIs(t, err, outbox.ErrInvalid)
	for _, wrong := range []string{
		`topic "a"`, `topic ""`, "BatchSize", "Concurrency", "Lease", "Timeout", "PollInterval", "Owner", "Backoff",
		"backoff base", "backoff factor", "backoff jitter",
	} {
		require.Contains(t, err.Error(), wrong)
	}
	require.NotContains(t, err.Error(), "\n")
	_, err = outbox.NewProcessor(db, outbox.ProcessorConfig{BatchSize: -1})
	require.ErrorContains(t, err, "Transports")
	require.ErrorContains(t, err, "BatchSize")
}

func checkConfigLimits(t *testing.T, db *gorm.DB) {
	install(t, db)
	for _, cfg := range []outbox.ProcessorConfig{
		{},
		{BatchSize: 1, Concurrency: 1, Lease: 5 * time.Second, Timeout: time.Second, PollInterval: time.Millisecond},
		{BatchSize: 1000, Concurrency: 10000, Lease: 24 * time.Hour, Timeout: 12 * time.Hour, PollInterval: time.Hour},
		{Lease: 5 * time.Second},
		{Owner: strings.Repeat("ñ", 200), Backoff: policy.Backoff{Base: 1, Max: 1, Factor: 1, Jitter: 1}},
	} {
		cfg.Transports = map[string]outbox.Transport{topic: NewRecorder()}
		enqueue(t, db, mail("one"))
		require.Equal(t, 1, once(t, db, cfg).Sent)
	}
}

func checkBadPlugin(t *testing.T, db *gorm.DB) {
	for name, p := range map[string]outbox.Plugin{
		"Table with a quote":   {Table: `out"box`},
		"Table with a blank":   {Table: "out box"},
		"Table of two dots":    {Table: "a.b.c"},
		"Table with a digit":   {Table: "1outbox"},
		"long Table":           {Table: strings.Repeat("x", 51)},
		"tenant's other name":  {Tenant: outbox.TenantColumn{Name: "payload"}},
		"tenant's shouted":     {Tenant: outbox.TenantColumn{Name: "Payload"}},
		"tenant with a quote":  {Tenant: outbox.TenantColumn{Name: `a"b`}},
		"tenant's type":        {Tenant: outbox.TenantColumn{Type: "integer"}},
		"MaxAttempts negative": {MaxAttempts: -1},
		"MaxAttempts 1001":     {MaxAttempts: 1001},
		"MaxPayload negative":  {MaxPayload: -1},
		"MaxPayload too large": {MaxPayload: 1 << 40},
	} {
		require.ErrorIs(t, db.Use(p), outbox.ErrInvalid, name)
	}
	err := db.Use(outbox.Plugin{Table: "out box", Tenant: outbox.TenantColumn{Type: "integer"}, MaxAttempts: -1, MaxPayload: -1})
	for _, wrong := range []string{"Table", "Tenant.Type", "MaxAttempts", "MaxPayload"} {
		require.ErrorContains(t, err, wrong)
	}
	install(t, db) // a refused plugin is not registered
}

func checkProcessorHandle(t *testing.T, db *gorm.DB) {
	install(t, db)
	require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
		_, err := outbox.NewProcessor(tx, configure(NewRecorder()))
		require.ErrorIs(t, err, outbox.ErrInvalid, "a transaction")
		return nil
	}))
	failed := db.Session(&gorm.Session{})
	_ = failed.AddError(errContract)
	_, err := outbox.NewProcessor(failed, configure(NewRecorder()))
	require.ErrorIs(t, err, outbox.ErrInvalid)
	require.ErrorIs(t, err, errContract)
}
