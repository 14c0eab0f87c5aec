// Command outbox looks after the transactional outbox of an application: it creates the tables, shows how the messages
// are doing, and redrives, cancels and purges records. "outbox help" prints its manual.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/gorm-outbox/outbox"
)

// The exit codes; the overview tells them to users.
const (
	exitOK      = 0
	exitFailed  = 1
	exitUsage   = 2
	exitNothing = 3
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr, os.Getenv))
}

// run is the whole command: it writes to the given writers and gives back the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer, getenv func(string) string) int {
	if len(args) == 0 {
		_, _ = io.WriteString(stderr, overview())
		return exitUsage
	}
	switch args[0] {
	case "-h", "-help", "--help", "help":
		return help(args[1:], stdout, stderr)
	}
	cmd, ok := find(args[0])
	if !ok {
		return unknown(args[0], stderr)
	}
	c := newCall(cmd, stdout, stderr, getenv)
	act := cmd.setup(c)
	err := c.parse(args[1:])
	if errors.Is(err, flag.ErrHelp) {
		_, _ = io.WriteString(stdout, c.manual())
		return exitOK
	}
	if err == nil {
		err = act(ctx)
	}
	return c.finish(ctx, err)
}

// help prints the overview, or the manual of a command.
func help(args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		_, _ = io.WriteString(stdout, overview())
		return exitOK
	}
	cmd, ok := find(args[0])
	if !ok {
		return unknown(args[0], stderr)
	}
	c := newCall(cmd, stdout, stderr, nil)
	cmd.setup(c)
	_, _ = io.WriteString(stdout, c.manual())
	return exitOK
}

// unknown refuses a command. What does not look like one is not repeated: it may be a DSN with its password.
func unknown(name string, stderr io.Writer) int {
	switch {
	case strings.HasPrefix(name, "-"):
		name = "flags come after the command"
	case strings.Trim(name, "abcdefghijklmnopqrstuvwxyz") == "" && len(name) <= 20:
		name = fmt.Sprintf("there is no command %q", name)
	default:
		name = "the first argument is no command"
	}
	_, _ = fmt.Fprintf(stderr, "outbox: %s; see \"outbox help\"\n", name)
	return exitUsage
}

// finish reports what went wrong, if anything did, and gives the exit code.
func (c *call) finish(ctx context.Context, err error) int {
	if err == nil {
		return exitOK
	}
	code := exitCode(err)
	text := clean(lines.Replace(strings.TrimPrefix(err.Error(), "outbox: ")))
	if code == exitFailed && ctx.Err() != nil {
		text = "interrupted"
	}
	_, _ = fmt.Fprintf(c.stderr, "outbox %s: %s\n", c.name, text)
	if code == exitUsage {
		_, _ = fmt.Fprintf(c.stderr, "see \"outbox %s --help\"\n", c.name)
	}
	return code
}

// lines makes one of an error that has several.
var lines = strings.NewReplacer("\n\t", " ", "\n", "; ")

func exitCode(err error) int {
	switch {
	case errors.Is(err, outbox.ErrInvalid), errors.As(err, new(usageError)):
		return exitUsage
	case errors.As(err, new(nothingError)):
		return exitNothing
	default:
		return exitFailed
	}
}

// usageError is a command line that cannot be meant as it stands.
type usageError string

func (e usageError) Error() string { return string(e) }

// nothingError is for scripts, which have to know that nothing was there.
type nothingError string

func (e nothingError) Error() string { return string(e) }
