package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/libtnb/sqlite"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

// connectTimeout is how long a database may take to answer at all.
const connectTimeout = 15 * time.Second

// sqliteOptions have a transaction wait for the lock when it begins, since one that reads first and writes later would
// be refused, and take a double-quoted name that is no column for a mistake and not for a text.
const sqliteOptions = "_busy_timeout=5000&_txlock=immediate&_dqs=0"

// pairs is how a DSN of key=value pairs begins.
var pairs = regexp.MustCompile(`^\s*[a-z_]+\s*=`)

// source is a DSN understood.
type source struct {
	dialect string // as GORM and MigrationSQL name it
	dsn     string // as the driver takes it
	file    string // of SQLite
}

// source reads the DSN, which it never repeats.
func (c *call) source() (source, error) {
	dsn := c.dsn
	if dsn == "" {
		dsn = c.getenv("DATABASE_URL")
	}
	file, isSQLite := strings.CutPrefix(dsn, "sqlite:")
	switch {
	case dsn == "":
		return source{}, usageError("no database: give --dsn or set DATABASE_URL")
	case strings.HasPrefix(dsn, "postgres://"), strings.HasPrefix(dsn, "postgresql://"), !isSQLite && pairs.MatchString(dsn):
		return source{dialect: "postgres", dsn: dsn}, nil
	case isSQLite, strings.HasSuffix(dsn, ".db"), strings.HasSuffix(dsn, ".sqlite"):
		return sqliteSource(file)
	}
	return source{}, usageError(`the DSN is none that this command knows: postgres://…, "host=… dbname=…", sqlite:FILE, or a file *.db or *.sqlite`)
}

func sqliteSource(dsn string) (source, error) {
	file, options, _ := strings.Cut(dsn, "?")
	if file = strings.TrimPrefix(file, "file:"); file == "" {
		return source{}, usageError("the DSN names no file")
	}
	if options != "" {
		return source{dialect: "sqlite", dsn: dsn + "&" + sqliteOptions, file: file}, nil
	}
	return source{dialect: "sqlite", dsn: dsn + "?" + sqliteOptions, file: file}, nil
}

// open gives the dialector. Only a migration may bring a file into being: for everything else a name with a slip of the
// pen would become an empty database.
func (s source) open(create bool) (gorm.Dialector, error) {
	if s.dialect == "postgres" {
		return postgres.Open(s.dsn), nil
	}
	if _, err := os.Stat(s.file); err != nil && !create {
		return nil, fmt.Errorf("database file: %w", err)
	}
	return sqlite.Open(s.dsn), nil
}

// database connects, does something, and disconnects.
func (c *call) database(ctx context.Context, do func(db *gorm.DB) error) error {
	db, err := c.connect(ctx)
	if err != nil {
		return err
	}
	pool, err := db.DB()
	if err != nil {
		return err
	}
	defer func() { _ = pool.Close() }() // what was to be written has been
	ping, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if err := pool.PingContext(ping); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	return hint(do(db))
}

// connect makes the handle, which carries ctx and knows the outbox; it has not talked to a server yet.
func (c *call) connect(ctx context.Context) (*gorm.DB, error) {
	source, err := c.source()
	if err != nil {
		return nil, err
	}
	dialector, err := source.open(c.creates)
	if err != nil {
		return nil, err
	}
	db, err := gorm.Open(dialector, &gorm.Config{Logger: logger.Discard, DisableAutomaticPing: true})
	switch {
	case err != nil && source.dialect == "postgres":
		// The driver's text repeats the DSN, and what it finds of passwords in a malformed one is not all.
		return nil, usageError("the DSN is malformed: look at its scheme, host, port, sslmode and files, and at characters to be escaped in a URL, like %40 for @")
	case err != nil:
		return nil, fmt.Errorf("open: %w", err)
	}
	return db.WithContext(ctx), db.Use(c.plugin)
}

// hint says what an operator can do about a table that is not as expected.
func hint(err error) error {
	var state interface{ SQLState() string }
	is := func(code, text string) bool {
		return err != nil && (errors.As(err, &state) && state.SQLState() == code || strings.Contains(err.Error(), text))
	}
	switch {
	case is("42P01", "no such table"):
		return fmt.Errorf(`%w; --table names another, "outbox migrate" creates it`, err)
	case is("42703", "no such column"):
		return fmt.Errorf(`%w; --tenant-column and --tenant-type must be the application's, and "outbox migrate" adds columns of newer releases`, err)
	}
	return err
}
