package outbox_test

import (
	"path/filepath"
	"testing"

	"github.com/glebarez/sqlite"
	"github.com/gorm-outbox/outbox/outboxtest"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
)

func TestContract(t *testing.T) {
	outboxtest.RunContract(t, func(t *testing.T) *gorm.DB {
		file := filepath.Join(t.TempDir(), "contract.db")
		db, err := gorm.Open(sqlite.Open(file+"?_pragma=busy_timeout(30000)&_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)"), &gorm.Config{})
		require.NoError(t, err)
		t.Cleanup(func() {
			pool, err := db.DB()
			require.NoError(t, err)
			require.NoError(t, pool.Close())
		})
		return db
	})
}
