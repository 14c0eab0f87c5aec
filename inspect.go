package outbox

import (
	"database/sql"
	"fmt"
	"strings"
	"time"

	"gorm.io/gorm"
)

// TopicStats is how a topic is doing.
type TopicStats struct {
	Topic        string        // each that has records of the kinds counted here
	Due          int64         // pending, and due now
	Scheduled    int64         // pending, and due later: for the first time or again
	Processing   int64         // under a lease
	LeaseExpired int64         // processing, but the lease has run out: a worker died, and it will be claimed again
	Sent         int64         // enqueued in the last hour and sent; what was enqueued before that is not counted
	Discarded    int64         // dead by a permanent refusal, and not yet redriven or purged
	Failed       int64         // dead with their attempts spent, and not yet redriven or purged
	OldestDue    time.Duration // how long the first of the due has been: the number to alert on; 0 without any
}

// Stats counts records by topic, in the order of the topics' names. A topic that has due records and no processor that
// serves it shows by its OldestDue. The cost grows with what has not ended, the dead, and what was enqueued in the
// last hour; never with the history of sent records.
func Stats(db *gorm.DB) ([]TopicStats, error) {
	s, err := theOutbox(db)
	if err != nil {
		return nil, err
	}
	return s.stats(db)
}

// Stats is the package's Stats for the plugin's table.
func (p Plugin) Stats(db *gorm.DB) ([]TopicStats, error) {
	s, err := p.installed(db)
	if err != nil {
		return nil, err
	}
	return s.stats(db)
}

// statsSQL reads each part of the table by the index that bounds it: what lives by the claim index, the dead by
// theirs, and what was sent by the primary key from the first record of the last hour on.
const statsSQL = `
WITH live AS (
	SELECT topic, due_at, leased_until, status FROM {table} WHERE sent_at IS NULL AND dead_at IS NULL
), counted AS (
	SELECT topic,
		CASE WHEN status = 'pending' AND due_at <= {now} THEN 1 ELSE 0 END AS due,
		CASE WHEN status = 'pending' AND due_at > {now} THEN 1 ELSE 0 END AS scheduled,
		CASE WHEN status = 'processing' AND leased_until > {now} THEN 1 ELSE 0 END AS processing,
		CASE WHEN status = 'processing' AND leased_until <= {now} THEN 1 ELSE 0 END AS lease_expired,
		0 AS sent, 0 AS discarded, 0 AS failed,
		CASE WHEN status = 'pending' AND due_at <= {now} THEN due_at END AS due_at
	FROM live
	UNION ALL
	SELECT topic, 0, 0, 0, 0, 1, 0, 0, NULL FROM {table} WHERE id >= ? AND sent_at > {now+?}
	UNION ALL
	SELECT topic, 0, 0, 0, 0, 0, CASE WHEN status = 'discarded' THEN 1 ELSE 0 END,
		CASE WHEN status = 'failed' THEN 1 ELSE 0 END, NULL
	FROM {table} WHERE dead_at IS NOT NULL AND status IN ('discarded', 'failed')
)
SELECT topic, sum(due), sum(scheduled), sum(processing), sum(lease_expired), sum(sent), sum(discarded), sum(failed),
	coalesce(0 - {until min(due_at)}, 0)
FROM counted GROUP BY topic ORDER BY topic`

func (s *store) stats(db *gorm.DB) ([]TopicStats, error) {
	const window = time.Hour
	from, err := s.firstSince(db, window)
	if err != nil {
		return nil, wrap("stats", err)
	}
	var stats []TopicStats
	err = collect(session(db.Statement.Context, db), func(rows *sql.Rows) error {
		var t TopicStats
		var oldest int64
		err := rows.Scan(&t.Topic, &t.Due, &t.Scheduled, &t.Processing, &t.LeaseExpired, &t.Sent, &t.Discarded, &t.Failed, &oldest)
		t.OldestDue = max(time.Duration(oldest)*time.Microsecond, 0)
		stats = append(stats, t)
		return err
	}, s.render(statsSQL, s.holes()...), from, -window.Microseconds())
	return stats, wrap("stats", err)
}

// ageSQL looks at the first record at or after an id.
const ageSQL = `
WITH r AS (SELECT id, created_at FROM {table} WHERE id >= ? ORDER BY id LIMIT 1)
SELECT id, CASE WHEN created_at >= {now+?} THEN 1 ELSE 0 END FROM r`

// firstSince finds the first record enqueued within the window, by halving the range of ids: there is no index on
// the time, and ids are given in order of enqueue.
func (s *store) firstSince(db *gorm.DB, window time.Duration) (int64, error) {
	db = session(db.Statement.Context, db)
	var low, high int64
	err := collect(db, func(rows *sql.Rows) error { return rows.Scan(&low, &high) },
		s.render("WITH r AS (SELECT coalesce(min(id), 0) AS low, coalesce(max(id), 0) + 1 AS high FROM {table}) SELECT low, high FROM r", s.holes()...))
	for err == nil && low < high {
		middle := low + (high-low)/2
		found, recent := high, true // past the last record
		err = collect(db, func(rows *sql.Rows) error { return rows.Scan(&found, &recent) },
			s.render(ageSQL, s.holes()...), middle, -window.Microseconds())
		if recent {
			high = middle
		} else {
			low = found + 1
		}
	}
	return low, err
}

// ListOptions says which records [List] gives.
type ListOptions struct {
	Filter Filter // Limit: 1 to 1000 records a page; zero: 50
	Before int64  // the last ID of the page before this one; zero: the newest
	Reveal bool   // with payload, headers and recipient, which are left empty otherwise
}

// List gives a page of records, newest first. The next page is the one Before the last ID of this. Everything is
// Filter{All: true}.
func List(db *gorm.DB, o ListOptions) ([]Record, error) {
	s, err := theOutbox(db)
	if err != nil {
		return nil, err
	}
	return s.list(db, o)
}

// List is the package's List for the plugin's table.
func (p Plugin) List(db *gorm.DB, o ListOptions) ([]Record, error) {
	s, err := p.installed(db)
	if err != nil {
		return nil, err
	}
	return s.list(db, o)
}

// Get gives one record, with payload, headers and recipient if reveal says so; gorm.ErrRecordNotFound if there is none.
func Get(db *gorm.DB, id int64, reveal bool) (Record, error) {
	s, err := theOutbox(db)
	if err != nil {
		return Record{}, err
	}
	return s.get(db, id, reveal)
}

// Get is the package's Get for the plugin's table.
func (p Plugin) Get(db *gorm.DB, id int64, reveal bool) (Record, error) {
	s, err := p.installed(db)
	if err != nil {
		return Record{}, err
	}
	return s.get(db, id, reveal)
}

const (
	defaultPage = 50
	maxPage     = 1000
)

func (s *store) list(db *gorm.DB, o ListOptions) ([]Record, error) {
	if o.Filter.Limit == 0 {
		o.Filter.Limit = defaultPage
	}
	terms, err := s.conditions(o.Filter)
	switch {
	case err != nil:
		return nil, err
	case o.Filter.Limit > maxPage:
		return nil, invalid("filter: Limit is %d, a page has at most %d", o.Filter.Limit, maxPage)
	case o.Before < 0:
		return nil, invalid("Before is %d, must be the ID of a record", o.Before)
	}
	if err := o.Filter.onlySelects(); err != nil {
		return nil, err
	}
	if o.Before > 0 {
		terms = append(terms, condition{"id < ?", []any{o.Before}})
	}
	var records []Record
	err = s.where(session(db.Statement.Context, db), terms).Select(s.visible(o.Reveal)).Order("id DESC").Limit(o.Filter.Limit).Find(&records).Error
	return records, wrap("list", err)
}

func (s *store) get(db *gorm.DB, id int64, reveal bool) (Record, error) {
	records, err := s.list(db, ListOptions{Filter: Filter{IDs: []int64{id}}, Reveal: reveal})
	if err == nil && len(records) == 0 {
		err = fmt.Errorf("outbox: record %d: %w", id, gorm.ErrRecordNotFound)
	}
	if err != nil {
		return Record{}, err
	}
	return records[0], nil
}

// visible lists the columns to read: what may be private stays in the database unless it is asked for.
func (s *store) visible(reveal bool) string {
	var columns []string
	for _, c := range s.recordColumns() {
		switch {
		case c.name == s.Tenant.Name:
			columns = append(columns, "CAST("+s.quote(c.name)+" AS text) AS tenant_id")
		case c.name == "recipient" || c.name == "payload" || c.name == "headers":
			if reveal {
				columns = append(columns, c.name)
			}
		default:
			columns = append(columns, c.name)
		}
	}
	return strings.Join(columns, ", ")
}
