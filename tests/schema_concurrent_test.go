package tests

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gorm-outbox/outbox"
	"github.com/libtnb/sqlite"
	"github.com/stretchr/testify/require"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

func init() { workers["migrate"] = migrateWorker }

// migrateWorker installs an outbox as often as it is told to, each time as a program that has just started: with a pool
// of its own.
func migrateWorker() error {
	return listen(func(line string) string {
		how, dsn, _ := strings.Cut(line, " ")
		return oneLine(migrateOnce(how, dsn))
	})
}

func migrateOnce(how, dsn string) (err error) {
	dialector := postgres.Open(dsn)
	if strings.HasPrefix(dsn, "file:") {
		dialector = sqlite.Open(dsn)
	}
	db, err := gorm.Open(dialector, &gorm.Config{Logger: logger.Discard})
	if err != nil {
		return err
	}
	pool, err := db.DB()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pool.Close()) }()
	if how == "use" {
		return db.Use(outbox.Plugin{})
	}
	if err := db.Use(outbox.Plugin{SkipMigrate: true}); err != nil {
		return err
	}
	return db.Transaction(outbox.Migrate)
}

// migrators are processes that migrate at the same moment.
type migrators []*child

func (m migrators) race(t *testing.T, how, dsn string) {
	t.Helper()
	for _, c := range m {
		c.tell(t, how+" "+dsn)
	}
	answers := map[string]int{}
	for _, c := range m {
		answers[c.hear(t)]++
	}
	require.Equal(t, map[string]int{"ok": len(m)}, answers)
}

func TestC29_ManyProcessesMigrateAtOnce(t *testing.T) {
	m := make(migrators, 8)
	for i := range m {
		m[i] = startChild(t, "migrate")
	}
	t.Run("by Use", func(t *testing.T) { m.raceOnPostgres(t, 20, "use", "") })
	t.Run("by Migrate in a transaction", func(t *testing.T) { m.raceOnPostgres(t, 5, "transaction", "") })
	// A stricter transaction looks at the catalogue as it was when its first statement began, which may be before the
	// others were done.
	t.Run("repeatable read", func(t *testing.T) { m.raceOnPostgres(t, 3, "use", "repeatable read") })
	t.Run("serializable", func(t *testing.T) { m.raceOnPostgres(t, 3, "use", "serializable") })

	_, tuned, _ := strings.Cut(sqliteDSN(""), "?")
	for name, options := range map[string]string{"SQLite as it comes": "", "SQLite tuned": "?" + tuned} {
		for _, how := range []string{"use", "transaction"} {
			t.Run(name+", "+how, func(t *testing.T) {
				for round := range 3 {
					file := filepath.Join(t.TempDir(), fmt.Sprint(round))
					m.raceOnSQLite(t, how, "file:"+(&url.URL{Path: file}).EscapedPath()+options)
				}
			})
		}
	}
}

// raceOnPostgres races on an empty schema, again and again.
func (m migrators) raceOnPostgres(t *testing.T, rounds int, how, isolation string) {
	reference := newPostgres(t, gorm.Config{})
	want := describePostgres(t, reference, "public", "outbox")
	wantProcessed := describePostgres(t, reference, "public", "outbox_processed")

	db := openGorm(t, postgres.Open(cluster.CreateDatabase(t)), gorm.Config{})
	settings := map[string]string{}
	if isolation != "" {
		settings["default_transaction_isolation"] = isolation
	}
	dsn := withSettings(t, db, settings)
	for range rounds {
		mustExec(t, db, "DROP SCHEMA public CASCADE")
		mustExec(t, db, "CREATE SCHEMA public")
		m.race(t, how, dsn)
		require.Equal(t, want, describePostgres(t, db, "public", "outbox"))
		require.Equal(t, wantProcessed, describePostgres(t, db, "public", "outbox_processed"))
	}
}

// raceOnSQLite races on a file with nothing in it, and tries what comes of it.
func (m migrators) raceOnSQLite(t *testing.T, how, dsn string) {
	t.Helper()
	db := openGorm(t, sqlite.Open(dsn), gorm.Config{})
	// This first look sets the journal's mode, for which SQLite lets nobody wait.
	require.Zero(t, scalar[int](t, db, "SELECT count(*) FROM sqlite_master"))
	m.race(t, how, dsn)
	require.NoError(t, db.Use(outbox.Plugin{SkipMigrate: true}))
	enqueue(t, db, mail("x"))
	require.Equal(t, 1, drain(t, db, &mailbox{}).Sent)
	require.Equal(t, 4, scalar[int](t, db, "SELECT count(*) FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"))
}
