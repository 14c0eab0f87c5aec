package outbox

import (
	"crypto/rand"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"errors"
	"sort"
	"strings"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
)

// store is an installed outbox: its options and all of its SQL.
type store struct {
	Plugin
	dialect
	bell bell

	insertOneSQL, insertOneKeySQL      string
	insertSQL, insertKeysSQL           string
	existingSQL                        string
	waitingSQL, claimSQL, claimOnceSQL string
	recordSQL, deleteSQL, stateSQL     string
	recordFreeSQL, deleteFreeSQL       string
}

// Initialize lets GORM keep the store among the plugins; it has nothing to do.
func (s *store) Initialize(*gorm.DB) error { return nil }

// Every statement stands here whole; its holes are the table, the tenant column and the engine's words (dialect.go).
const (
	// insertSQL adds messages, their ids in the order of n. One whose key is taken adds nothing and gives no row back.
	// Where there is no key, nothing is said of conflicts: a look for one costs a quarter of the insert.
	insertSQL = insertInto + `
SELECT CAST(m.tenant AS {tenant type}), m.topic, m.type, m.recipient, coalesce(m.payload, 'null'), m.headers, m.message_id,
	m.key, 'pending', 0, m.max_attempts, coalesce(m.due_at, {now+m.delay}), m.expires_at, {now}, {now}
FROM {messages}
WHERE true
ORDER BY m.n`

	// insertOneSQL is the same for a single message, without what a query costs.
	insertOneSQL = insertInto + `
VALUES (CAST(? AS {tenant type}), {? text}, {? text}, {? text}, {? jsonb}, {? jsonb}, {? uuid}, {? text}, 'pending', 0,
	{? integer}, coalesce({? timestamptz}, {now+?}), {? timestamptz}, {now}, {now})`

	insertInto = `
INSERT INTO {table} ({tenant}, topic, type, recipient, payload, headers, message_id, idempotency_key, status, attempts,
	max_attempts, due_at, expires_at, created_at, updated_at)`
	givingID    = ` RETURNING id`
	givingBoth  = ` RETURNING id, CAST(message_id AS text)`
	unlessTaken = `
ON CONFLICT ({tenant}, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING`

	// existingSQL finds the records that hold the keys. It is a statement of its own because the one that met the
	// conflict may not see the row that caused it.
	existingSQL = `
SELECT m.n, r.id, CAST(r.message_id AS text)
FROM {keys}
JOIN {table} AS r ON r.{tenant} = CAST(m.tenant AS {tenant type}) AND r.idempotency_key = m.key`

	// claimSQL leases the records that the locking subquery found, and closes those among them whose time has passed or
	// whose attempts are spent. It writes no indexed column of a record it leases, so that the update stays heap-only.
	claimSQL = `
UPDATE {table} SET
	status = CASE WHEN {live} THEN 'processing' WHEN {late} THEN 'expired' ELSE 'failed' END,
	lease_token = CASE WHEN {live} THEN ? END,
	lease_owner = CASE WHEN {live} THEN ? END,
	leased_until = CASE WHEN {live} THEN {now+?} END,
	unknown_since = CASE WHEN status = 'processing' THEN coalesce(unknown_since, updated_at) ELSE unknown_since END,
	last_error_category = CASE WHEN {live} OR {late} THEN last_error_category
		WHEN status = 'processing' THEN {unanswered} ELSE 'attempts_exhausted' END,
	last_error_code = CASE WHEN {live} OR {late} THEN last_error_code
		WHEN status = 'processing' THEN 'lease_expired' ELSE 'attempts_exhausted' END,
	dead_at = CASE WHEN {live} THEN dead_at ELSE {now} END,
	attempts = CASE WHEN {live} THEN attempts + 1 ELSE attempts END,
	updated_at = {now}
WHERE id {among
	SELECT id FROM {table} WHERE topic = ? AND {due} AND due_at >= ?
	ORDER BY due_at, id LIMIT ? ?
among}
RETURNING id, CASE WHEN status <> 'processing' THEN status END, CAST({tenant} AS text), type, recipient, payload, headers,
	CAST(message_id AS text), idempotency_key, attempts, max_attempts, due_at, created_at, {until expires_at}, unknown_since`

	// dueSQL is what makes a record claimable, liveSQL whether there is then anything to deliver, and lateSQL whether its
	// time has passed; policy.Decide is the same rule in Go. Where a topic is delivered at most once, a record whose
	// worker never reported back may have been delivered, and is closed whatever else is true of it.
	dueSQL      = `sent_at IS NULL AND dead_at IS NULL AND due_at <= {now} AND (leased_until IS NULL OR leased_until <= {now})`
	liveSQL     = `(attempts < max_attempts AND (expires_at IS NULL OR expires_at > {now}))`
	lateSQL     = `expires_at <= {now}`
	liveOnceSQL = `(status = 'pending' AND ` + liveSQL + `)`
	lateOnceSQL = `(status = 'pending' AND ` + lateSQL + `)`

	// waitingSQL finds which topics have something to claim, with a look at the head of the claim index for each: a
	// scalar subquery, since an EXISTS may be planned as a join that reads the whole backlog. It begins with WITH because
	// read-write splitters send what begins with SELECT to a replica, which may lag behind.
	waitingSQL = `
WITH t AS MATERIALIZED (SELECT * FROM {texts})
SELECT t.text FROM t WHERE (
	SELECT r.id FROM {table} AS r
	WHERE r.topic = t.text AND {due}
	ORDER BY r.due_at, r.id LIMIT 1) IS NOT NULL`

	// recordSQL writes outcomes, each only where its lease still stands, and gives back the records it wrote. An
	// outcome without a delay leaves the record's place in the queue alone. The parameter is read once: SQLite would
	// parse it anew for each record.
	recordSQL = `
WITH o AS MATERIALIZED (SELECT * FROM {outcomes})
UPDATE {table} AS r SET
	status = o.status,
	attempts = r.attempts - o.refund,
	due_at = CASE WHEN o.delay IS NULL THEN r.due_at ELSE {now+o.delay} END,
	lease_token = NULL,
	lease_owner = NULL,
	leased_until = NULL,
	last_error_category = coalesce(o.category, r.last_error_category),
	last_error_code = CASE WHEN o.category IS NULL THEN r.last_error_code ELSE o.code END,
	external_id = coalesce(o.external, r.external_id),
	unknown_since = CASE WHEN o.unsure = 1 THEN coalesce(r.unknown_since, r.updated_at) ELSE r.unknown_since END,
	sent_at = CASE WHEN o.status = 'sent' THEN {now} END,
	dead_at = CASE WHEN o.status IN ('discarded', 'failed', 'expired') THEN {now} END,
	updated_at = {now}
FROM o
WHERE r.id {among {ids} among} AND r.id = o.record_id AND r.lease_token = o.token
RETURNING id`

	// allIDs are the records that recordSQL writes; freeIDs are those of them that nobody has locked, for when waiting
	// for a lock has taken too long: one locked record must not hold up the others.
	allIDs  = `SELECT record_id FROM o`
	freeIDs = `SELECT f.id FROM {table} AS f WHERE f.id {among SELECT record_id FROM o among} {skip locked}`

	// deleteSQL is recordSQL for what was sent, where sent records are not kept.
	deleteSQL = `
WITH o AS MATERIALIZED (SELECT * FROM {outcomes})
DELETE FROM {table}
WHERE id {among {ids} among} AND (id, lease_token) IN (SELECT record_id, token FROM o)
RETURNING id`

	// stateSQL reads where records stand; WITH for the same reason as in waitingSQL.
	stateSQL = `
WITH o AS MATERIALIZED (SELECT * FROM {outcomes})
SELECT id, status, attempts, coalesce(lease_token, ''), coalesce(last_error_category, ''), coalesce(last_error_code, '')
FROM {table} WHERE id {among SELECT record_id FROM o among}`
)

// newStore validates p and prepares its statements for db's engine.
func newStore(db *gorm.DB, p Plugin) (*store, error) {
	p = p.withDefaults()
	if err := p.validate(); err != nil {
		return nil, err
	}
	d, err := p.engine(db.Dialector.Name())
	if err != nil {
		return nil, err
	}
	s := &store{Plugin: p, dialect: d}
	names := s.holes()
	s.insertSQL = bind(db, d.render(insertSQL+givingID, names...))
	s.insertKeysSQL = bind(db, d.render(insertSQL+unlessTaken+givingBoth, names...))
	s.insertOneSQL = bind(db, d.render(insertOneSQL+givingID, names...))
	s.insertOneKeySQL = bind(db, d.render(insertOneSQL+unlessTaken+givingID, names...))
	s.existingSQL = bind(db, d.render(existingSQL, names...))
	rules := strings.NewReplacer("{live}", liveSQL, "{late}", lateSQL, "{due}", dueSQL, "{unanswered}", `'lease_expired'`)
	once := strings.NewReplacer("{live}", liveOnceSQL, "{late}", lateOnceSQL, "{due}", dueSQL, "{unanswered}", `'outcome_unknown'`)
	s.waitingSQL, s.claimSQL = d.render(rules.Replace(waitingSQL), names...), d.render(rules.Replace(claimSQL), names...)
	s.claimOnceSQL = d.render(once.Replace(claimSQL), names...)
	all, free := strings.NewReplacer("{ids}", allIDs), strings.NewReplacer("{ids}", freeIDs)
	s.recordSQL, s.recordFreeSQL = d.render(all.Replace(recordSQL), names...), d.render(free.Replace(recordSQL), names...)
	s.deleteSQL, s.deleteFreeSQL = d.render(all.Replace(deleteSQL), names...), d.render(free.Replace(deleteSQL), names...)
	s.stateSQL = d.render(stateSQL, names...)
	return s, nil
}

// holes are the names that a statement leaves open.
func (s *store) holes() []string {
	return []string{
		"{table}", s.quote(s.Table), "{processed}", s.quote(s.processedTable()),
		"{tenant}", s.quote(s.Tenant.Name), "{tenant type}", s.columnType(s.Tenant.Type),
	}
}

// waiting gives those of the topics that have something to claim.
func (s *store) waiting(db *gorm.DB, topics []string) (map[string]bool, error) {
	param, err := json.Marshal(topics)
	if err != nil {
		return nil, err
	}
	found := map[string]bool{}
	err = collect(db, func(rows *sql.Rows) error {
		var topic string
		err := rows.Scan(&topic)
		found[topic] = true
		return err
	}, s.waitingSQL, string(param))
	return found, err
}

// claim is the lease a worker holds on a record.
type claim struct {
	Delivery
	token  string
	due    time.Time
	closed Status // expired or failed if the claim closed it, its time passed or its attempts spent: nothing to deliver

	asked time.Time     // on this process's clock, before the lease began
	terms *terms        // what was in force then
	life  sql.NullInt64 // microseconds from the claim until it expires, if it ever does
}

// lease says what is claimed and for whom.
type lease struct {
	topic string
	limit int
	floor time.Time // skip what was due before; zero: from the beginning
	owner string
	term  time.Duration
	once  bool // the topic is delivered at most once
}

// claim leases up to l.limit due records of a topic under a new token, oldest first, and gives them in that order.
func (s *store) claim(db *gorm.DB, l lease) ([]*claim, error) {
	skipLocked := clause.Clause{
		Name: "FOR", Expression: clause.Locking{Strength: "UPDATE", Options: "SKIP LOCKED"},
		Builder: db.ClauseBuilders["FOR"], // an engine without row locks leaves it out
	}
	token, err := newToken()
	if err != nil {
		return nil, err
	}
	statement := s.claimSQL
	if l.once {
		statement = s.claimOnceSQL
	}
	claims := make([]*claim, 0, l.limit)
	var row claimRow
	err = collect(db, func(rows *sql.Rows) error {
		c, err := row.scan(rows)
		c.token, c.Topic = token, l.topic
		claims = append(claims, c)
		return err
	}, statement, token, l.owner, l.term.Microseconds(), l.topic, s.time(l.floor), l.limit, skipLocked)
	if err != nil {
		return nil, err
	}
	sort.Slice(claims, func(i, j int) bool { // an UPDATE gives its rows back in no order
		if a, b := claims[i], claims[j]; !a.due.Equal(b.due) {
			return a.due.Before(b.due)
		}
		return claims[i].ID < claims[j].ID
	})
	return claims, nil
}

// newToken makes what proves one claim: 96 random bits, in few characters, since a claimed row has to fit beside the
// row it was.
func newToken() (string, error) {
	var bits [12]byte
	_, err := rand.Read(bits[:])
	return base64.RawURLEncoding.EncodeToString(bits[:]), err
}

// outcome is what the recorder writes for a claim.
type outcome struct {
	ID       int64   `json:"record_id"`
	Token    string  `json:"token"`
	Status   Status  `json:"status"`
	Refund   int     `json:"refund"`             // attempts to give back: 1 for a release
	Unsure   int     `json:"unsure,omitempty"`   // 1: the provider may have accepted it all the same
	Delay    *int64  `json:"delay,omitempty"`    // microseconds until due again; nil keeps the place in the queue
	Category *string `json:"category,omitempty"` // nil: no failure
	Code     string  `json:"code,omitempty"`
	External *string `json:"external,omitempty"`

	claim *claim
	held  bool // it has been refused before
}

// record writes the outcomes whose leases still stand, and gives back the ids it wrote: in one statement, or two where
// sent records are deleted. With free it leaves out those that somebody else has locked.
func (s *store) record(db *gorm.DB, outcomes []outcome, free bool) (map[int64]bool, error) {
	written := make(map[int64]bool, len(outcomes))
	recordSQL, deleteSQL := s.recordSQL, s.deleteSQL
	if free {
		recordSQL, deleteSQL = s.recordFreeSQL, s.deleteFreeSQL
	}
	if !s.DeleteSent {
		return written, s.write(db, recordSQL, outcomes, written)
	}
	var sent, kept []outcome
	for _, o := range outcomes {
		if o.Status == StatusSent {
			sent = append(sent, o)
		} else {
			kept = append(kept, o)
		}
	}
	err := s.write(db, deleteSQL, sent, written)
	return written, errors.Join(err, s.write(db, recordSQL, kept, written))
}

// write runs a statement over outcomes and marks the ids that it gives back.
func (s *store) write(db *gorm.DB, statement string, outcomes []outcome, written map[int64]bool) error {
	if len(outcomes) == 0 {
		return nil
	}
	param, err := json.Marshal(outcomes)
	if err != nil {
		return err
	}
	return collect(db, func(rows *sql.Rows) error {
		var id int64
		err := rows.Scan(&id)
		written[id] = true
		return err
	}, statement, string(param))
}

// fate is where an outcome stands that a write has not met.
type fate int

const (
	fateLost    fate = iota // another claim owns the record, or has decided about it
	fateWritten             // it stands in the table: an earlier write was carried out and only its answer was lost
	fateOpen                // its lease stands, and it is still to be written
)

// fates looks at outcomes that a write has not met. The number of attempts tells our write from one after a later claim,
// and the error from a later claim that closed the record without counting one.
func (s *store) fates(db *gorm.DB, outcomes []outcome) (map[int64]fate, error) {
	param, err := json.Marshal(outcomes)
	if err != nil {
		return nil, err
	}
	states := map[int64]state{}
	err = collect(db, func(rows *sql.Rows) error {
		var id int64
		var found state
		err := rows.Scan(&id, &found.status, &found.attempts, &found.token, &found.category, &found.code)
		states[id] = found
		return err
	}, s.stateSQL, string(param))
	fates := map[int64]fate{}
	for _, o := range outcomes {
		found, kept := states[o.ID]
		switch {
		case kept && found.token == o.Token:
			fates[o.ID] = fateOpen
		case s.DeleteSent && !kept && o.Status == StatusSent, found.written(o):
			fates[o.ID] = fateWritten
		}
	}
	return fates, err
}

// state is where a record stands.
type state struct {
	status                Status
	attempts              int
	token, category, code string
}

// written reports whether it is what writing the outcome makes of a record.
func (s state) written(o outcome) bool {
	if s.status != o.Status || s.attempts != o.claim.Attempt-o.Refund || s.token != "" {
		return false
	}
	return o.Category == nil || s.category == *o.Category && s.code == o.Code
}
