package main

import (
	"context"
	"flag"
	"io"
	"strings"

	"github.com/gorm-outbox/outbox"
)

// command is one word of the command line.
type command struct {
	name    string
	takes   string // what it takes beside flags, as the manual writes it
	does    string // one line of the overview
	body    string // the manual's body
	example string

	// setup adds the command's own flags, and gives what it does once they have been parsed.
	setup func(c *call) func(ctx context.Context) error
}

// commands are in the order of the overview.
func commands() []command {
	return []command{
		migrateCommand, sqlCommand, statsCommand, listCommand, explainCommand, redriveCommand, purgeCommand, cancelCommand,
	}
}

func find(name string) (command, bool) {
	for _, cmd := range commands() {
		if cmd.name == name {
			return cmd, true
		}
	}
	return command{}, false
}

// call is one run of a command.
type call struct {
	command
	stdout, stderr io.Writer
	getenv         func(string) string

	flags    *flag.FlagSet
	common   map[string]bool // flags that every command has
	seen     map[string]bool // flags that were given
	problems []string        // what is wrong with their values
	args     []string        // what is no flag

	dsn     string
	plugin  outbox.Plugin
	json    bool
	creates bool // whether it may create a database file
}

func newCall(cmd command, stdout, stderr io.Writer, getenv func(string) string) *call {
	c := &call{
		command: cmd, stdout: stdout, stderr: stderr, getenv: getenv,
		flags: flag.NewFlagSet(cmd.name, flag.ContinueOnError), seen: map[string]bool{}, common: map[string]bool{},
		plugin: outbox.Plugin{SkipMigrate: true},
	}
	c.flags.SetOutput(io.Discard) // errors are told once, by finish
	c.text(&c.dsn, "dsn", "the database, as a `DSN`: postgres://…, \"host=… dbname=…\", or sqlite:FILE; default: DATABASE_URL")
	c.text(&c.plugin.Table, "table", "the outbox's `TABLE`, if it is not \"outbox\"; PostgreSQL: also SCHEMA.TABLE")
	c.text(&c.plugin.Tenant.Name, "tenant-column", "the tenant column's `NAME`, if it is not tenant_id")
	c.text(&c.plugin.Tenant.Type, "tenant-type", "its `TYPE`, if it is not text: uuid or bigint")
	c.flags.BoolVar(&c.json, "json", false, "print JSON, for scripts")
	c.flags.VisitAll(func(f *flag.Flag) { c.common[f.Name] = true })
	return c
}

// parse reads the command line; flags may stand before and behind what is none.
func (c *call) parse(args []string) error {
	for {
		if err := c.flags.Parse(args); err == flag.ErrHelp {
			return err
		} else if err != nil {
			return usageError(strings.ReplaceAll(err.Error(), ": -", ": --"))
		}
		if args = c.flags.Args(); len(args) == 0 {
			break
		}
		c.args = append(c.args, args[0])
		args = args[1:]
	}
	if len(c.args) > 0 && c.takes == "" {
		c.problem("it takes flags only; one argument is none") // not repeated: it may be a DSN
	}
	if len(c.problems) > 0 {
		return usageError(strings.Join(c.problems, "; "))
	}
	return nil
}

func (c *call) problem(text string) { c.problems = append(c.problems, text) }
