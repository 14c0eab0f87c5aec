package tests

import (
	"database/sql"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/libtnb/sqlite"
	"github.com/stretchr/testify/require"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

// modelRig is a database with an outbox, which is emptied for each run of the model.
type modelRig struct {
	app      *gorm.DB       // the app's, and the test's
	workers  []worker       // the first for rounds that end at once, the others for those that are held
	empty    []string       // statements
	earlier  string         // an expression: the time %s, less %d seconds
	happened map[string]int // in all runs, for the log
}

// worker is another process's pool, which fails as it is told.
type worker struct {
	pool           *faultyPool
	keeps, deletes *gorm.DB // what was sent: Plugin.DeleteSent
}

// heldAtOnce is how many rounds may be held at a time.
const heldAtOnce = 2

func modelOnPostgres(t *testing.T) *modelRig {
	config, err := pgx.ParseConfig(cluster.CreateDatabase(t))
	require.NoError(t, err)
	pool := stdlib.OpenDB(*config)
	g := &modelRig{
		empty:   []string{"TRUNCATE outbox, outbox_processed RESTART IDENTITY"},
		earlier: "%s - %d * interval '1 second'",
	}
	g.open(t, pool, func(p gorm.ConnPool) gorm.Dialector { return postgres.New(postgres.Config{Conn: p}) })
	return g
}

func modelOnSQLite(t *testing.T) *modelRig {
	pool, err := sql.Open(sqlite.DriverName, sqliteDSN(filepath.Join(t.TempDir(), "model.db")))
	require.NoError(t, err)
	g := &modelRig{
		empty:   []string{"DELETE FROM outbox", "DELETE FROM outbox_processed", "DELETE FROM sqlite_sequence"},
		earlier: "strftime('%%Y-%%m-%%d %%H:%%M:%%f+00:00', %s, '-%d seconds')",
	}
	g.open(t, pool, func(p gorm.ConnPool) gorm.Dialector { return sqlite.New(sqlite.Config{Conn: p}) })
	return g
}

// open installs the outbox for the app and for the workers.
func (g *modelRig) open(t *testing.T, pool *sql.DB, dialect func(gorm.ConnPool) gorm.Dialector) {
	t.Helper()
	t.Cleanup(func() { require.NoError(t, pool.Close()) })
	open := func(p gorm.ConnPool, plugin outbox.Plugin) *gorm.DB {
		db, err := gorm.Open(dialect(p), &gorm.Config{Logger: logger.Discard})
		require.NoError(t, err)
		plugin.MaxAttempts = modelAttempts
		require.NoError(t, db.Use(plugin))
		return db
	}
	g.happened = map[string]int{}
	g.app = open(pool, outbox.Plugin{})
	for range 1 + heldAtOnce {
		faulty := &faultyPool{ConnPool: pool}
		g.workers = append(g.workers, worker{
			pool:    faulty,
			keeps:   open(faulty, outbox.Plugin{SkipMigrate: true}),
			deletes: open(faulty, outbox.Plugin{SkipMigrate: true, DeleteSent: true}),
		})
	}
}

// reset empties the tables.
func (g *modelRig) reset(t require.TestingT) {
	for _, statement := range g.empty {
		require.NoError(t, g.app.Exec(statement).Error)
	}
}

// elapse has time pass: everything that the tables remember is that much longer ago, or comes that much nearer.
func (g *modelRig) elapse(t require.TestingT, d time.Duration) {
	for table, columns := range map[string][]string{
		"outbox": {
			"due_at", "expires_at", "leased_until", "unknown_since", "sent_at", "dead_at", "created_at", "updated_at",
		},
		"outbox_processed": {"processed_at"},
	} {
		var sets []string
		for _, column := range columns {
			sets = append(sets, column+" = "+fmt.Sprintf(g.earlier, column, int(d.Seconds())))
		}
		require.NoError(t, g.app.Exec("UPDATE "+table+" SET "+strings.Join(sets, ", ")).Error)
	}
}
