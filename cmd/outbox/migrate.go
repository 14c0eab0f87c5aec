package main

import (
	"context"
	"fmt"
	"io"

	"github.com/gorm-outbox/outbox"
	"gorm.io/gorm"
)

var migrateCommand = command{
	name: "migrate",
	does: "create or update the outbox's tables",
	body: `
Creates the tables, or adds the columns and indexes that this release has and they lack. What is in place is left
alone, and any number of processes may migrate at once. A new index on a big table keeps writers waiting until it is
built. "outbox sql" shows what it comes to. JSON is {dialect, table, migrated}.`,
	example: "outbox migrate --dsn postgres://app@db.example.com/shop",
	setup: func(c *call) func(ctx context.Context) error {
		c.creates = true
		return c.migrate
	},
}

func (c *call) migrate(ctx context.Context) error {
	return c.database(ctx, func(db *gorm.DB) error {
		end := c.watch(func() string { return "migrating, or waiting for another migration" })
		err := c.plugin.Migrate(db)
		end()
		if err != nil {
			return err
		}
		v := map[string]any{"dialect": db.Name(), "table": c.table(), "migrated": true}
		return c.print(v, func(w io.Writer) { _, _ = fmt.Fprintf(w, "table %s is up to date\n", c.table()) })
	})
}

// table is the outbox's name.
func (c *call) table() string {
	if c.plugin.Table == "" {
		return outbox.DefaultTable
	}
	return c.plugin.Table
}

var sqlCommand = command{
	name: "sql",
	does: "print the schema as SQL, for other migration tools",
	body: `
Prints what "outbox migrate" makes of an empty database; every statement may run again. No database is asked: its DSN
only tells which dialect to speak, and --dialect does instead. JSON is {dialect, table, sql}.`,
	example: "outbox sql --dialect postgres > migrations/0007_outbox.sql",
	setup: func(c *call) func(ctx context.Context) error {
		var dialect string
		c.text(&dialect, "dialect", "`postgres` or sqlite; default: the DSN's")
		return func(context.Context) error { return c.sql(dialect) }
	},
}

func (c *call) sql(dialect string) error {
	if dialect == "" {
		source, err := c.source()
		if err != nil {
			return usageError("without --dialect: " + err.Error())
		}
		dialect = source.dialect
	}
	sql, err := outbox.MigrationSQL(dialect, c.plugin)
	if err != nil {
		return err
	}
	v := map[string]any{"dialect": dialect, "table": c.table(), "sql": sql}
	return c.print(v, func(w io.Writer) { _, _ = io.WriteString(w, sql) })
}
