package tests

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
)

// With these ways to join and to sort switched off, the planner runs the subquery of "id IN (SELECT … LIMIT n)" once for
// each row of the table, and each run locks n more.
func TestC07_OneClaimNeverTakesMoreThanItsLimit(t *testing.T) {
	t.Parallel()
	off := []option{}
	for _, way := range []string{"hashjoin", "mergejoin", "hashagg", "sort", "material", "bitmapscan"} {
		off = append(off, setting("enable_"+way, "off"))
	}
	for name, options := range map[string][]option{
		"in the order of an index": off,
		"without indexes":          append(off[:len(off):len(off)], setting("enable_indexscan", "off"), setting("enable_indexonlyscan", "off")),
		"generic plan":             append(off[:len(off):len(off)], setting("plan_cache_mode", "force_generic_plan")),
		"as the server likes":      nil,
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.exec("ALTER TABLE outbox SET (autovacuum_enabled = off)") // which would analyse it
			r.enqueue(20, outbox.Message{})
			g := newGate(t, accept)
			p := r.processor(r.open(options...), outbox.ProcessorConfig{
				Transports: map[string]outbox.Transport{orders: g}, BatchSize: 3,
			})

			summary := r.round(t.Context(), p)
			for range 3 {
				wait(r, "a delivery", g.entered)
			}
			require.Equal(t, 3, r.count("status = 'processing'"), "leased by one claim")
			require.Equal(t, 17, r.count("status = 'pending' AND attempts = 0 AND lease_token IS NULL"))

			g.open()
			require.Equal(t, outbox.Summary{Claimed: 3, Sent: 3}, wait(r, "the round", summary))
			require.Equal(t, 3, r.count("status = 'sent'"), "the record statement writes no more than it should, either")
		})
	}
}

func TestC08_EachMessageIsDeliveredOnceByFourProcesses(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	receipts := r.enqueue(1000, outbox.Message{})
	j := newJournal(t)
	var processes []*workerProcess
	for n := range 4 {
		processes = append(processes, r.startWorker(workerConfig{
			Journal: j.path(), Owner: fmt.Sprintf("worker-%d", n), BatchSize: 50, Concurrency: 8, Poll: 50 * time.Millisecond,
		}))
	}

	r.await("1,000 messages sent", func() bool { return r.count("status = 'sent'") == 1000 })
	for _, c := range processes {
		c.stop()
	}

	j.requireOnceEach(t, receipts)
	j.requireNeverTwoAtATime(t)
	require.Equal(t, 1000, r.count("status = 'sent' AND attempts = 1 AND lease_token IS NULL AND lease_owner IS NULL"))
}

func TestTwoProcessesDrainABacklogExactlyOnce(t *testing.T) {
	t.Parallel()
	const backlog = 5000
	r := newRig(t)
	var receipts []outbox.Receipt
	for range 5 {
		receipts = append(receipts, r.enqueue(backlog/5, outbox.Message{})...)
	}
	j := newJournal(t)
	var processes []*workerProcess
	for n := range 2 {
		processes = append(processes, r.startWorker(workerConfig{
			Journal: j.path(), Owner: fmt.Sprintf("worker-%d", n), BatchSize: 100, Concurrency: 20, Poll: 50 * time.Millisecond,
		}))
	}

	r.await("the backlog sent", func() bool { return r.count("status = 'sent'") == backlog })
	for _, c := range processes {
		c.stop()
	}

	j.requireOnceEach(t, receipts)
	require.Equal(t, backlog, r.count("status = 'sent' AND attempts = 1"))
	shares := map[string]int{}
	for _, e := range j.events(t) {
		shares[e.who]++
	}
	require.Len(t, shares, 2, "both had a share")
}

func TestClaimsNeverOverlap(t *testing.T) {
	t.Parallel()
	const claimers, batch, backlog = 8, 50, 300
	r := newRig(t)
	r.enqueue(backlog, outbox.Message{})
	g := newGate(t, accept)
	var rounds []<-chan outbox.Summary
	for range claimers {
		p := r.processor(r.open(), outbox.ProcessorConfig{
			Transports: map[string]outbox.Transport{orders: g}, BatchSize: batch, Concurrency: batch,
		})
		rounds = append(rounds, r.round(t.Context(), p))
	}

	seen := map[int64]bool{}
	for range backlog {
		d := wait(r, "a delivery", g.entered)
		require.False(t, seen[d.ID], "message %d was claimed twice", d.ID)
		require.Equal(t, 1, d.Attempt)
		seen[d.ID] = true
	}
	g.open()
	claimed := 0
	for _, summaries := range rounds {
		s := wait(r, "a round", summaries)
		require.LessOrEqual(t, s.Claimed, batch)
		require.Equal(t, s.Claimed, s.Sent)
		claimed += s.Claimed
	}
	require.Equal(t, backlog, claimed)
	require.Empty(t, g.entered)
}

// The claim rule is written twice, in SQL and in policy.Decide. With the database's clock standing still, each state of
// a record, the ones at the very bounds included, must mean the same to both.
func TestC10_TheClaimRuleInSQLIsPolicyDecide(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	r := newRig(t)
	r.exec(`CREATE FUNCTION public.statement_timestamp() RETURNS timestamptz STABLE LANGUAGE sql
		AS $$ SELECT timestamptz '2026-03-01 12:00:00+00' $$`)
	states := insertStates(r, now)
	j := newJournal(t)
	p := r.processor(r.open(setting("search_path", "public, pg_catalog")), outbox.ProcessorConfig{
		Transports: map[string]outbox.Transport{orders: j.transport("worker", accept)}, BatchSize: 1000,
	})
	before := r.records()

	summary := p.ProcessOnce(t.Context())

	begun := j.begun(t)
	for i, after := range r.records() {
		state := states[i]
		switch decision := policy.Decide(state, now); decision {
		case policy.Send, policy.Reclaim:
			require.Equal(t, 1, begun[after.ID], "%+v: %s", state, decision)
			require.Equal(t, outbox.StatusSent, after.Status, "%+v", state)
			require.Equal(t, state.Attempts+1, after.Attempts, "%+v", state)
		case policy.Discard:
			require.Zero(t, begun[after.ID], "%+v: %s", state, decision)
			require.Equal(t, outbox.StatusFailed, after.Status, "%+v", state)
			code := map[policy.Status]string{policy.StatusPending: "attempts_exhausted", policy.StatusProcessing: "lease_expired"}
			require.Equal(t, code[state.Status], *after.LastErrorCode, "%+v", state)
		case policy.Expire:
			require.Zero(t, begun[after.ID], "%+v: %s", state, decision)
			require.Equal(t, outbox.StatusExpired, after.Status, "%+v", state)
		default:
			require.Equal(t, before[i], after, "%+v: %s", state, decision)
		}
	}
	require.Equal(t, summary.Claimed, summary.Sent+summary.Failed+summary.Expired)
	require.Positive(t, summary.Failed)
	require.Positive(t, summary.Expired)
}

// insertStates writes a record for each combination of what the claim rule looks at, in the order of the ids.
func insertStates(r *rig, now time.Time) []policy.State {
	r.Helper()
	times := []time.Time{now.Add(-time.Microsecond), now, now.Add(time.Microsecond)}
	maybe := append(times, time.Time{})
	lives := []time.Time{times[0], now, now.Add(time.Hour), {}} // of a life of a microsecond nothing would be left to send in
	var states []policy.State
	for _, status := range []policy.Status{policy.StatusPending, policy.StatusProcessing} {
		for _, attempts := range []int{0, 1, 2, 3, 4} {
			for _, due := range times {
				for _, until := range maybe {
					for _, expires := range lives {
						states = append(states, policy.State{
							Status: status, Attempts: attempts, MaxAttempts: 3, DueAt: due, LeasedUntil: until, ExpiresAt: expires,
						})
					}
				}
			}
		}
	}
	for _, status := range []policy.Status{
		policy.StatusSent, policy.StatusDiscarded, policy.StatusFailed, policy.StatusCancelled, policy.StatusExpired,
	} {
		states = append(states, policy.State{Status: status, Attempts: 1, MaxAttempts: 3, DueAt: times[0]})
	}
	for _, s := range states {
		var sent, dead *time.Time
		switch {
		case s.Status == policy.StatusSent:
			sent = &now
		case s.Status.Terminal():
			dead = &now
		}
		r.exec(`INSERT INTO outbox (tenant_id, topic, type, recipient, payload, message_id, status, attempts, max_attempts,
			due_at, leased_until, expires_at, sent_at, dead_at, created_at, updated_at)
			VALUES ('', ?, '', '', '{}', gen_random_uuid(), ?, ?, ?, ?, ?, ?, ?, ?, now(), now())`,
			orders, s.Status, s.Attempts, s.MaxAttempts, s.DueAt, pointer(s.LeasedUntil), pointer(s.ExpiresAt), sent, dead)
	}
	return states
}

func pointer(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func TestABacklogOfOneTopicKeepsNoOtherWaiting(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.fill("bulk", 10_000, "due")
	r.enqueue(10, outbox.Message{Topic: "urgent"})
	var bulk, urgent atomic.Int64
	p := r.processor(r.open(), outbox.ProcessorConfig{Transports: map[string]outbox.Transport{
		"bulk":   counting(&bulk),
		"urgent": counting(&urgent),
		"absent": counting(new(atomic.Int64)),
	}})

	summary := p.ProcessOnce(t.Context())

	require.EqualValues(t, 10, urgent.Load(), "delivered in the first round, though enqueued last")
	require.EqualValues(t, 90, bulk.Load(), "what the others do not need goes to the backlog")
	require.Equal(t, outbox.Summary{Claimed: 100, Sent: 100}, summary)
}

func TestRunIsFairToATopicThatComesLater(t *testing.T) {
	t.Parallel()
	const batch = 50
	r := newRig(t)
	r.fill("bulk", 10_000, "due")
	var bulk atomic.Int64
	begun := make(chan int64, 100)
	p := r.processor(r.open(), outbox.ProcessorConfig{BatchSize: batch, Concurrency: 10, Transports: map[string]outbox.Transport{
		"bulk": outbox.TransportFunc(func(context.Context, outbox.Delivery) (string, error) {
			bulk.Add(1)
			pass(time.Millisecond)
			return "", nil
		}),
		"urgent": outbox.TransportFunc(func(context.Context, outbox.Delivery) (string, error) {
			begun <- bulk.Load()
			return "", nil
		}),
	}})
	r.start(p)
	r.await("the backlog under way", func() bool { return bulk.Load() > 500 })

	r.enqueue(10, outbox.Message{Topic: "urgent"})
	committed := bulk.Load()

	for range 10 {
		passedBy := wait(r, "an urgent delivery", begun) - committed
		require.LessOrEqual(t, passedBy, int64(4*batch), "messages of the backlog that went first")
	}
}

// Spent records at the head of the queue are closed on the way; they hide nobody.
func TestAPileOfSpentRecordsHidesNobody(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.fill(orders, 500, "due")
	r.exec("UPDATE outbox SET attempts = max_attempts")
	r.enqueue(5, outbox.Message{})
	p := r.processor(r.open(), outbox.ProcessorConfig{BatchSize: 10})

	summary := p.ProcessOnce(t.Context())

	require.Equal(t, outbox.Summary{Claimed: 505, Failed: 500, Sent: 5}, summary)
	require.Equal(t, 500, r.count("status = 'failed' AND last_error_code = 'attempts_exhausted' AND dead_at IS NOT NULL"))
}

// A pool of one connection, wrapped for prepared statements: neither may make the worker wait for itself.
func TestAWorkerNeedsButOneConnection(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	receipts := r.enqueue(200, outbox.Message{})
	db := r.open().Session(&gorm.Session{PrepareStmt: true})
	pool, err := db.DB()
	require.NoError(t, err)
	pool.SetMaxOpenConns(1)
	j := newJournal(t)
	r.start(r.processor(db, outbox.ProcessorConfig{
		Transports: map[string]outbox.Transport{orders: j.transport("worker", accept)}, BatchSize: 20,
	}))

	r.await("all sent", func() bool { return r.count("status = 'sent'") == 200 })

	j.requireOnceEach(t, receipts)
}

// Under an isolation level that refuses concurrent updates, workers meet serialization failures; those are outages of
// a moment, no reason for a second delivery.
func TestWorkersUnderSerializableIsolation(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	receipts := r.enqueue(400, outbox.Message{})
	j := newJournal(t)
	for range 3 {
		db := r.open(setting("default_transaction_isolation", "serializable"))
		r.start(r.processor(db, outbox.ProcessorConfig{
			Transports: map[string]outbox.Transport{orders: j.transport("worker", accept)}, BatchSize: 20, PollInterval: 50 * time.Millisecond,
		}))
	}

	r.await("all sent", func() bool { return r.count("status = 'sent' AND attempts = 1") == 400 })

	j.requireOnceEach(t, receipts)
}

// The rows of an UPDATE come back in any order; what has been due for longest goes first all the same.
func TestAWorkerDeliversTheOldestFirst(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	now := time.Now()
	for range 50 {
		r.enqueue(2, outbox.Message{ScheduledFor: now.Add(-rand.N(time.Hour))}) // both due at once: by id then
	}
	var want []int64
	require.NoError(t, r.db.Table("outbox").Order("due_at, id").Pluck("id", &want).Error)
	var got []int64
	p := r.processor(r.open(), outbox.ProcessorConfig{Concurrency: 1, Transports: only(
		func(_ context.Context, d outbox.Delivery) (string, error) {
			got = append(got, d.ID)
			return "", nil
		},
	)})

	p.ProcessOnce(t.Context())

	require.Equal(t, want, got)
}

// Rounds of one processor may overlap.
func TestRoundsOfOneProcessorMayOverlap(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	receipts := r.enqueue(200, outbox.Message{})
	j := newJournal(t)
	p := r.processor(r.open(), outbox.ProcessorConfig{
		Transports: map[string]outbox.Transport{orders: j.transport("worker", accept)}, BatchSize: 10,
	})
	var rounds sync.WaitGroup
	var sent atomic.Int64
	for range 8 {
		rounds.Go(func() {
			for s := p.ProcessOnce(context.Background()); s.Claimed > 0; s = p.ProcessOnce(context.Background()) {
				sent.Add(int64(s.Sent))
			}
		})
	}
	rounds.Wait()

	require.EqualValues(t, 200, sent.Load())
	j.requireOnceEach(t, receipts)
}

// fill writes n records of a kind in one statement: due, future or sent, as workers would have left them.
func (r *rig) fill(topic string, n int, kind string) {
	r.Helper()
	due, sent := "now() - interval '1 hour' + n * interval '1 microsecond'", "NULL"
	switch kind {
	case "future":
		due = "now() + interval '1 day' + n * interval '1 microsecond'"
	case "sent":
		sent = "now()"
	}
	r.exec(fmt.Sprintf(`INSERT INTO outbox (tenant_id, topic, type, recipient, payload, message_id, status, attempts,
		max_attempts, due_at, sent_at, created_at, updated_at)
		SELECT '', '%[1]s', 'filled', 'someone@example.test', '{"order": 7, "total": "12.50", "note": "as large as a small order"}',
		gen_random_uuid(), CASE WHEN %[2]s IS NULL THEN 'pending' ELSE 'sent' END, 0, 8, %[3]s, %[2]s, now(), now()
		FROM generate_series(1, %[4]d) AS n`, topic, sent, due, n))
}

// counting accepts and counts.
func counting(n *atomic.Int64) outbox.Transport {
	return outbox.TransportFunc(func(context.Context, outbox.Delivery) (string, error) {
		n.Add(1)
		return "", nil
	})
}
