// Command example is a tour of the outbox in a small shop: ten scenes, each played on a real database and checked.
//
//	go run ./example                               # embedded SQLite, nothing to install
//	go run ./example -dsn postgres://user@host/db  # the same on PostgreSQL
//
// The mails go to an SMTP server and the WhatsApps to a double of the provider's API, both of them in this program.
// What an app of your own would take over is in shop.go (enqueue), transports.go and templates (deliver), workers.go
// (when) and database.go; the other files are the stage.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	dsn := flag.String("dsn", "", "PostgreSQL, or sqlite:FILE; the tables outbox_example… there are made anew "+
		"(default: SQLite in a temporary directory)")
	mailPort := flag.Int("worker", 0, "internal: be the worker that scene 6 kills, with the mail server at this port")
	flag.Parse()
	if flag.NArg() > 0 { // a DSN without its flag must not start a tour somewhere else
		flag.Usage()
		os.Exit(2)
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // back to the default: a second Ctrl-C ends the program at once

	run := func() error { return play(ctx, *dsn) }
	if *mailPort != 0 {
		run = func() error { return deliverOnce(ctx, *dsn, *mailPort) }
	}
	os.Exit(exitStatus(ctx, run()))
}

func exitStatus(ctx context.Context, err error) int {
	switch {
	case err == nil:
		return 0
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "\nInterrupted: stopped and cleaned up.")
		return 130 // as a shell reports a program ended by Ctrl-C
	default:
		fmt.Fprintf(os.Stderr, "\nexample: %v\n", err)
		return 1
	}
}
