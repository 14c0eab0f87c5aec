package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

// asCommand has a test's binary be the command, for what only a process of its own can show.
const asCommand = "OUTBOX_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
	}
	os.Exit(m.Run())
}

// result is what a run of the command left behind.
type result struct {
	code           int
	stdout, stderr string
}

// invoke runs the command in this process, in an environment of which DATABASE_URL is all there is.
func invoke(ctx context.Context, databaseURL string, args ...string) result {
	var stdout, stderr bytes.Buffer
	code := run(ctx, args, &stdout, &stderr, func(key string) string {
		if key == "DATABASE_URL" {
			return databaseURL
		}
		return ""
	})
	return result{code, stdout.String(), stderr.String()}
}

// rig is an outbox of a test's own in some database.
type rig struct {
	*testing.T
	dsn    string
	plugin outbox.Plugin
	db     *gorm.DB
}

// each runs a test on SQLite, and on the PostgreSQL of OUTBOX_TEST_DSN if that is set.
func each(t *testing.T, test func(r *rig)) {
	t.Run("sqlite", func(t *testing.T) {
		test(newRig(t, "sqlite:"+filepath.Join(t.TempDir(), "app.db"), outbox.Plugin{}))
	})
	if dsn := os.Getenv("OUTBOX_TEST_DSN"); dsn != "" { // as from the tests module, which starts a server
		t.Run("postgres", func(t *testing.T) { test(newRig(t, dsn, outbox.Plugin{})) })
	}
}

// newRig migrates a table with a name of its own, by the command itself.
func newRig(t *testing.T, dsn string, plugin outbox.Plugin) *rig {
	t.Helper()
	plugin.Table, plugin.SkipMigrate = "cmd_"+rand.Text(), true
	r := &rig{T: t, dsn: dsn, plugin: plugin}
	r.ok("migrate")
	c := &call{dsn: dsn}
	source, err := c.source()
	require.NoError(t, err)
	dialector, err := source.open(false)
	require.NoError(t, err)
	r.db, err = gorm.Open(dialector, &gorm.Config{Logger: logger.Discard})
	require.NoError(t, err)
	require.NoError(t, r.db.Use(plugin))
	t.Cleanup(func() {
		require.NoError(t, r.db.Migrator().DropTable(plugin.Table, plugin.Table+"_processed"))
		pool, err := r.db.DB()
		require.NoError(t, err)
		require.NoError(t, pool.Close())
	})
	return r
}

// args puts the rig's table behind a command line.
func (r *rig) args(args []string) []string {
	args = append(args, "--table", r.plugin.Table)
	if r.plugin.Tenant.Name != "" {
		args = append(args, "--tenant-column", r.plugin.Tenant.Name, "--tenant-type", r.plugin.Tenant.Type)
	}
	return args
}

func (r *rig) invoke(args ...string) result {
	return invoke(r.Context(), r.dsn, r.args(args)...)
}

// ok runs a command that must succeed without a complaint.
func (r *rig) ok(args ...string) string {
	r.Helper()
	got := r.invoke(args...)
	require.Equal(r, exitOK, got.code, "%q: %s", args, got.stderr)
	return got.stdout
}

// exits runs a command that must end with a code.
func (r *rig) exits(code int, args ...string) result {
	r.Helper()
	got := r.invoke(args...)
	require.Equal(r, code, got.code, "%q: %s%s", args, got.stdout, got.stderr)
	return got
}

// decode reads what a command printed as JSON.
func decode[T any](t *testing.T, stdout string) (v T) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(stdout), &v), stdout)
	return v
}

// enqueue gives the ids of the records.
func (r *rig) enqueue(messages ...outbox.Message) []int64 {
	r.Helper()
	ids := make([]int64, len(messages))
	require.NoError(r, r.db.Transaction(func(tx *gorm.DB) error {
		receipts, err := r.plugin.EnqueueAll(tx, messages)
		for i, receipt := range receipts {
			ids[i] = receipt.ID
		}
		return err
	}))
	return ids
}

// values are columns to set.
type values = map[string]any

func (r *rig) change(v values, ids ...int64) {
	r.Helper()
	require.NoError(r, r.db.Table(r.plugin.Table).Where("id IN ?", ids).Updates(v).Error)
}

// longAgo is before every retention. Its milliseconds make SQLite's text of it compare with the library's own.
var longAgo = time.Date(2020, 1, 2, 3, 4, 5, 678e6, time.UTC)

// sent, failed and discarded are columns of records that ended long ago.
func sent() values { return values{"status": "sent", "sent_at": longAgo, "created_at": longAgo} }

func failed() values { return dead("failed", "network", "timeout") }

func discarded() values { return dead("discarded", "credentials", "401") }

func dead(status, category, code string) values {
	return values{
		"status": status, "dead_at": longAgo, "created_at": longAgo, "attempts": 8, "last_error_category": category,
		"last_error_code": code,
	}
}

// statuses counts the records in the table.
func (r *rig) statuses() map[string]int {
	r.Helper()
	var all []string
	require.NoError(r, r.db.Table(r.plugin.Table).Pluck("status", &all).Error)
	counts := map[string]int{}
	for _, status := range all {
		counts[status]++
	}
	return counts
}

func (r *rig) count() (n int64) {
	r.Helper()
	require.NoError(r, r.db.Table(r.plugin.Table).Count(&n).Error)
	return n
}

// mails are messages of one topic, n of them.
func mails(n int) []outbox.Message {
	messages := make([]outbox.Message, n)
	for i := range messages {
		messages[i] = outbox.Message{Topic: "email", Type: "welcome"}
	}
	return messages
}
