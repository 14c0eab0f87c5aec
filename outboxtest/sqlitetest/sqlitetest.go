// Package sqlitetest gives unit tests a database in one line:
//
//	db := sqlitetest.Open(t, outbox.Plugin{})
//
// It is apart from outboxtest because its SQLite driver, github.com/glebarez/sqlite, registers itself as "sqlite". A test
// binary that links another driver of that name, as github.com/libtnb/sqlite or modernc.org/sqlite, panics at its
// start ("sql: Register called twice for driver sqlite"); it opens a database in memory with its own driver instead,
// under a DSN such as file:/NAME?vfs=memdb&_pragma=busy_timeout(10000)&_txlock=immediate, a name for each test.
package sqlitetest

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/glebarez/sqlite"
	"github.com/gorm-outbox/outbox"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

var opened atomic.Int64

// Open gives a handle on an empty SQLite database in memory, with the plugins installed, or outbox.Plugin{} if none is
// given. It is closed, and gone, when the test ends.
func Open(t testing.TB, plugins ...outbox.Plugin) *gorm.DB {
	t.Helper()
	dsn := fmt.Sprintf("file:/outboxtest-%d?vfs=memdb&_pragma=busy_timeout(10000)&_txlock=immediate", opened.Add(1))
	db, err := gorm.Open(sqlite.Open(dsn), &gorm.Config{Logger: logger.Discard})
	require.NoError(t, err)
	pool, err := db.DB()
	require.NoError(t, err)
	// The database lives as long as a connection to it.
	pool.SetMaxIdleConns(4)
	pool.SetConnMaxLifetime(0)
	t.Cleanup(func() { require.NoError(t, pool.Close()) })
	if len(plugins) == 0 {
		plugins = []outbox.Plugin{{}}
	}
	for _, p := range plugins {
		require.NoError(t, db.Use(p))
	}
	return db
}
