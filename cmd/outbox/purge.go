package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/gorm-outbox/outbox"
	"gorm.io/gorm"
)

// ended are the statuses of records that have.
var ended = []outbox.Status{
	outbox.StatusSent, outbox.StatusDiscarded, outbox.StatusFailed, outbox.StatusCancelled, outbox.StatusExpired,
}

var purgeCommand = command{
	name: "purge",
	does: "delete records that have ended, past their retention",
	body: `
Deletes records by the time at which they ended, and with each the memory of its idempotency key. What is pending or
processing is never touched. It works in short transactions with rests between them: interrupted, it keeps what is
done. --dry-run counts the records page by page. JSON is {purged, dry_run, complete}.`,
	example: "outbox purge --older-than 30d --status sent",
	setup: func(c *call) func(ctx context.Context) error {
		var o outbox.PurgeOptions
		var dryRun bool
		c.age(&o.OlderThan, "older-than", "that ended longer ago than this `AGE`: 7d, 36h, 1d12h")
		c.time(&o.Before, "before", "instead: that ended before this `TIME` (RFC 3339)")
		c.statuses(&o.Statuses, "status", "only of these `STATUS`es: sent, discarded, failed, cancelled, expired; default: all five")
		c.text(&o.Topic, "topic", "only of this `TOPIC`")
		c.text(&o.TenantID, "tenant", "only of this `TENANT`")
		c.number(&o.ChunkSize, "chunk", "look at `N` records in one transaction, up to 10000; default: 1000", 10000)
		c.flags.BoolVar(&dryRun, "dry-run", false, "only count")
		return func(ctx context.Context) error { return c.purge(ctx, o, dryRun) }
	},
}

func (c *call) purge(ctx context.Context, o outbox.PurgeOptions, dryRun bool) error {
	if o.Before.IsZero() == (o.OlderThan == 0) {
		return usageError("give one of --older-than and --before")
	}
	for _, status := range o.Statuses {
		if status == outbox.StatusPending || status == outbox.StatusProcessing {
			return usageError(fmt.Sprintf("records that are %s have not ended and are never purged", status))
		}
	}
	return c.database(ctx, func(db *gorm.DB) error {
		var n int64
		var err error
		if dryRun {
			n, err = c.countPurge(db, o)
		} else {
			end := c.watch(func() string { return "deleting in chunks" })
			n, err = c.plugin.Purge(db, o)
			end()
		}
		return c.report(tally{done: "purged", count: n, dryRun: dryRun, err: err})
	})
}

// countPurge counts what Purge would delete, by listing it: the library's own conditions hold, and nothing is locked.
func (c *call) countPurge(db *gorm.DB, o outbox.PurgeOptions) (int64, error) {
	if o.Before.IsZero() {
		now, err := clock(db)
		if err != nil {
			return 0, err
		}
		o.Before = now.Add(-o.OlderThan)
	}
	if o.Statuses == nil {
		o.Statuses = ended
	}
	page := outbox.ListOptions{Filter: outbox.Filter{
		Statuses: o.Statuses, Topic: o.Topic, TenantID: o.TenantID, EndedTo: o.Before, Limit: maxPage,
	}}
	var n atomic.Int64
	defer c.watch(func() string { return fmt.Sprintf("counting, %d so far", n.Load()) })()
	for {
		records, err := c.plugin.List(db, page)
		n.Add(int64(len(records)))
		if err != nil || len(records) < maxPage {
			return n.Load(), err
		}
		page.Before = records[len(records)-1].ID
	}
}

// clock is the database's time, by which ages count.
func clock(db *gorm.DB) (time.Time, error) {
	var now any
	if err := db.Raw("SELECT CURRENT_TIMESTAMP").Row().Scan(&now); err != nil {
		return time.Time{}, fmt.Errorf("read the clock: %w", err)
	}
	switch now := now.(type) {
	case time.Time:
		return now, nil
	case string: // SQLite's
		return time.Parse(time.DateTime, now)
	default:
		return time.Time{}, fmt.Errorf("read the clock: a timestamp came as %T", now)
	}
}
