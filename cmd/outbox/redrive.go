package main

import (
	"context"
	"math"

	"github.com/gorm-outbox/outbox"
	"gorm.io/gorm"
)

var redriveCommand = command{
	name: "redrive",
	does: "give dead records, discarded or failed, another life",
	body: `
Dead records for which everything given holds become pending again, with a fresh budget of attempts: those that died
first come first. Nothing else is touched, whatever is given. Mend the cause first, look at how many it would be with
--dry-run, and use --rate where a provider could be stampeded. It works in short transactions: interrupted, it keeps
what is done, and run again it does the rest. JSON is {redriven, dry_run, complete}.`,
	example: "outbox redrive --topic email --category credentials --dry-run\noutbox redrive --topic email --category credentials --rate 20",
	setup: func(c *call) func(ctx context.Context) error {
		var f outbox.Filter
		c.filterFlags(&f)
		c.time(&f.EndedFrom, "died-from", "that died at this `TIME` (RFC 3339) or later")
		c.time(&f.EndedTo, "died-to", "that died before this `TIME`")
		c.flags.BoolVar(&f.All, "all", false, "every dead record")
		c.number(&f.Limit, "limit", "at most `N`; default: no limit", math.MaxInt)
		c.rate(&f.Rate, "rate", "due `N` a second, and not all at once")
		c.flags.BoolVar(&f.DryRun, "dry-run", false, "only count")
		return func(ctx context.Context) error { return c.redrive(ctx, f) }
	},
}

func (c *call) redrive(ctx context.Context, f outbox.Filter) error {
	if err := checkFilter(f); err != nil {
		return err
	}
	return c.database(ctx, func(db *gorm.DB) error {
		end := c.watch(func() string { return "redriving in chunks" })
		n, err := c.plugin.Redrive(db, f)
		end()
		return c.report(tally{done: "redriven", count: n, dryRun: f.DryRun, err: err})
	})
}
