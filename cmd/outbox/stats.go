package main

import (
	"context"
	"io"
	"time"

	"github.com/gorm-outbox/outbox"
	"gorm.io/gorm"
)

var statsCommand = command{
	name: "stats",
	does: "count records by topic, with the age of the oldest due",
	body: `
  DUE            pending, and due now
  SCHEDULED      pending, and due later: for the first time or again
  PROCESSING     under a lease
  LEASE EXPIRED  left by a worker that died; they will be claimed again
  SENT 1H        enqueued in the last hour and sent
  DISCARDED      dead by a permanent refusal, until redriven or purged
  FAILED         dead with their attempts spent, until redriven or purged
  OLDEST DUE     how long the first of the due has been: the number to alert on

A topic whose OLDEST DUE grows has no processor, or one that cannot keep up. JSON is an array of {topic, due, scheduled,
processing, lease_expired, sent_last_hour, discarded, failed, oldest_due_seconds}.`,
	example: `outbox stats --json | jq '.[] | select(.oldest_due_seconds > 300) | .topic'`,
	setup: func(c *call) func(ctx context.Context) error {
		return c.stats
	},
}

// topicJSON is outbox.TopicStats for scripts.
type topicJSON struct {
	Topic            string  `json:"topic"`
	Due              int64   `json:"due"`
	Scheduled        int64   `json:"scheduled"`
	Processing       int64   `json:"processing"`
	LeaseExpired     int64   `json:"lease_expired"`
	SentLastHour     int64   `json:"sent_last_hour"`
	Discarded        int64   `json:"discarded"`
	Failed           int64   `json:"failed"`
	OldestDueSeconds float64 `json:"oldest_due_seconds"`
}

func (c *call) stats(ctx context.Context) error {
	return c.database(ctx, func(db *gorm.DB) error {
		topics, err := c.plugin.Stats(db)
		if err != nil {
			return err
		}
		v := make([]topicJSON, len(topics))
		for i, t := range topics {
			v[i] = topicJSON{t.Topic, t.Due, t.Scheduled, t.Processing, t.LeaseExpired, t.Sent, t.Discarded, t.Failed, t.OldestDue.Seconds()}
		}
		return c.print(v, func(w io.Writer) { statsTable(w, topics) })
	})
}

func statsTable(w io.Writer, topics []outbox.TopicStats) {
	row(w, "TOPIC", "DUE", "SCHEDULED", "PROCESSING", "LEASE EXPIRED", "SENT 1H", "DISCARDED", "FAILED", "OLDEST DUE")
	for _, t := range topics {
		var oldest string
		if t.Due > 0 {
			oldest = t.OldestDue.Round(time.Second).String()
		}
		row(w, t.Topic, t.Due, t.Scheduled, t.Processing, t.LeaseExpired, t.Sent, t.Discarded, t.Failed, oldest)
	}
}
