package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gorm-outbox/outbox"
)

// say tells what one of the actors does.
func say(actor, format string, args ...any) {
	fmt.Printf("   %-10s %s\n", actor, fmt.Sprintf(format, args...))
}

// show tells how the records of this scene stand, and gives them, oldest first.
func (t *tour) show(ctx context.Context) ([]outbox.Record, error) {
	var records []outbox.Record
	if err := t.records(ctx).Where("id > ?", t.since).Order("id").Find(&records).Error; err != nil {
		return nil, err
	}
	for _, r := range records {
		say(fmt.Sprintf("record %d", r.ID), "%s", describe(r))
	}
	return records, nil
}

// showOne tells how a record stands, and gives it.
func (t *tour) showOne(ctx context.Context, id int64) (outbox.Record, error) {
	var record outbox.Record
	err := t.records(ctx).Where("id = ?", id).Take(&record).Error
	if err == nil {
		say(fmt.Sprintf("record %d", id), "%s", describe(record))
	}
	return record, err
}

func describe(r outbox.Record) string {
	text := fmt.Sprintf("%s %s: %s", r.Topic, r.Type, r.Status)
	if r.Attempts > 0 {
		text += fmt.Sprintf(", attempt %d of %d", r.Attempts, r.MaxAttempts)
	}
	if r.LastErrorCategory != nil {
		text += ", last error " + lastError(r)
	}
	if r.LeaseOwner != nil {
		text += ", leased by " + *r.LeaseOwner
	}
	if r.ExternalID != nil {
		text += ", the provider calls it " + short(*r.ExternalID)
	}
	if r.ReceiptStatus != nil {
		text += ", and reports it " + receiptOf(r)
	}
	return text
}

// short abbreviates a Message-ID, which is long and says nothing.
func short(id string) string {
	if strings.HasPrefix(id, "<") && len(id) > 12 {
		return id[:8] + "…>"
	}
	return id
}

func receiptOf(r outbox.Record) string {
	if r.ReceiptStatus == nil {
		return "none"
	}
	return string(*r.ReceiptStatus)
}

func lastError(r outbox.Record) string {
	return orNone(r.LastErrorCategory) + "/" + orNone(r.LastErrorCode)
}

func orNone(text *string) string {
	if text == nil {
		return "none"
	}
	return *text
}

// round has the worker process once, and tells about it if there was something to do.
func (t *tour) round(ctx context.Context) outbox.Summary {
	s := t.worker.ProcessOnce(ctx)
	for _, a := range t.noted() {
		if a.Status != outbox.StatusSent {
			say("transport", "record %d, attempt %d failed: %s/%s", a.Delivery.ID, a.Delivery.Attempt, a.Category, a.Code)
		}
	}
	if s.Claimed > 0 || s.Errors > 0 {
		say("processor", "%s", counts(s))
	}
	return s
}

// counts names what is not zero.
func counts(s outbox.Summary) string {
	text := fmt.Sprintf("a round: %d claimed", s.Claimed)
	for _, c := range []struct {
		n    int
		name string
	}{
		{s.Sent, "sent"}, {s.Retried, "to be retried"}, {s.Discarded, "discarded"}, {s.Failed, "failed"},
		{s.Lost, "lost"}, {s.Released, "released"}, {s.Errors, "database errors, the last " + s.LastError},
	} {
		if c.n > 0 {
			text += fmt.Sprintf(", %d %s", c.n, c.name)
		}
	}
	return text
}

// tellArrivals tells what the scene has brought to the providers.
func (t *tour) tellArrivals() {
	for _, m := range t.mail.News() {
		say("smtp", "got a mail to %s: %q, %q", m.To, m.Subject, m.Text)
	}
	for _, m := range t.whatsapp.News() {
		say("whatsapp", "got from number %s to +%s: %s %q", m.From, m.To, m.Template, m.Params)
	}
}

// note is called from many goroutines at once.
func (t *tour) note(_ context.Context, a outbox.Attempt) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.attempts = append(t.attempts, attempt{a, time.Now()})
}

// noted takes what has been noted, by record.
func (t *tour) noted() []attempt {
	t.mu.Lock()
	defer t.mu.Unlock()
	noted := t.attempts
	t.attempts = nil
	slices.SortFunc(noted, func(a, b attempt) int { return cmp.Compare(a.Delivery.ID, b.Delivery.ID) })
	return noted
}
