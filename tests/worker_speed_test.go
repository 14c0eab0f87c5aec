package tests

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
)

// claimBuffers is how many buffers the locking SELECT of a claim of 100 may read.
const claimBuffers = 600

// A claim costs the same whatever else is in the table: what is due, what will be, what has been sent. So does a
// recording.
func TestTheStatementsOfAWorkerDoNotGrowWithTheTable(t *testing.T) {
	t.Parallel()
	for _, planMode := range []string{"auto", "force_generic_plan"} {
		t.Run(planMode, func(t *testing.T) {
			r := newRig(t)
			r.fill(orders, 20_000, "due")
			claim, record := r.capture()
			r.exec("VACUUM (ANALYZE) outbox")
			base := claim.lockingBuffers(r, planMode)
			require.Less(t, base, claimBuffers)
			for _, kind := range []string{"future", "sent", "due"} {
				r.fill(orders, 100_000, kind)
				r.exec("VACUUM (ANALYZE) outbox")
				got := claim.lockingBuffers(r, planMode)
				t.Logf("%s: %d buffers, with 100,000 %s ones more %d", planMode, base, kind, got)
				require.Less(t, got, claimBuffers, kind)
				require.LessOrEqual(t, got, base+20, "100,000 %s records more", kind)

				recording := record.explain(r, planMode)
				require.Nil(t, recording.find("Seq Scan"), "the recording goes by the primary key")
				require.Less(t, recording.Hit+recording.Read, claimBuffers)
			}
		})
	}
}

// A queue that was analysed while it was empty, or never, and then meets a burst: the planner must not sort it.
func TestAClaimNeedsNoStatistics(t *testing.T) {
	t.Parallel()
	for _, analyse := range []bool{false, true} {
		r := newRig(t)
		r.exec("ALTER TABLE outbox SET (autovacuum_enabled = off)")
		r.fill(orders, 100, "due")
		claim, _ := r.capture()
		if analyse {
			r.exec("VACUUM (ANALYZE) outbox")
		}
		r.fill(orders, 50_000, "due")
		for _, planMode := range []string{"auto", "force_generic_plan"} {
			require.Less(t, claim.lockingBuffers(r, planMode), claimBuffers, "analysed: %v, %s", analyse, planMode)
		}
	}
}

// While an old transaction keeps the database from cleaning up, the index entries of what has been sent stay at the
// head of the queue. A worker that has come past them does not walk over them again with each claim.
func TestAClaimUnderAnOldSnapshotStartsWhereTheLastOneEnded(t *testing.T) {
	t.Parallel()
	const sent, batch = 15_000, 100
	r := newRig(t)
	r.exec("ALTER TABLE outbox SET (autovacuum_enabled = off)")
	r.fill(orders, 2*sent, "due")
	r.exec("VACUUM (ANALYZE) outbox")
	defer r.holdSnapshot()()
	g := newGate(t, accept)
	statements := &tape{}
	var deliveries atomic.Int64
	r.start(r.processor(r.open(statements.record), outbox.ProcessorConfig{BatchSize: batch, Transports: only(
		func(ctx context.Context, d outbox.Delivery) (string, error) {
			if deliveries.Add(1) > sent {
				return g.Send(ctx, d)
			}
			return "", nil
		},
	)}))
	r.await("half of the backlog sent", func() bool { return r.count("status = 'sent'") == sent })

	var fromTheStart, fromTheFloor []statement
	for _, s := range statements.all() {
		switch {
		case strings.Contains(s.SQL, "SKIP LOCKED") && slices.ContainsFunc(s.Args, isFloor):
			fromTheFloor = append(fromTheFloor, statement{s.SQL, s.Args[1:]})
		case strings.Contains(s.SQL, "SKIP LOCKED"):
			fromTheStart = append(fromTheStart, statement{s.SQL, s.Args[1:]})
		}
	}
	require.Greater(t, len(fromTheFloor), 3*len(fromTheStart), "most claims start at the floor")
	last := fromTheFloor[len(fromTheFloor)-1].explain(r, "auto").find("LockRows")
	whole := fromTheStart[0].explain(r, "auto").find("LockRows")
	t.Logf("%d claims from the floor, the last of which reads %d buffers, and %d from the start, which would read %d",
		len(fromTheFloor), last.Hit+last.Read, len(fromTheStart), whole.Hit+whole.Read)
	require.Positive(t, last.Rows)
	require.Less(t, last.Hit+last.Read, claimBuffers)
	require.Greater(t, whole.Hit+whole.Read, 3*(last.Hit+last.Read), "or else this test would hold nothing")
}

// isFloor tells the due time at which a claim starts from the zero time of a claim from the beginning.
func isFloor(arg any) bool {
	at, ok := arg.(time.Time)
	return ok && !at.IsZero()
}

// statement is one that a worker sent.
type statement struct {
	sql  string
	args []any
}

// capture gives the very statements by which a worker claims 100 records and records them.
func (r *rig) capture() (claim, record statement) {
	r.Helper()
	statements := &tape{}
	p := r.processor(r.open(statements.record), outbox.ProcessorConfig{BatchSize: 100})
	require.Equal(r, 100, p.ProcessOnce(r.Context()).Sent)
	for _, s := range statements.all() {
		args := s.Args[min(1, len(s.Args)):] // the first is database/sql's word to the driver about formats
		switch {
		case strings.Contains(s.SQL, "SKIP LOCKED"):
			claim = statement{s.SQL, args}
		case strings.Contains(s.SQL, "UPDATE"):
			record = statement{s.SQL, args}
		}
	}
	require.NotEmpty(r, claim.sql)
	require.NotEmpty(r, record.sql)
	return claim, record
}

// lockingBuffers gives how many buffers the locking SELECT of a claim of 100 reads.
func (s statement) lockingBuffers(r *rig, planMode string) int {
	r.Helper()
	executed := s.explain(r, planMode)
	locking := executed.find("LockRows")
	require.NotNil(r, locking)
	require.EqualValues(r, 100, locking.Rows)
	require.NotNil(r, locking.find("Index Scan"), "in the order of the index, without a sort")
	require.Nil(r, locking.find("Sort"))
	require.Nil(r, executed.find("Seq Scan"))
	return locking.Hit + locking.Read
}

// explain runs the statement without keeping what it does.
func (s statement) explain(r *rig, planMode string) *plan {
	r.Helper()
	conn, err := pgx.Connect(r.Context(), r.dsn)
	require.NoError(r, err)
	defer conn.Close(r.Context())
	var explained []*pgconn.Result
	for _, text := range []string{
		"SET plan_cache_mode = " + planMode,
		"PREPARE worker AS " + s.sql,
		"BEGIN",
		"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE worker(" + s.literals() + ")",
	} {
		explained, err = conn.PgConn().Exec(r.Context(), text).ReadAll()
		require.NoError(r, err, text)
	}
	var plans []struct{ Plan plan }
	require.NoError(r, json.Unmarshal(explained[0].Rows[0][0], &plans))
	_, err = conn.Exec(r.Context(), "ROLLBACK")
	require.NoError(r, err)
	return &plans[0].Plan
}

func (s statement) literals() string {
	literals := make([]string, len(s.args))
	for i, arg := range s.args {
		text := fmt.Sprint(arg)
		if instant, ok := arg.(time.Time); ok {
			text = instant.Format(time.RFC3339Nano)
		}
		literals[i] = "'" + strings.ReplaceAll(text, "'", "''") + "'"
	}
	return strings.Join(literals, ", ")
}

// plan is a node of an executed plan; what it read includes what its processes did.
type plan struct {
	Type  string  `json:"Node Type"`
	Rows  float64 `json:"Actual Rows"`
	Hit   int     `json:"Shared Hit Blocks"`
	Read  int     `json:"Shared Read Blocks"`
	Plans []plan
}

func (p *plan) find(nodeType string) *plan {
	if p.Type == nodeType {
		return p
	}
	for i := range p.Plans {
		if found := p.Plans[i].find(nodeType); found != nil {
			return found
		}
	}
	return nil
}

// On the table as the migration makes it, a claim leaves the indexes alone.
func TestClaimsAreHeapOnlyUpdates(t *testing.T) {
	t.Parallel()
	for _, payload := range []int{20, 200, 1000} {
		t.Run(fmt.Sprint("payload of ", payload, " bytes"), func(t *testing.T) { requireHeapOnlyClaims(t, payload) })
	}
}

func requireHeapOnlyClaims(t *testing.T, payload int) {
	const n = 2000
	r := newRig(t)
	for range n / 100 {
		r.enqueue(100, outbox.Message{
			Type: "order_confirmation", Recipient: "someone@example.test", Payload: strings.Repeat("x", payload-2),
		})
	}
	r.exec("VACUUM (ANALYZE) outbox")
	g := newGate(t, accept)
	db := r.open()
	pool, err := db.DB()
	require.NoError(t, err)
	pool.SetMaxOpenConns(1) // the backend whose statistics are flushed is the one that claimed
	p := r.processor(db, outbox.ProcessorConfig{
		Transports: map[string]outbox.Transport{orders: g}, BatchSize: n / 2, Concurrency: n, Owner: "shop-worker-7c9f8d6b5-x2x4z:1",
	})
	rounds := []<-chan outbox.Summary{r.round(t.Context(), p), r.round(t.Context(), p)}
	for range n {
		wait(r, "a delivery", g.entered)
	}

	flush := func() (updates, hot int) {
		next := "SELECT 1" // before version 15 a session hands its statistics in with a later statement
		if cluster.Version() >= 150000 {
			next = "SELECT pg_stat_force_next_flush()"
		}
		require.NoError(t, db.Exec(next).Error)
		require.NoError(t, r.db.Raw("SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'outbox'").Row().Scan(&updates, &hot))
		return updates, hot
	}
	var claims, hotClaims int
	r.await("the statistics of the claims", func() bool {
		claims, hotClaims = flush()
		return claims >= n
	})
	require.Equal(t, n, claims, "one update a message, and no recording yet")
	t.Logf("%d of %d claim updates are heap-only", hotClaims, claims)
	require.GreaterOrEqual(t, hotClaims, n*9/10)

	g.open()
	for _, round := range rounds {
		require.Equal(t, n/2, wait(r, "a round", round).Sent)
	}
	r.await("the statistics of the recording", func() bool {
		updates, _ := flush()
		return updates >= 2*n
	})
	updates, _ := flush()
	require.Equal(t, 2*n, updates, "one update more a message to record it")
}

// holdSnapshot keeps the horizon of the database where it is.
func (r *rig) holdSnapshot() (release func()) {
	r.Helper()
	conn, err := pgx.Connect(r.Context(), r.dsn)
	require.NoError(r, err)
	for _, statement := range []string{"BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT txid_current()"} {
		_, err := conn.Exec(r.Context(), statement)
		require.NoError(r, err)
	}
	return func() { _ = conn.Close(context.Background()) }
}
