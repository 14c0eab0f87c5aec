package tests

import (
	"cmp"
	"math"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// machine is one run: the database, the oracle, and what goes on besides.
type machine struct {
	g      *modelRig
	oracle *model
	names  int                  // of messages and rounds so far
	held   [heldAtOnce]*heldJob // rounds whose transports have not answered yet
}

func newMachine(t *rapid.T, g *modelRig) *machine {
	g.reset(t)
	g.happened["runs"]++
	return &machine{g: g, oracle: &model{
		deleteSent: rapid.Bool().Draw(t, "DeleteSent"), consumed: map[string]time.Duration{},
	}}
}

// actions are what can happen.
func (m *machine) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"":               m.check,
		"transaction":    m.transaction,
		"transaction 2":  m.transaction, // what has a number is the same once more, to be more frequent
		"round":          m.round,
		"round 2":        m.round,
		"faulty round":   m.faultyRound,
		"hold a round":   m.hold,
		"let a round go": m.letGo,
		"time passes":    m.elapse,
		"time passes 2":  m.elapse,
		"redrive":        m.redrive,
		"purge":          m.purge,
		"look":           m.look,
	}
}

// note counts what happened.
func (m *machine) note(what string, n int) { m.g.happened[what] += n }

// view is a record as the oracle and the table must agree on it. Times are in half hours from now.
type view struct {
	ID                                  int64
	MessageID, Topic, Type, Tenant, Key string
	Status                              outbox.Status
	Attempts, MaxAttempts               int
	Due, Expires, Created, Sent, Dead   int
	LeasedUntil, UnknownSince           int
	Owner, Category, Code, External     string
	Receipt, ReceiptCode, ReceiptAt     string
	TokenGiven, Sound                   bool
	PolicySays                          verdict
}

const noTime = math.MinInt

func halfHours(d time.Duration) int { return int(d.Round(30*time.Minute) / (30 * time.Minute)) }

// check holds the whole table against the oracle.
func (m *machine) check(t *rapid.T) {
	m.note("steps", 1)
	var rows []outbox.Record
	require.NoError(t, m.g.app.Order("id").Find(&rows).Error)
	now := time.Now()
	want, got := []view{}, []view{}
	for _, r := range m.oracle.records {
		want = append(want, m.oracle.view(r))
	}
	for _, row := range rows {
		got = append(got, viewOf(row, now))
	}
	require.Equal(t, want, got)
	for i, r := range m.oracle.records {
		if row := rows[i]; r.moved {
			r.moved = false
		} else {
			require.True(t, r.seenDue.Equal(row.DueAt), "record %d lost its place in the queue: due at %v, before %v", row.ID, row.DueAt, r.seenDue)
		}
		r.seenDue, r.seenEnd = rows[i].DueAt, time.Time{}
		if rows[i].DeadAt != nil {
			r.seenEnd = *rows[i].DeadAt
		}
	}
	requireTokens(t, rows)
	var markers int64
	require.NoError(t, m.g.app.Table("outbox_processed").Count(&markers).Error)
	require.EqualValues(t, len(m.oracle.consumed), markers)
}

// requireTokens holds that different claims have different tokens.
func requireTokens(t require.TestingT, rows []outbox.Record) {
	owners := map[string]string{}
	for _, row := range rows {
		if row.LeaseToken == nil {
			continue
		}
		owner, known := owners[*row.LeaseToken]
		require.True(t, !known || owner == *row.LeaseOwner, "two claims have one token")
		owners[*row.LeaseToken] = *row.LeaseOwner
	}
}

// view is what the oracle expects of a record.
func (m *model) view(r *modelRecord) view {
	at := func(d time.Duration) int {
		if d == never {
			return noTime
		}
		return halfHours(d - m.now)
	}
	v := view{
		ID: r.receipt.ID, MessageID: r.receipt.MessageID, Topic: r.topic, Type: r.kind, Tenant: r.tenant, Key: r.key,
		Status: r.status, Attempts: r.attempts, MaxAttempts: r.most,
		Due: at(r.due), Expires: at(r.expires), Created: at(r.created), Sent: noTime, Dead: noTime,
		LeasedUntil: at(r.leasedUntil), UnknownSince: at(r.unknownSince),
		Owner: r.holder, Category: r.category, Code: r.code, External: r.external,
		Receipt: r.reported, ReceiptCode: r.reportedCode,
		TokenGiven: r.status == outbox.StatusProcessing, Sound: true, PolicySays: m.verdict(r),
	}
	if !r.reportedAt.IsZero() {
		v.ReceiptAt = r.reportedAt.UTC().String()
	}
	if r.status == outbox.StatusSent {
		v.Sent = at(r.ended)
	} else {
		v.Dead = at(r.ended)
	}
	return v
}

// viewOf is what the table says.
func viewOf(row outbox.Record, now time.Time) view {
	at := func(t *time.Time) int {
		if t == nil {
			return noTime
		}
		return halfHours(t.Sub(now))
	}
	v := view{
		ID: row.ID, MessageID: row.MessageID, Topic: row.Topic, Type: row.Type, Tenant: row.TenantID, Key: value(row.IdempotencyKey),
		Status: row.Status, Attempts: row.Attempts, MaxAttempts: row.MaxAttempts,
		Due: at(&row.DueAt), Expires: at(row.ExpiresAt), Created: at(&row.CreatedAt), Sent: at(row.SentAt), Dead: at(row.DeadAt),
		LeasedUntil: at(row.LeasedUntil), UnknownSince: at(row.UnknownSince),
		Owner: value(row.LeaseOwner), Category: value(row.LastErrorCategory), Code: value(row.LastErrorCode), External: value(row.ExternalID),
		Receipt: string(value(row.ReceiptStatus)), ReceiptCode: value(row.ReceiptCode),
		TokenGiven: row.LeaseToken != nil, PolicySays: policySays(row, now),
	}
	if row.ReceiptAt != nil {
		v.ReceiptAt = row.ReceiptAt.UTC().String()
	}
	v.Sound = row.Attempts <= row.MaxAttempts && !row.UpdatedAt.Before(row.CreatedAt)
	return v
}

// policySays is what policy.Decide, the claim rule in Go, makes of a row.
func policySays(row outbox.Record, now time.Time) verdict {
	state := policy.State{
		Status: row.Status, Attempts: row.Attempts, MaxAttempts: row.MaxAttempts, DueAt: row.DueAt,
		LeasedUntil: value(row.LeasedUntil), ExpiresAt: value(row.ExpiresAt), AtMostOnce: row.Topic == onceTopic,
	}
	switch policy.Decide(state, now) {
	case policy.Send, policy.Reclaim:
		return deliver
	case policy.Discard:
		return fail
	case policy.Expire:
		return expire
	default:
		return leave
	}
}

// value is what p points to, or nothing.
func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// elapse has time pass.
func (m *machine) elapse(t *rapid.T) {
	d := time.Duration(rapid.IntRange(1, 4).Draw(t, "hours")) * time.Hour
	m.g.elapse(t, d)
	m.oracle.now += d
	for _, r := range m.oracle.records {
		r.seenDue, r.seenEnd = r.seenDue.Add(-d), r.seenEnd.Add(-d)
	}
}

// redrive revives dead records.
func (m *machine) redrive(t *rapid.T) {
	filter, selects := m.filter(t)
	filter.Limit = rapid.SampledFrom([]int{0, 0, 1, 2}).Draw(t, "limit")
	filter.DryRun = rapid.IntRange(0, 4).Draw(t, "dry run") == 4
	spacing := time.Duration(0)
	if rapid.Bool().Draw(t, "at a rate") {
		spacing, filter.Rate = 1000*time.Second, 0.001
	}
	want := m.oracle.redrive(selects, filter.Limit, spacing, filter.DryRun)
	got, err := outbox.Redrive(m.g.app, filter)
	require.NoError(t, err)
	require.Equal(t, want, got)
	m.note("redriven", int(got))
}

// purge deletes old records.
func (m *machine) purge(t *rapid.T) {
	age := time.Duration(rapid.IntRange(0, 4).Draw(t, "age"))*time.Hour + 30*time.Minute
	o := outbox.PurgeOptions{
		OlderThan: age, DryRun: rapid.IntRange(0, 4).Draw(t, "dry run") == 4,
		ChunkSize: rapid.SampledFrom([]int{0, 1, 7}).Draw(t, "chunk"),
		Topic:     rapid.SampledFrom([]string{"", "email", onceTopic}).Draw(t, "topic"),
		TenantID:  rapid.SampledFrom([]string{"", "", "a"}).Draw(t, "tenant"),
	}
	if rapid.Bool().Draw(t, "sent ones alone") {
		o.Statuses = []outbox.Status{outbox.StatusSent}
	}
	want := m.oracle.purge(func(r *modelRecord) bool {
		return r.topic == cmp.Or(o.Topic, r.topic) && r.tenant == cmp.Or(o.TenantID, r.tenant) &&
			(o.Statuses == nil || r.status == outbox.StatusSent)
	}, age, o.DryRun)
	got, err := outbox.Purge(m.g.app, o)
	require.NoError(t, err)
	require.Equal(t, want, got)
	m.note("purged", int(got))
}

// purgeConsumed deletes old markers of the inbox.
func (m *machine) purgeConsumed(t *rapid.T) {
	age := time.Duration(rapid.IntRange(0, 3).Draw(t, "age"))*time.Hour + 30*time.Minute
	want := 0
	for key, at := range m.oracle.consumed {
		if at < m.oracle.now-age {
			delete(m.oracle.consumed, key)
			want++
		}
	}
	got, err := outbox.PurgeConsumed(m.g.app, age)
	require.NoError(t, err)
	require.EqualValues(t, want, got)
}

// look compares the counts that operators look at.
func (m *machine) look(t *rapid.T) {
	m.purgeConsumed(t)
	want := map[string]outbox.TopicStats{}
	for _, r := range m.oracle.records {
		s := want[r.topic]
		switch {
		case r.status == outbox.StatusPending && r.due <= m.oracle.now:
			s.Due++
			s.OldestDue = max(s.OldestDue, m.oracle.now-r.due)
		case r.status == outbox.StatusPending:
			s.Scheduled++
		case r.status == outbox.StatusProcessing && r.leasedUntil > m.oracle.now:
			s.Processing++
		case r.status == outbox.StatusProcessing:
			s.LeaseExpired++
		case r.status == outbox.StatusSent && r.created == m.oracle.now && r.ended == m.oracle.now:
			s.Sent++
		case r.status == outbox.StatusDiscarded:
			s.Discarded++
		case r.status == outbox.StatusFailed:
			s.Failed++
		default:
			continue
		}
		s.Topic = r.topic
		want[r.topic] = s
	}
	stats, err := outbox.Stats(m.g.app)
	require.NoError(t, err)
	got := map[string]outbox.TopicStats{}
	for _, s := range stats {
		s.OldestDue = s.OldestDue.Round(200 * time.Second) // less what the run has taken itself
		got[s.Topic] = s
	}
	require.Equal(t, want, got)
}

// stop ends the rounds that are still held, so that nothing of a run reaches the next.
func (m *machine) stop() {
	for _, job := range m.held {
		if job != nil {
			job.abandon()
		}
	}
}
