package tests

import (
	"path/filepath"
	"testing"

	"github.com/gorm-outbox/outbox/outboxtest"
	"github.com/libtnb/sqlite"
	"github.com/stretchr/testify/require"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
	"gorm.io/gorm/schema"
)

// TestContract runs the contract on each engine, and on PostgreSQL under each configuration of GORM and the driver
// that could make a difference.
func TestContract(t *testing.T) {
	for _, variant := range []struct {
		name   string
		dialer func(t *testing.T) gorm.Dialector
		cfg    gorm.Config
	}{
		{"postgres", freshPostgres, gorm.Config{}},
		{"postgres otherwise", freshSimplePostgres, gorm.Config{
			PrepareStmt: true, TranslateError: true, NamingStrategy: schema.NamingStrategy{TablePrefix: "app_", SingularTable: true},
		}},
		{"sqlite", freshSQLite, gorm.Config{}},
	} {
		t.Run(variant.name, func(t *testing.T) {
			outboxtest.RunContract(t, func(t *testing.T) *gorm.DB {
				cfg := variant.cfg
				cfg.Logger = logger.Discard
				db, err := gorm.Open(variant.dialer(t), &cfg)
				require.NoError(t, err)
				pool, err := db.DB()
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, pool.Close()) })
				return db
			})
		})
	}
}

func freshPostgres(t *testing.T) gorm.Dialector { return postgres.Open(cluster.CreateDatabase(t)) }

func freshSimplePostgres(t *testing.T) gorm.Dialector {
	return postgres.New(postgres.Config{DSN: cluster.CreateDatabase(t), PreferSimpleProtocol: true})
}

func freshSQLite(t *testing.T) gorm.Dialector {
	file := filepath.Join(t.TempDir(), "contract.db")
	return sqlite.Open("file:" + file + "?_pragma=busy_timeout(30000)&_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)")
}
