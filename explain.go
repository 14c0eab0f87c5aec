package outbox

import (
	"database/sql"
	"fmt"
	"strings"
	"time"

	"gorm.io/gorm"
)

// Explain says in one sentence why a record has not been sent, and when that changes; gorm.ErrRecordNotFound if there is
// no such record. It quotes neither payload nor recipient.
func Explain(db *gorm.DB, id int64) (string, error) {
	s, err := theOutbox(db)
	if err != nil {
		return "", err
	}
	return s.explain(db, id)
}

// Explain is the package's Explain for the plugin's table.
func (p Plugin) Explain(db *gorm.DB, id int64) (string, error) {
	s, err := p.installed(db)
	if err != nil {
		return "", err
	}
	return s.explain(db, id)
}

// unclaimedFor is how long a record may be due before Explain suspects that nobody serves its topic.
const unclaimedFor = 5 * time.Minute

func (s *store) explain(db *gorm.DB, id int64) (string, error) {
	r, err := s.get(db, id, false)
	if err != nil {
		return "", wrap("explain", err)
	}
	now, err := s.clock(db, 0)
	if err != nil {
		return "", err
	}
	why := r.reason(now)
	if r.Status == StatusPending && now.Sub(r.DueAt) >= unclaimedFor {
		served, err := s.served(db)
		if err != nil {
			return "", err
		}
		why += suspicion(r.Topic, served)
	}
	return fmt.Sprintf("Record %d of topic %s %s.", r.ID, r.Topic, why), nil
}

// reason explains a record at the database's time.
func (r Record) reason(now time.Time) string {
	switch r.Status {
	case StatusSent:
		return fmt.Sprintf("was sent at %s, at attempt %d%s", at(r.SentAt), r.Attempts, r.receipt())
	case StatusCancelled:
		return "was cancelled at " + at(r.DeadAt) + ", before it was sent"
	case StatusExpired:
		return fmt.Sprintf("expired at %s: it was not sent by %s", at(r.DeadAt), at(r.ExpiresAt))
	case StatusDiscarded:
		return fmt.Sprintf("is dead since %s: discarded at attempt %d%s; it stays so until it is redriven", at(r.DeadAt), r.Attempts, r.lastError())
	case StatusFailed:
		return fmt.Sprintf("is dead since %s: failed after %d of %d attempts%s; it stays so until it is redriven", at(r.DeadAt), r.Attempts, r.MaxAttempts, r.lastError())
	case StatusProcessing:
		if r.LeasedUntil != nil && r.LeasedUntil.After(now) {
			return fmt.Sprintf("is being delivered, attempt %d of %d: leased by %s until %s", r.Attempts, r.MaxAttempts, text(r.LeaseOwner), at(r.LeasedUntil))
		}
		return fmt.Sprintf("was left by %s, whose lease ran out at %s; the next claim of its topic takes it up", text(r.LeaseOwner), at(r.LeasedUntil))
	}
	due := at(&r.DueAt)
	switch {
	case r.DueAt.After(now) && r.Attempts > 0:
		return fmt.Sprintf("waits for attempt %d of %d at %s%s", r.Attempts+1, r.MaxAttempts, due, r.lastError())
	case r.DueAt.After(now):
		return "is not due until " + due
	default:
		return fmt.Sprintf("is due since %s and waits for a processor to claim it%s", due, r.lastError())
	}
}

// receipt is what the provider has reported since.
func (r Record) receipt() string {
	if r.ReceiptStatus == nil {
		return ""
	}
	report := fmt.Sprintf("; the provider reported it %s at %s", *r.ReceiptStatus, at(r.ReceiptAt))
	if r.ReceiptCode != nil {
		report += ", code " + *r.ReceiptCode
	}
	return report
}

func (r Record) lastError() string {
	if r.LastErrorCategory == nil || r.Attempts == 0 { // after a redrive it belongs to an earlier life
		return ""
	}
	last := ", after " + *r.LastErrorCategory
	if r.LastErrorCode != nil && *r.LastErrorCode != "" {
		last += "/" + *r.LastErrorCode
	}
	return last
}

func at(t *time.Time) string {
	if t == nil {
		return "an unknown time"
	}
	return t.UTC().Format(time.RFC3339)
}

func text(s *string) string {
	if s == nil {
		return "an unknown owner"
	}
	return *s
}

// servedSQL samples the newest records for topics that have been claimed.
const servedSQL = `
WITH newest AS (SELECT topic, attempts FROM {table} ORDER BY id DESC LIMIT 1000)
SELECT DISTINCT topic FROM newest WHERE attempts > 0 ORDER BY topic`

func (s *store) served(db *gorm.DB) (topics []string, err error) {
	err = collect(session(db.Statement.Context, db), func(rows *sql.Rows) error {
		var topic string
		err := rows.Scan(&topic)
		topics = append(topics, topic)
		return err
	}, s.render(servedSQL, s.holes()...))
	return topics, wrap("explain", err)
}

func suspicion(topic string, served []string) string {
	for _, s := range served {
		if s == topic {
			return "; processors have claimed its topic lately, so they may be behind"
		}
	}
	if len(served) == 0 {
		return "; no topic has been claimed lately: does a processor run?"
	}
	return "; of the topics claimed lately, " + strings.Join(served, ", ") + ", none is its own: does a processor serve it?"
}
