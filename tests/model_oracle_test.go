package tests

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/gorm-outbox/outbox"
)

// The oracle is the outbox in memory, written down as simply as the documentation says it: no SQL, no concurrency, and
// nothing of package policy. Its time is a duration since the model began, and moves only when a test says so.

// Terms of every processor of the model. All times are whole or half hours, so that what a run takes on the real clock,
// less than a second, never decides anything.
const (
	modelLease    = 90 * time.Minute
	modelBackoff  = time.Hour // doubling
	modelMost     = 8 * time.Hour
	modelAttempts = 4 // the plugin's MaxAttempts

	never = time.Duration(math.MinInt64) // in the place of a time: there is none
)

// modelRecord is what the oracle knows of a record.
type modelRecord struct {
	receipt                  outbox.Receipt
	topic, kind, tenant, key string
	once                     bool

	status                 outbox.Status
	attempts, most         int
	due, expires           time.Duration
	created, ended         time.Duration
	claimed, leasedUntil   time.Duration
	holder                 string // the owner of the claim that holds it
	category, code         string
	external               string
	unknownSince           time.Duration
	reported, reportedCode string
	reportedAt             time.Time

	// What the table showed last. Only the order in which records are taken is read off it, since times that the model
	// holds to be the same differ by microseconds.
	seenDue, seenEnd time.Time
	moved            bool // due has changed since then
}

// model is the oracle's table, in the order of ids.
type model struct {
	now        time.Duration
	deleteSent bool
	records    []*modelRecord
	consumed   map[string]time.Duration // consumer and message → when
}

// clone is what a rollback goes back to.
func (m *model) clone() *model {
	c := *m
	c.consumed = maps.Clone(m.consumed)
	c.records = make([]*modelRecord, len(m.records))
	for i, r := range m.records {
		record := *r
		c.records[i] = &record
	}
	return &c
}

// find gives the record with an id; nil if there is none any more.
func (m *model) find(id int64) *modelRecord {
	for _, r := range m.records {
		if r.receipt.ID == id {
			return r
		}
	}
	return nil
}

// byKey gives the record that holds a key.
func (m *model) byKey(tenant, key string) *modelRecord {
	for _, r := range m.records {
		if key != "" && r.key == key && r.tenant == tenant {
			return r
		}
	}
	return nil
}

func (m *model) remove(gone func(*modelRecord) bool) { m.records = slices.DeleteFunc(m.records, gone) }

// verdict is what a claim makes of a record.
type verdict int

const (
	leave verdict = iota
	deliver
	expire
	fail
)

func (m *model) verdict(r *modelRecord) verdict {
	abandoned := r.status == outbox.StatusProcessing
	switch {
	case r.status.Terminal() || r.due > m.now || abandoned && r.leasedUntil > m.now:
		return leave
	case abandoned && r.once:
		return fail
	case r.expires != never && r.expires <= m.now:
		return expire
	case r.attempts >= r.most:
		return fail
	default:
		return deliver
	}
}

// due gives the records of a topic that a claim would take or close, first those that it would meet first.
func (m *model) due(topic string) []*modelRecord {
	var due []*modelRecord
	for _, r := range m.records {
		if r.topic == topic && m.verdict(r) != leave {
			due = append(due, r)
		}
	}
	slices.SortStableFunc(due, func(a, b *modelRecord) int { return a.seenDue.Compare(b.seenDue) })
	return due
}

// claim takes up to limit records of a topic, and closes those on the way that are not to be delivered. It goes on after
// a batch in which some were closed.
func (m *model) claim(topic, owner string, limit int, s *outbox.Summary) (taken []*modelRecord) {
	for before := -1; len(taken) < limit && (len(taken) == 0 || len(taken) != before); {
		before = len(taken)
		batch := m.due(topic)
		full := len(batch) >= limit-len(taken)
		taken = append(taken, m.claimBatch(batch[:min(len(batch), limit-len(taken))], owner, s)...)
		if !full {
			break
		}
	}
	return taken
}

// claimBatch is one claim statement.
func (m *model) claimBatch(batch []*modelRecord, owner string, s *outbox.Summary) (taken []*modelRecord) {
	for _, r := range batch {
		v := m.verdict(r)
		abandoned := r.status == outbox.StatusProcessing
		if abandoned && r.unknownSince == never { // its worker may have sent it
			r.unknownSince = r.claimed
		}
		s.Claimed++
		switch {
		case v == deliver:
			r.status, r.holder, r.claimed, r.leasedUntil = outbox.StatusProcessing, owner, m.now, m.now+modelLease
			r.attempts++
			taken = append(taken, r)
		case v == expire:
			s.Expired++
			m.end(r, outbox.StatusExpired)
		default:
			s.Failed++
			r.category, r.code = "attempts_exhausted", "attempts_exhausted"
			if abandoned {
				r.category, r.code = "lease_expired", "lease_expired"
			}
			if abandoned && r.once {
				r.category = "outcome_unknown"
			}
			m.end(r, outbox.StatusFailed)
		}
	}
	return taken
}

func (m *model) end(r *modelRecord, status outbox.Status) {
	r.status, r.ended, r.holder, r.leasedUntil = status, m.now, "", never
}

// wait makes a record pending, due after a while.
func (m *model) wait(r *modelRecord, d time.Duration) {
	r.status, r.due, r.moved, r.holder, r.leasedUntil = outbox.StatusPending, m.now+d, true, "", never
}

// release gives a claim back that came to no attempt. Its place in the queue is kept.
func (m *model) release(id int64, owner string, s *outbox.Summary) {
	r := m.held(id, owner)
	if r == nil {
		s.Lost++
		return
	}
	s.Released++
	due, moved := r.due, r.moved
	m.wait(r, 0)
	r.due, r.moved = due, moved
	r.attempts--
}

// held gives a record if the owner's claim still holds it: the fence. It is nil if another claim has decided about the
// record meanwhile, or holds it.
func (m *model) held(id int64, owner string) *modelRecord {
	if r := m.find(id); r != nil && r.holder == owner {
		return r
	}
	return nil
}

// settle is what becomes of a claim when its transport has answered.
func (m *model) settle(id int64, owner string, a answer, s *outbox.Summary) {
	r := m.held(id, owner)
	switch {
	case a.died: // its worker never wrote what came of it
		s.Errors++
		return
	case r == nil:
		s.Lost++
		return
	case a.category == "":
		m.sent(r, a, s)
		return
	}
	r.category, r.code = a.category, a.code
	if a.unknown && !(a.unattempted && !a.permanent) && r.unknownSince == never {
		r.unknownSince = r.claimed
	}
	switch {
	case a.permanent:
		s.Discarded++
		m.end(r, outbox.StatusDiscarded)
	case a.unattempted:
		s.Released++
		r.attempts--
		m.wait(r, a.retryAfter)
	case r.once && (a.unknown || a.unsaid):
		s.Failed++
		r.category, r.code = "outcome_unknown", cmp.Or(a.code, a.category)
		if r.unknownSince == never {
			r.unknownSince = r.claimed
		}
		m.end(r, outbox.StatusFailed)
	case r.attempts >= r.most:
		s.Failed++
		m.end(r, outbox.StatusFailed)
	default:
		s.Retried++
		m.wait(r, max(min(modelBackoff<<(r.attempts-1), modelMost), a.retryAfter))
	}
}

func (m *model) sent(r *modelRecord, a answer, s *outbox.Summary) {
	s.Sent++
	m.end(r, outbox.StatusSent)
	r.external = cmp.Or(a.external, r.external)
	if m.deleteSent {
		m.remove(func(other *modelRecord) bool { return other == r })
	}
}

// redrive revives the dead ones among the selected, those that died first before others.
func (m *model) redrive(selects func(*modelRecord) bool, limit int, spacing time.Duration, dryRun bool) (n int64) {
	var dead []*modelRecord
	for _, r := range m.records {
		if (r.status == outbox.StatusDiscarded || r.status == outbox.StatusFailed) && selects(r) {
			dead = append(dead, r)
		}
	}
	slices.SortStableFunc(dead, func(a, b *modelRecord) int { return a.seenEnd.Compare(b.seenEnd) })
	if limit > 0 {
		dead = dead[:min(limit, len(dead))]
	}
	for i, r := range dead {
		if dryRun {
			continue
		}
		m.wait(r, time.Duration(i)*spacing)
		r.attempts, r.ended, r.unknownSince = 0, never, never
		r.reported, r.reportedCode, r.reportedAt = "", "", time.Time{}
	}
	return int64(len(dead))
}

// cancel withdraws those of the selected that no worker has.
func (m *model) cancel(selects func(*modelRecord) bool) (n int64) {
	for _, r := range m.records {
		if r.status == outbox.StatusPending && selects(r) {
			m.end(r, outbox.StatusCancelled)
			n++
		}
	}
	return n
}

// purge deletes those of the selected that ended more than an age ago.
func (m *model) purge(selects func(*modelRecord) bool, age time.Duration, dryRun bool) (n int64) {
	old := func(r *modelRecord) bool { return r.status.Terminal() && r.ended < m.now-age && selects(r) }
	for _, r := range m.records {
		if old(r) {
			n++
		}
	}
	if !dryRun {
		m.remove(old)
	}
	return n
}

// report notes a provider's receipt on the selected, unless they have a later one.
func (m *model) report(selects func(*modelRecord) bool, p outbox.ProviderReceipt) (found bool) {
	for _, r := range m.records {
		if !selects(r) {
			continue
		}
		found = true
		if !r.reportedAt.After(p.At) {
			r.reported, r.reportedCode, r.reportedAt = string(p.Status), p.Code, p.At
		}
	}
	return found
}
