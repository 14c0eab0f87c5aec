package outbox

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
)

// How long work on many records is cut up.
const (
	defaultChunk = 1000
	maxChunk     = 10000
	maxRest      = 200 * time.Millisecond
)

// PurgeOptions says which finished records [Purge] deletes. One of Before and OlderThan is required; records that are
// pending or processing are never touched.
type PurgeOptions struct {
	Before    time.Time     // that ended before this time
	OlderThan time.Duration // instead: that ended longer ago than this, by the database's clock
	Statuses  []Status      // only these terminal ones; empty: all of them
	Topic     string        // only this topic; empty: all
	TenantID  string        // only this tenant; empty: all
	DryRun    bool          // count, and delete nothing
	ChunkSize int           // records looked at in one statement, 1 to 10,000; zero: 1000
}

// Purge deletes records that have ended, by the time at which they did, and gives back how many. It works in short
// transactions of its own, with rests between them that leave the database to the processors, and stops when the
// handle's context ends; what is deleted by then stays deleted and is counted, but for a statement that the context cut
// off, which the database may still carry out. With a record goes the memory of its idempotency key.
func Purge(db *gorm.DB, o PurgeOptions) (int64, error) {
	s, err := theOutbox(db)
	if err != nil {
		return 0, err
	}
	return s.purge(db, o)
}

// Purge is the package's Purge for the plugin's table.
func (p Plugin) Purge(db *gorm.DB, o PurgeOptions) (int64, error) {
	s, err := p.installed(db)
	if err != nil {
		return 0, err
	}
	return s.purge(db, o)
}

// purgeChunkSQL finds the end of the next stretch of the table, how long it is, and how much of it is old enough to have
// ended before the cutoff: a record cannot have ended before it was enqueued.
const purgeChunkSQL = `
WITH chunk AS (SELECT id, created_at FROM {table} WHERE id > ? ORDER BY id LIMIT ?)
SELECT coalesce(max(id), 0), count(*), coalesce(sum(CASE WHEN created_at < ? THEN 1 ELSE 0 END), 0) FROM chunk`

// youngInARow is after how many records that are too young Purge takes the rest of the table to be so too. Ids are
// given in order of enqueue, but transactions overlap.
const youngInARow = 1000

func (s *store) purge(db *gorm.DB, o PurgeOptions) (total int64, err error) {
	terms, err := s.purgeConditions(db, &o)
	if err != nil {
		return 0, err
	}
	cutoff := o.Before
	if cutoff.IsZero() {
		if cutoff, err = s.clock(db, -o.OlderThan); err != nil {
			return 0, err
		}
	}
	chunkSQL := s.render(purgeChunkSQL, s.holes()...)
	var last, young int64 // id where the chunk before ended; records in a row that are too young
	err = inChunks(db, func(db *gorm.DB) (more bool, err error) {
		var end, size, old int64
		err = collect(db, func(rows *sql.Rows) error { return rows.Scan(&end, &size, &old) }, chunkSQL, last, o.ChunkSize, s.time(cutoff.UTC()))
		if young += size; old > 0 {
			young = 0
		}
		if err != nil || size == 0 || young >= youngInARow {
			return false, err
		}
		n, err := s.purgeChunk(db, terms, last, end, cutoff, o.DryRun)
		total += n
		last = end
		return true, err
	})
	return total, wrap("purge", err)
}

// purgeChunk deletes what ended before the cutoff in a stretch of the table, or counts it.
func (s *store) purgeChunk(db *gorm.DB, terms []condition, after, to int64, cutoff time.Time, dryRun bool) (n int64, err error) {
	chunk := s.where(db, terms).Where("id > ? AND id <= ?", after, to).Where("coalesce(sent_at, dead_at) < ?", s.time(cutoff.UTC()))
	if dryRun {
		err = chunk.Count(&n).Error
		return n, err
	}
	gone := chunk.Delete(&Record{})
	return gone.RowsAffected, gone.Error
}

// purgeConditions judges the options and fills in the chunk size.
func (s *store) purgeConditions(db *gorm.DB, o *PurgeOptions) ([]condition, error) {
	var found problems
	if o.ChunkSize == 0 {
		o.ChunkSize = defaultChunk
	}
	between(&found, "ChunkSize", o.ChunkSize, 1, maxChunk)
	if o.Before.IsZero() == (o.OlderThan == 0) {
		found.addf("set one of Before and OlderThan")
	}
	if o.OlderThan < 0 {
		found.addf("OlderThan is %v, must be above 0", o.OlderThan)
	}
	if o.Statuses == nil {
		o.Statuses = slices.DeleteFunc(slices.Clone(statuses), func(status Status) bool { return !status.Terminal() })
	}
	for _, status := range o.Statuses {
		if !status.Terminal() {
			found.addf("records that are %s have not ended and are never purged", status)
		}
	}
	terms, err := s.conditions(Filter{Statuses: o.Statuses, Topic: o.Topic, TenantID: o.TenantID})
	found.add(err)
	found.add(ownTransactions(db))
	return terms, found.err("purge")
}

// Redrive gives dead records, discarded or failed, another life: pending and due at once, or at f.Rate a second, with
// a fresh budget of attempts. Those that died first come first. It gives back how many records were revived; no other
// record is touched, whatever f selects, and of two redrives at once only one revives a record. It works in short
// transactions of its own and stops when the handle's context ends, with what is revived counted as for [Purge].
func Redrive(db *gorm.DB, f Filter) (int64, error) {
	s, err := theOutbox(db)
	if err != nil {
		return 0, err
	}
	return s.redrive(db, f)
}

// Redrive is the package's Redrive for the plugin's table.
func (p Plugin) Redrive(db *gorm.DB, f Filter) (int64, error) {
	s, err := p.installed(db)
	if err != nil {
		return 0, err
	}
	return s.redrive(db, f)
}

const reviveSQL = `
WITH o AS MATERIALIZED (SELECT * FROM {outcomes})
UPDATE {table} AS r SET
	status = 'pending',
	attempts = 0,
	due_at = {now+o.delay},
	dead_at = NULL,
	unknown_since = NULL,
	receipt_status = NULL,
	receipt_code = NULL,
	receipt_at = NULL,
	updated_at = {now}
FROM o
WHERE r.id {among SELECT record_id FROM o among} AND r.id = o.record_id AND r.status IN ('discarded', 'failed')`

func (s *store) redrive(db *gorm.DB, f Filter) (total int64, err error) {
	terms, err := s.conditions(f)
	if err == nil {
		err = f.onlyStatuses("Redrive revives discarded and failed records", Status.Dead)
	}
	if err == nil {
		err = ownTransactions(db)
	}
	if err != nil {
		return 0, err
	}
	// What dies again while this goes on is left for another redrive.
	began, err := s.clock(db, 0)
	if err != nil {
		return 0, err
	}
	dead := append(terms, condition{"status IN ?", []any{[]Status{StatusDiscarded, StatusFailed}}},
		condition{"dead_at IS NOT NULL AND dead_at <= ?", []any{s.time(began)}})
	if f.DryRun {
		return s.count(db, dead, f.Limit)
	}
	statement := s.render(reviveSQL, s.holes()...)
	err = inChunks(db, func(db *gorm.DB) (more bool, err error) {
		size := defaultChunk
		if f.Limit > 0 {
			size = min(size, f.Limit-int(total))
		}
		var ids []int64
		chunk := s.where(db, dead).Clauses(clause.Locking{Strength: clause.LockingStrengthUpdate, Options: clause.LockingOptionsSkipLocked})
		if err := chunk.Order("dead_at, id").Limit(size).Pluck("id", &ids).Error; err != nil || len(ids) == 0 {
			return false, err
		}
		revived := db.Exec(statement, revivals(ids, total, f.Rate))
		total += revived.RowsAffected
		return f.Limit == 0 || int(total) < f.Limit, revived.Error
	})
	return total, wrap("redrive", err)
}

// revivals spaces the due times of the next records, done of which came before.
func revivals(ids []int64, done int64, rate float64) string {
	outcomes := make([]outcome, len(ids))
	for i, id := range ids {
		var delay int64
		if rate > 0 {
			delay = int64(float64(done+int64(i)) / rate * 1e6)
		}
		outcomes[i] = outcome{ID: id, Delay: &delay}
	}
	text, _ := json.Marshal(outcomes) // numbers and empty texts
	return string(text)
}

func (s *store) count(db *gorm.DB, terms []condition, limit int) (n int64, err error) {
	err = s.where(session(db.Statement.Context, db), terms).Count(&n).Error
	if limit > 0 {
		n = min(n, int64(limit))
	}
	return n, wrap("count", err)
}

// Cancel withdraws messages that no worker has yet, in the caller's transaction: "the invoice was paid, no reminder". It
// gives back how many were withdrawn: none if they are being sent, or have ended. They end as cancelled. f usually has
// IDs, or TenantID and IdempotencyKey; tx must be a transaction ([ErrNoTransaction]).
func Cancel(tx *gorm.DB, f Filter) (int64, error) {
	s, err := transactional(tx, theOutbox)
	if err != nil {
		return 0, err
	}
	return s.cancel(tx, f)
}

// Cancel is the package's Cancel for the plugin's table.
func (p Plugin) Cancel(tx *gorm.DB, f Filter) (int64, error) {
	s, err := transactional(tx, p.installed)
	if err != nil {
		return 0, err
	}
	return s.cancel(tx, f)
}

func (s *store) cancel(tx *gorm.DB, f Filter) (int64, error) {
	if err := f.onlySelects(); err != nil {
		return 0, err
	}
	if f.Limit != 0 {
		return 0, invalid("filter: Limit is not for Cancel")
	}
	if err := f.onlyStatuses("Cancel withdraws pending records", func(s Status) bool { return s == StatusPending }); err != nil {
		return 0, err
	}
	terms, err := s.conditions(f)
	if err != nil {
		return 0, err
	}
	// What a worker is just claiming is left to it. Waiting for the claim would leave the record locked until this
	// transaction ends, and the worker could not record what came of it.
	db := session(tx.Statement.Context, tx)
	var ids []int64
	waiting := s.where(db, terms).Where("status = ?", StatusPending).
		Clauses(clause.Locking{Strength: clause.LockingStrengthUpdate, Options: clause.LockingOptionsSkipLocked})
	if err := waiting.Order("id").Pluck("id", &ids).Error; err != nil || len(ids) == 0 {
		return 0, wrap("cancel", err)
	}
	byID, err := s.conditions(Filter{IDs: ids})
	if err != nil {
		return 0, err
	}
	now := gorm.Expr(s.now)
	withdrawn := s.where(db, byID).Where("status = ?", StatusPending).
		UpdateColumns(map[string]any{"status": StatusCancelled, "dead_at": now, "updated_at": now})
	return withdrawn.RowsAffected, wrap("cancel", withdrawn.Error)
}

// inChunks repeats a step until it says that there is no more, or the handle's context ends. Between two it rests for
// three times as long as the step took, so that most of the database's time stays with the processors: a drain beside a
// purge that rested as long as it worked lost a sixth of its rate.
func inChunks(db *gorm.DB, step func(db *gorm.DB) (more bool, err error)) error {
	ctx := db.Statement.Context
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		began := time.Now()
		if more, err := step(session(ctx, db)); err != nil || !more {
			return err
		}
		pause(ctx, min(3*time.Since(began), maxRest))
	}
}

// ownTransactions refuses a transaction where work must be done in many.
func ownTransactions(db *gorm.DB) error {
	switch {
	case db.Error != nil:
		return invalid("the handle already carries an error: %w", db.Error)
	case inTransaction(db.Statement.ConnPool):
		return invalid("the handle is a transaction; this works in short ones of its own and needs the database's handle")
	}
	return nil
}

// clock is the database's time, plus d.
func (s *store) clock(db *gorm.DB, d time.Duration) (time.Time, error) {
	var at instant
	err := collect(session(db.Statement.Context, db), func(rows *sql.Rows) error { return rows.Scan(&at) },
		s.render("WITH c AS (SELECT {now+?} AS at) SELECT at FROM c"), d.Microseconds())
	return at.UTC(), wrap("read the clock", err)
}

// wrap says what was attempted.
func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("outbox: %s: %w", what, err)
}
