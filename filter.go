package outbox

import (
	"encoding/json"
	"slices"
	"time"

	"gorm.io/gorm"
)

// Filter selects records. What is set must hold together; a Filter that sets nothing selects nothing, unless All says
// so. It is checked before any SQL: what would select everything, or nothing, by mistake is [ErrInvalid].
type Filter struct {
	IDs            []int64   // of the records
	Topic          string    // exactly
	Type           string    // exactly
	TenantID       string    // exactly
	IdempotencyKey string    // together with TenantID it is one record
	Statuses       []Status  // any of these
	Category       string    // of the last failed attempt
	Code           string    // of the last failed attempt
	EnqueuedFrom   time.Time // enqueued at this time or later
	EnqueuedTo     time.Time // enqueued before this time
	EndedFrom      time.Time // ended, sent or unsent, at this time or later
	EndedTo        time.Time // ended before this time
	All            bool      // every record; nothing above may be set then

	Limit  int     // at most this many records; zero: no limit, or List's own
	Rate   float64 // Redrive only: due this many a second, so that a provider is not stampeded; zero: all at once
	DryRun bool    // Redrive only: count, and change nothing
}

// onlySelects refuses what is Redrive's alone.
func (f Filter) onlySelects() error {
	if f.Rate != 0 || f.DryRun {
		return invalid("filter: Rate and DryRun are for Redrive")
	}
	return nil
}

// onlyStatuses refuses statuses that the function would never touch.
func (f Filter) onlyStatuses(what string, touched func(Status) bool) error {
	for _, status := range f.Statuses {
		if slices.Contains(statuses, status) && !touched(status) {
			return invalid("filter: %s, not %s ones", what, status)
		}
	}
	return nil
}

// condition is one term of a WHERE.
type condition struct {
	sql  string
	args []any
}

// conditions makes the filter's terms, or says what is wrong with it.
func (s *store) conditions(f Filter) (terms []condition, err error) {
	var found problems
	add := func(set bool, sql string, args ...any) {
		if set {
			terms = append(terms, condition{sql, args})
		}
	}
	text := func(name, column, value string) {
		found.add(checkText(name, value, maxName))
		add(value != "", column+" = ?", value)
	}
	since := func(name, column, operator string, t time.Time) {
		param, err := s.instant(name, t)
		found.add(err)
		add(param != nil, column+operator+"?", param)
	}
	text("Topic", "topic", f.Topic)
	text("Type", "type", f.Type)
	text("IdempotencyKey", "idempotency_key", f.IdempotencyKey)
	text("Category", "last_error_category", f.Category)
	text("Code", "last_error_code", f.Code)
	since("EnqueuedFrom", "created_at", " >= ", f.EnqueuedFrom)
	since("EnqueuedTo", "created_at", " < ", f.EnqueuedTo)
	since("EndedFrom", "coalesce(sent_at, dead_at)", " >= ", f.EndedFrom)
	since("EndedTo", "coalesce(sent_at, dead_at)", " < ", f.EndedTo)
	add(len(f.Statuses) > 0, "status IN ?", f.Statuses)
	if f.TenantID != "" {
		tenant, err := s.tenant(f.TenantID)
		found.add(err)
		add(true, s.render("{tenant} = CAST(? AS {tenant type})", s.holes()...), tenant)
	}
	if f.IDs != nil {
		ids, _ := json.Marshal(f.IDs) // one parameter, however many
		add(true, s.render("id {among SELECT CAST(t.text AS bigint) FROM {texts} among}"), string(ids))
	}
	f.check(&found, len(terms) > 0)
	return terms, found.err("filter")
}

// check is about the fields together.
func (f Filter) check(found *problems, selects bool) {
	switch {
	case !selects && !f.All:
		found.addf("nothing is set: say which records, or All for every one")
	case selects && f.All:
		found.addf("All is set, and so is something else: drop one")
	}
	if f.IDs != nil && len(f.IDs) == 0 {
		found.addf("IDs is an empty list")
	}
	if slices.ContainsFunc(f.IDs, func(id int64) bool { return id < 1 }) {
		found.addf("IDs has one below 1")
	}
	if f.Limit < 0 {
		found.addf("Limit is %d, must not be negative", f.Limit)
	}
	if f.Rate != 0 && !(f.Rate >= minRate && f.Rate <= maxRate) { // also NaN
		found.addf("Rate is %v, must be %v to %v, or 0 for no limit", f.Rate, minRate, maxRate)
	}
	if f.Statuses != nil && len(f.Statuses) == 0 {
		found.addf("Statuses is an empty list")
	}
	for _, status := range f.Statuses {
		if !slices.Contains(statuses, status) {
			found.addf("status %q is unknown; there are %v", status, statuses)
		}
	}
	for _, span := range [][2]time.Time{{f.EnqueuedFrom, f.EnqueuedTo}, {f.EndedFrom, f.EndedTo}} {
		if !span[0].IsZero() && !span[1].IsZero() && !span[0].Before(span[1]) {
			found.addf("a time range ends before it begins")
		}
	}
}

// The bounds of a Rate: one in a quarter of an hour, and where spacing is finer than the clock.
const (
	minRate = 0.001
	maxRate = 1e6
)

var statuses = []Status{
	StatusPending, StatusProcessing, StatusSent, StatusDiscarded, StatusFailed, StatusCancelled, StatusExpired,
}

// onPrimary is the setting by which dbresolver sends a query to the primary: a replica may lag behind what an operator
// has just done.
const onPrimary = "gorm:db_resolver:write"

// where applies conditions to a query of the outbox's table.
func (s *store) where(db *gorm.DB, terms []condition) *gorm.DB {
	db = db.Set(onPrimary, struct{}{}).Table(s.Table)
	for _, term := range terms {
		db = db.Where(term.sql, term.args...)
	}
	return db
}
