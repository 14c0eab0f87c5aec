package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/gorm-outbox/outbox"
	"gorm.io/gorm"
)

const (
	defaultPage = 50
	maxPage     = 1000 // the library's
)

var listCommand = command{
	name: "list",
	does: "show records, newest first, a page at a time",
	body: `
Shows the records for which everything given holds; all of them if nothing is. Payload, headers and recipient stay in
the database unless --reveal asks for them. The next page is the one --before the last ID of this. JSON is an array of
records and has every column but the lease's token.`,
	example: "outbox list --topic email --status failed,discarded --category credentials --limit 20\noutbox list --id 4711 --reveal --json",
	setup: func(c *call) func(ctx context.Context) error {
		o := outbox.ListOptions{Filter: outbox.Filter{Limit: defaultPage}}
		f := &o.Filter
		c.filterFlags(f)
		c.text(&f.IdempotencyKey, "key", "with this idempotency `KEY`; together with --tenant it is one record")
		c.statuses(&f.Statuses, "status", "in one of these `STATUS`es: pending, processing, sent, discarded, failed, cancelled, expired")
		c.time(&f.EnqueuedFrom, "enqueued-from", "enqueued at this `TIME` (RFC 3339) or later")
		c.time(&f.EnqueuedTo, "enqueued-to", "enqueued before this `TIME`")
		c.time(&f.EndedFrom, "ended-from", "ended, sent or unsent, at this `TIME` or later")
		c.time(&f.EndedTo, "ended-to", "ended before this `TIME`")
		c.flags.BoolVar(&f.All, "all", false, "every record, as without any of these")
		c.number(&f.Limit, "limit", fmt.Sprintf("at most `N`, up to %d; default: %d", maxPage, defaultPage), maxPage)
		before := 0
		c.number(&before, "before", "the page before this `ID`: the last one of the page that was shown", math.MaxInt)
		c.flags.BoolVar(&o.Reveal, "reveal", false, "show payload, headers and recipient")
		return func(ctx context.Context) error {
			o.Before = int64(before)
			return c.list(ctx, o)
		}
	},
}

func (c *call) list(ctx context.Context, o outbox.ListOptions) error {
	if !selects(o.Filter) {
		o.Filter.All = true // a page of everything does no harm
	}
	if err := checkFilter(o.Filter); err != nil {
		return err
	}
	return c.database(ctx, func(db *gorm.DB) error {
		records, err := c.plugin.List(db, o)
		if err != nil {
			return err
		}
		v := make([]recordJSON, len(records))
		for i, r := range records {
			v[i] = newRecordJSON(r, o.Reveal)
		}
		if err := c.print(v, func(w io.Writer) { recordTable(w, records, o.Reveal) }); err != nil {
			return err
		}
		if len(records) == o.Filter.Limit {
			c.note("there may be more: --before %d", records[len(records)-1].ID)
		}
		return nil
	})
}

func recordTable(w io.Writer, records []outbox.Record, reveal bool) {
	header := []any{"ID", "TENANT", "TOPIC", "TYPE", "STATUS", "ATTEMPTS", "ENQUEUED", "DUE", "ENDED", "LAST ERROR"}
	if reveal {
		header = append(header, "RECIPIENT", "HEADERS", "PAYLOAD")
	}
	row(w, header...)
	for _, r := range records {
		ended := r.SentAt
		if ended == nil {
			ended = r.DeadAt
		}
		due := &r.DueAt
		if r.Status.Terminal() {
			due = nil
		}
		cells := []any{
			r.ID, r.TenantID, r.Topic, r.Type, r.Status, fmt.Sprintf("%d/%d", r.Attempts, r.MaxAttempts), stamp(&r.CreatedAt),
			stamp(due), stamp(ended), lastError(r),
		}
		if reveal {
			cells = append(cells, r.Recipient, string(headers(r)), string(r.Payload))
		}
		row(w, cells...)
	}
}

func lastError(r outbox.Record) string {
	if r.LastErrorCategory == nil {
		return ""
	}
	if r.LastErrorCode == nil || *r.LastErrorCode == "" {
		return *r.LastErrorCategory
	}
	return *r.LastErrorCategory + "/" + *r.LastErrorCode
}

// headers are the record's headers as JSON, null without any.
func headers(r outbox.Record) json.RawMessage {
	if r.Headers == nil {
		return json.RawMessage("null")
	}
	text, _ := json.Marshal(r.Headers) // it came from JSON
	return text
}

// recordJSON is outbox.Record for scripts.
type recordJSON struct {
	ID                int64         `json:"id"`
	TenantID          string        `json:"tenant_id"`
	Topic             string        `json:"topic"`
	Type              string        `json:"type"`
	MessageID         string        `json:"message_id"`
	IdempotencyKey    *string       `json:"idempotency_key"`
	Status            outbox.Status `json:"status"`
	Attempts          int           `json:"attempts"`
	MaxAttempts       int           `json:"max_attempts"`
	DueAt             *time.Time    `json:"due_at"`
	ExpiresAt         *time.Time    `json:"expires_at"`
	LeaseOwner        *string       `json:"lease_owner"`
	LeasedUntil       *time.Time    `json:"leased_until"`
	LastErrorCategory *string       `json:"last_error_category"`
	LastErrorCode     *string       `json:"last_error_code"`
	ExternalID        *string       `json:"external_id"`
	SentAt            *time.Time    `json:"sent_at"`
	DeadAt            *time.Time    `json:"dead_at"`
	CreatedAt         *time.Time    `json:"created_at"`
	UpdatedAt         *time.Time    `json:"updated_at"`
	*revealed
}

// revealed is there with --reveal only.
type revealed struct {
	Recipient string          `json:"recipient"`
	Headers   json.RawMessage `json:"headers"`
	Payload   json.RawMessage `json:"payload"`
}

func newRecordJSON(r outbox.Record, reveal bool) recordJSON {
	v := recordJSON{
		ID: r.ID, TenantID: r.TenantID, Topic: r.Topic, Type: r.Type, MessageID: r.MessageID, IdempotencyKey: r.IdempotencyKey,
		Status: r.Status, Attempts: r.Attempts, MaxAttempts: r.MaxAttempts, DueAt: utc(&r.DueAt), ExpiresAt: utc(r.ExpiresAt),
		LeaseOwner: r.LeaseOwner, LeasedUntil: utc(r.LeasedUntil), LastErrorCategory: r.LastErrorCategory,
		LastErrorCode: r.LastErrorCode, ExternalID: r.ExternalID, SentAt: utc(r.SentAt), DeadAt: utc(r.DeadAt),
		CreatedAt: utc(&r.CreatedAt), UpdatedAt: utc(&r.UpdatedAt),
	}
	if reveal {
		v.revealed = &revealed{Recipient: r.Recipient, Headers: headers(r), Payload: json.RawMessage(r.Payload)}
	}
	return v
}
