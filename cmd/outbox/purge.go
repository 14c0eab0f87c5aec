package main

import (
	"context"
	"fmt"
	"reflect"

	"github.com/gorm-outbox/outbox"
	"gorm.io/gorm"
)

var purgeCommand = command{
	name: "purge",
	does: "delete records that have ended, past their retention",
	body: `
Deletes records by the time at which they ended, and with each the memory of its idempotency key. What is pending or
processing is never touched. It works in short transactions with rests between them: interrupted, it keeps what is
done. With --consumed it deletes the markers of ConsumeOnce instead, which must outlive the longest redelivery: a
message that comes after its marker is gone is consumed again. JSON is {purged, dry_run, complete}.`,
	example: "outbox purge --older-than 30d --status sent",
	setup: func(c *call) func(ctx context.Context) error {
		var o outbox.PurgeOptions
		var consumed bool
		c.age(&o.OlderThan, "older-than", "that ended longer ago than this `AGE`: 7d, 36h, 1d12h")
		c.time(&o.Before, "before", "instead: that ended before this `TIME` (RFC 3339)")
		c.statuses(&o.Statuses, "status", "only of these `STATUS`es: sent, discarded, failed, cancelled, expired; default: all five")
		c.text(&o.Topic, "topic", "only of this `TOPIC`")
		c.text(&o.TenantID, "tenant", "only of this `TENANT`")
		c.number(&o.ChunkSize, "chunk", "look at `N` records in one transaction, up to 10000; default: 1000", 10000)
		c.flags.BoolVar(&o.DryRun, "dry-run", false, "only count")
		c.flags.BoolVar(&consumed, "consumed", false, "instead: the markers of ConsumeOnce; takes --older-than alone")
		return func(ctx context.Context) error {
			if consumed {
				return c.purgeConsumed(ctx, o)
			}
			return c.purge(ctx, o)
		}
	},
}

func (c *call) purge(ctx context.Context, o outbox.PurgeOptions) error {
	if o.Before.IsZero() == (o.OlderThan == 0) {
		return usageError("give one of --older-than and --before")
	}
	for _, status := range o.Statuses {
		if status == outbox.StatusPending || status == outbox.StatusProcessing {
			return usageError(fmt.Sprintf("records that are %s have not ended and are never purged", status))
		}
	}
	return c.database(ctx, func(db *gorm.DB) error {
		doing := "deleting in chunks"
		if o.DryRun {
			doing = "counting in chunks"
		}
		end := c.watch(func() string { return doing })
		n, err := c.plugin.Purge(db, o)
		end()
		return c.report(tally{done: "purged", count: n, dryRun: o.DryRun, err: err})
	})
}

func (c *call) purgeConsumed(ctx context.Context, o outbox.PurgeOptions) error {
	only := outbox.PurgeOptions{OlderThan: o.OlderThan}
	if o.OlderThan == 0 || !reflect.DeepEqual(o, only) {
		return usageError("--consumed takes --older-than and no other choice")
	}
	return c.database(ctx, func(db *gorm.DB) error {
		end := c.watch(func() string { return "deleting in chunks" })
		n, err := c.plugin.PurgeConsumed(db, o.OlderThan)
		end()
		return c.report(tally{done: "purged", of: "marker", count: n, err: err})
	})
}
