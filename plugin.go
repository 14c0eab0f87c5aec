package outbox

import (
	"context"
	"regexp"
	"sort"
	"strings"

	"gorm.io/gorm"
)

// Defaults of [Plugin].
const (
	DefaultTable       = "outbox"
	DefaultMaxAttempts = 8
	DefaultMaxPayload  = 256 << 10
)

// Plugin installs an outbox in a GORM database:
//
//	db.Use(outbox.Plugin{})
//
// The zero value is ready to use. Installing creates or updates the outbox's tables; it starts nothing. A second
// outbox with its own table works beside the first: install it too, and use the Plugin's methods, which are the
// package's functions for that table. They go by Table alone; the options are those that it was installed with. The
// package's functions mean the outbox on the default table, or the only one there is.
type Plugin struct {
	// Table is where the messages are kept, optionally with a schema ("app.outbox"; the schema must exist). Letters,
	// digits and underscores, at most 50 characters. Empty: "outbox". The name is used as it stands, whatever the
	// app's NamingStrategy.
	Table string
	// Tenant names the column that says whose message it is. Zero: tenant_id, text.
	Tenant TenantColumn
	// MaxAttempts is how often a message is tried before it is failed, unless the message says otherwise. 1 to 1000;
	// zero: 8, which with the default backoff spans about one hour;
	// each more adds one.
	MaxAttempts int
	// MaxPayload is the most bytes a message's payload may have as JSON. Zero: 256 KiB. Larger data belongs in
	// storage of its own, with the message carrying its key.
	MaxPayload int
	// SkipMigrate leaves the schema to the app, which runs [MigrationSQL] or [Migrate] itself.
	SkipMigrate bool
	// WakeUp has Enqueue wake the processors: those in Run in this process, and on PostgreSQL, by a NOTIFY outside the
	// caller's transaction, those of other processes that have a [Listener]. A message is then delivered milliseconds
	// after its commit and not at the next poll.
	WakeUp bool
	// DeleteSent removes the record of a message when it has been sent, instead of keeping it: for a relay that needs no
	// history. An idempotency key then protects only until the message is sent.
	DeleteSent bool
	// Headers, where given, adds headers to every message enqueued: trace context, request id. It gets the context of
	// the handle; a header that the message sets itself wins.
	Headers func(ctx context.Context) map[string]string
}

// TenantColumn is the name and the type of the tenant column.
type TenantColumn struct {
	Name string // empty: "tenant_id"
	Type string // "text", "uuid" or "bigint"; empty: "text". Only text may be left empty by a message.
}

// Name is what GORM registers the plugin under: one name for each table.
func (p Plugin) Name() string {
	if p.Table == "" || p.Table == DefaultTable {
		return "outbox"
	}
	return "outbox:" + p.Table
}

// Initialize is called by db.Use. It validates the options and, unless SkipMigrate, runs the migration.
func (p Plugin) Initialize(db *gorm.DB) error {
	if _, err := p.installed(db); err == nil {
		return nil // dbresolver opens its replicas with the plugins of the primary; they get no outbox of their own
	}
	s, err := newStore(db, p)
	if err != nil {
		return err
	}
	if !p.SkipMigrate {
		if err := s.migrate(db); err != nil {
			return err
		}
	}
	// GORM keeps p as it was given; what has been derived from it goes beside it, found from any handle.
	db.Plugins[storeKey(p.Name())] = s
	return nil
}

func storeKey(pluginName string) string { return pluginName + " store" }

// installed finds the store that Initialize left for this plugin's table.
func (p Plugin) installed(db *gorm.DB) (*store, error) {
	if db == nil || db.Config == nil {
		return nil, because(ErrNotInstalled, "plugin %s: the handle is nil", p.Name())
	}
	s, ok := db.Plugins[storeKey(p.Name())].(*store)
	if !ok {
		return nil, because(ErrNotInstalled, "no outbox on table %s: %s", p.withDefaults().Table, installedNames(db))
	}
	return s, nil
}

// theOutbox finds the outbox that the package's functions mean: the one on the default table, or the only one there is.
func theOutbox(db *gorm.DB) (*store, error) {
	s, err := Plugin{}.installed(db)
	if err == nil || db == nil || db.Config == nil {
		return s, err
	}
	var only *store
	for _, plugin := range db.Plugins {
		if candidate, ok := plugin.(*store); ok {
			if only != nil {
				return nil, err
			}
			only = candidate
		}
	}
	if only == nil {
		return nil, err
	}
	return only, nil
}

// installedNames helps a caller who installed another outbox than the one asked for.
func installedNames(db *gorm.DB) string {
	var tables []string
	for _, plugin := range db.Plugins {
		if s, ok := plugin.(*store); ok {
			tables = append(tables, s.Table)
		}
	}
	if len(tables) == 0 {
		return "call db.Use with its Plugin at start"
	}
	sort.Strings(tables)
	return "installed are those on " + strings.Join(tables, " and ") + "; call the methods of Plugin{Table: …}"
}

var (
	tablePattern  = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]{0,62}\.)?[A-Za-z_][A-Za-z0-9_]{0,49}$`)
	columnPattern = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,62}$`)
)

// withDefaults fills in what was left zero.
func (p Plugin) withDefaults() Plugin {
	if p.Table == "" {
		p.Table = DefaultTable
	}
	if p.Tenant.Name == "" {
		p.Tenant.Name = "tenant_id"
	}
	if p.Tenant.Type == "" {
		p.Tenant.Type = "text"
	}
	if p.MaxAttempts == 0 {
		p.MaxAttempts = DefaultMaxAttempts
	}
	if p.MaxPayload == 0 {
		p.MaxPayload = DefaultMaxPayload
	}
	return p
}

// validate judges a Plugin that has its defaults.
func (p Plugin) validate() error {
	var found problems
	if !tablePattern.MatchString(p.Table) {
		found.addf("Table %q must be letters, digits and underscores, not starting with a digit, at most 50 characters, optionally with a schema and a dot before it", p.Table)
	}
	if !columnPattern.MatchString(p.Tenant.Name) || isRecordColumn(p.Tenant.Name) {
		found.addf("Tenant.Name %q must be letters, digits and underscores, and none of the outbox's other columns", p.Tenant.Name)
	}
	switch p.Tenant.Type {
	case "text", "uuid", "bigint":
	default:
		found.addf("Tenant.Type %q must be text, uuid or bigint", p.Tenant.Type)
	}
	if p.MaxAttempts < 1 || p.MaxAttempts > maxAttemptsLimit {
		found.addf("MaxAttempts is %d, must be 1 to %d", p.MaxAttempts, maxAttemptsLimit)
	}
	if p.MaxPayload < 1 || p.MaxPayload > maxPayloadLimit {
		found.addf("MaxPayload is %d, must be 1 to %d bytes", p.MaxPayload, maxPayloadLimit)
	}
	return found.err("plugin " + p.Name())
}

const (
	maxAttemptsLimit = 1000
	maxPayloadLimit  = 64 << 20 // jsonb itself ends at 256 MB; a queue of such rows would not be one
)

var _ gorm.Plugin = Plugin{}
