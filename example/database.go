package main

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/gorm-outbox/outbox"
	"github.com/libtnb/sqlite"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
	"gorm.io/gorm/schema"
)

// The tour can be pointed at any database, so its tables have names of their own. An app has no need of that:
// outbox.Plugin{} keeps the messages in "outbox".
var plugin = outbox.Plugin{Table: "outbox_example"}

const shopTables = "outbox_example_" // prefix

// sqliteOptions are what SQLite needs where several goroutines or processes write. WAL lets readers work beside the
// writer, and the busy timeout has writers wait for each other. Immediate transactions take the write lock when they
// begin: one that reads first and writes later would be refused, without any wait, if another wrote in between.
const sqliteOptions = "?_journal_mode=WAL&_busy_timeout=5000&_txlock=immediate"

// connect opens "sqlite:FILE", and everything else as PostgreSQL.
func connect(dsn string) (*gorm.DB, error) {
	dialector := postgres.Open(dsn)
	if file, ok := strings.CutPrefix(dsn, "sqlite:"); ok {
		dialector = sqlite.Open(file + sqliteOptions)
	}
	return gorm.Open(dialector, &gorm.Config{
		NamingStrategy: schema.NamingStrategy{TablePrefix: shopTables},
		Logger:         logger.Discard, // every error is returned, and told once, by main
	})
}

// install prepares the database at the start of the app. The plugin brings its own tables.
func install(db *gorm.DB) error {
	if err := db.Use(plugin); err != nil {
		return err
	}
	return db.AutoMigrate(&Product{}, &Order{}, &Pick{})
}

// wipe drops what an earlier tour left, and nothing else.
func wipe(db *gorm.DB) error {
	return db.Migrator().DropTable(&Order{}, &Product{}, &Pick{}, plugin.Table, plugin.Table+"_processed")
}

func disconnect(db *gorm.DB) error {
	pool, err := db.DB()
	if err != nil {
		return err
	}
	return pool.Close()
}

// temporary gives the DSN of an SQLite database in a directory of its own, and what removes it.
func temporary() (dsn string, remove func() error, err error) {
	dir, err := os.MkdirTemp("", "outbox-example-")
	if err != nil {
		return "", nil, err
	}
	return "sqlite:" + filepath.Join(dir, "shop.db"), func() error { return os.RemoveAll(dir) }, nil
}
