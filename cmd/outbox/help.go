package main

import (
	"flag"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

const exitCodes = `Exit codes:
  0  done, also if there was nothing to do
  1  failed: the database, or interrupted; what was done by then is told and stays done
  2  the command line is wrong; nothing was done
  3  explain: no such record; cancel: nothing was withdrawn
`

// overview is what "outbox help" prints.
func overview() string {
	var b strings.Builder
	b.WriteString("outbox looks after the transactional outbox of an application (github.com/gorm-outbox/outbox).\n\n")
	b.WriteString("  outbox COMMAND [flags]\n  outbox COMMAND --help\n\nCommands:\n")
	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, cmd := range commands() {
		_, _ = fmt.Fprintf(table, "  %s\t%s\n", cmd.name, cmd.does)
	}
	_ = table.Flush() // a strings.Builder takes everything
	b.WriteString(`
The database is that of --dsn, or of the environment variable DATABASE_URL: postgres://…, postgresql://…,
"host=… dbname=…", sqlite:FILE, or a file *.db or *.sqlite. DATABASE_URL or PGPASSWORD keeps a password out of the list
of processes. Only "migrate" changes the schema. Payloads, headers and recipients are printed by "list --reveal" alone.
Times are UTC. Results go to stdout, progress and errors to stderr.

` + exitCodes)
	return b.String()
}

// manual is what "outbox COMMAND --help" prints.
func (c *call) manual() string {
	var b strings.Builder
	fmt.Fprintf(&b, "outbox %s: %s\n\n", c.name, c.does)
	fmt.Fprintf(&b, "  outbox %s\n\n%s\n", strings.Join(strings.Fields(c.name+" "+c.takes+" [flags]"), " "), strings.Trim(c.body, "\n"))
	c.flagTable(&b, "Flags:", false)
	c.flagTable(&b, "Flags of every command:", true)
	fmt.Fprintf(&b, "\nExample:\n\n  %s\n\n%s", strings.ReplaceAll(c.example, "\n", "\n  "), exitCodes)
	return b.String()
}

// flagTable lists the flags that all commands have, or those that this one has beside them.
func (c *call) flagTable(w io.Writer, title string, common bool) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	c.flags.VisitAll(func(f *flag.Flag) {
		if c.common[f.Name] != common {
			return
		}
		if title != "" {
			_, _ = fmt.Fprintf(w, "\n%s\n", title)
			title = ""
		}
		value, usage := flag.UnquoteUsage(f)
		_, _ = fmt.Fprintf(table, "  --%s\t%s\n", strings.TrimSpace(f.Name+" "+value), usage)
	})
	_ = table.Flush() // as above
}
