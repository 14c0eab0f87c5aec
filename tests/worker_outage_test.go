package tests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/gorm-outbox/outbox/tests/internal/pgtest"
	"github.com/gorm-outbox/outbox/tests/internal/proxy"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// terminate ends every backend of an application's, and gives how many there were.
func (r *rig) terminate(application string) (ended int) {
	r.Helper()
	const statement = `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = ? AND datname = current_database()`
	require.NoError(r, r.db.Raw(statement, application).Scan(&ended).Error)
	return ended
}

func TestC26_RunOutlivesItsConnections(t *testing.T) {
	t.Parallel()
	const application = "terminated"
	r := newRig(t)
	receipts := r.enqueue(3, outbox.Message{})
	g := newGate(t, accept)
	j := newJournal(t)
	stop := r.start(r.processor(r.open(setting("application_name", application)), outbox.ProcessorConfig{
		Transports: map[string]outbox.Transport{orders: j.transport("worker", g.Send)}, PollInterval: 50 * time.Millisecond,
	}))
	for range 3 {
		wait(r, "a delivery", g.entered)
	}
	require.Positive(t, r.terminate(application))
	g.open()
	r.await("what was in flight is recorded", func() bool { return r.count("status = 'sent'") == 3 })

	for n := range 20 {
		receipts = append(receipts, r.enqueue(5, outbox.Message{})...)
		r.terminate(application)
		r.await("all are sent", func() bool { return r.count("status = 'sent'") == 3+5*(n+1) })
	}

	stop()
	j.requireOnceEach(t, receipts)
	require.Equal(t, len(receipts), r.count("attempts = 1"), "no attempt is charged for an outage")
}

func TestC26_RunOutlivesItsServer(t *testing.T) {
	t.Parallel()
	const poll = time.Second
	own, err := pgtest.Start(pgtest.Options{})
	require.NoError(t, err)
	t.Cleanup(own.Stop)
	r := newRigOn(t, own, outbox.Plugin{})
	receipts := r.enqueue(2, outbox.Message{Type: "in flight"})
	g := newGate(t, accept)
	j := newJournal(t)
	begun := make(chan time.Time, 100)
	stop := r.start(r.processor(r.open(), outbox.ProcessorConfig{
		PollInterval: poll,
		Transports: map[string]outbox.Transport{orders: j.transport("worker", func(ctx context.Context, d outbox.Delivery) (string, error) {
			if d.Type == "in flight" {
				return g.Send(ctx, d)
			}
			begun <- time.Now()
			return "", nil
		})},
	}))
	wait(r, "a delivery", g.entered)
	wait(r, "a delivery", g.entered)

	own.Crash()
	g.open()
	pass(3 * time.Second)
	require.NoError(t, own.Restart())
	pool, err := r.db.DB()
	require.NoError(t, err)
	r.await("the app is connected again", func() bool { return pool.PingContext(t.Context()) == nil })

	receipts = append(receipts, r.enqueue(5, outbox.Message{Type: "after"})...)
	committed := time.Now()
	for range 5 {
		require.Less(t, wait(r, "a delivery after the outage", begun).Sub(committed), 2*poll)
	}
	r.await("all are sent", func() bool { return r.count("status = 'sent' AND attempts = 1") == 7 })
	stop()
	j.requireOnceEach(t, receipts)
}

// outage is a worker whose connections go through a proxy.
type outage struct {
	*rig
	proxy  *proxy.Proxy
	worker *outbox.Processor
	calls  *journal
	ended  sync.Once
}

// newOutage gives a worker whose transport does onAnswer when it has the provider's answer, before it returns.
func newOutage(t *testing.T, p outbox.Plugin, transport outbox.TransportFunc, onAnswer func(*outage), options ...option) *outage {
	o := &outage{rig: newRigOn(t, cluster, p), calls: newJournal(t)}
	var err error
	o.proxy, err = proxy.New(o.addr())
	require.NoError(t, err)
	t.Cleanup(o.proxy.Close)
	o.worker = o.processor(o.open(append(options, through(o.proxy.Addr()))...), outbox.ProcessorConfig{
		Lease: shortLease, Timeout: time.Second, Owner: "behind-a-proxy", PollInterval: 50 * time.Millisecond,
		Transports: map[string]outbox.Transport{orders: o.calls.transport("worker", func(ctx context.Context, d outbox.Delivery) (string, error) {
			defer onAnswer(o)
			return transport(ctx, d)
		})},
	})
	return o
}

// down makes the database unreachable, the first time it is called; up brings it back.
func (o *outage) down() {
	o.ended.Do(func() {
		o.proxy.Refuse(true)
		o.proxy.Cut()
	})
}

func (o *outage) up() {
	o.proxy.SwallowReplies(false)
	o.proxy.Cut()
	o.proxy.Refuse(false)
}

func TestOutcomesWaitForTheDatabase(t *testing.T) {
	t.Parallel()
	for _, outcomes := range []int{1, 10} {
		t.Run(fmt.Sprint(outcomes), func(t *testing.T) {
			o := newOutage(t, outbox.Plugin{}, accept, (*outage).down)
			receipts := o.enqueue(outcomes, outbox.Message{})
			round := o.round(t.Context(), o.worker)
			o.await("all accepted", func() bool { return len(o.calls.events(t)) == 2*outcomes })
			pass(1500 * time.Millisecond)
			require.Equal(t, outcomes, o.count("status = 'processing'"))

			o.up()

			s := counts(wait(o.rig, "the round", round))
			require.NotEmpty(t, s.LastError)
			s.LastError = ""
			require.Equal(t, outbox.Summary{Claimed: outcomes, Sent: outcomes}, s)
			require.Equal(t, outcomes, o.count("status = 'sent' AND attempts = 1 AND external_id = 'accepted'"))
			require.Equal(t, outbox.Summary{}, counts(o.worker.ProcessOnce(t.Context())), "no second delivery")
			o.calls.requireOnceEach(t, receipts)
		})
	}
}

// lostReplies are what was written when the reply never arrived.
var lostReplies = map[string]struct {
	plugin outbox.Plugin
	err    error
	want   outbox.Summary
	then   string // the only record; empty: there is none any more
}{
	"sent":              {outbox.Plugin{}, nil, outbox.Summary{Sent: 1}, "status = 'sent' AND attempts = 1"},
	"retried":           {outbox.Plugin{}, errors.New("down"), outbox.Summary{Retried: 1}, "status = 'pending' AND attempts = 1"},
	"discarded":         {outbox.Plugin{}, policy.Failure{Category: policy.CategoryRejected}, outbox.Summary{Discarded: 1}, "status = 'discarded'"},
	"sent and deleted":  {outbox.Plugin{DeleteSent: true}, nil, outbox.Summary{Sent: 1}, ""},
	"retried, not sent": {outbox.Plugin{DeleteSent: true}, errors.New("down"), outbox.Summary{Retried: 1}, "status = 'pending' AND attempts = 1"},
}

// The reply to the recording never arrives: the write was done, and must be counted as done.
func TestARecordingWhoseReplyIsLostCounts(t *testing.T) {
	t.Parallel()
	for name, tt := range lostReplies {
		for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeSimpleProtocol} {
			t.Run(fmt.Sprint(name, " ", mode), func(t *testing.T) {
				t.Parallel()
				o := newOutage(t, tt.plugin, func(context.Context, outbox.Delivery) (string, error) { return "", tt.err }, func(*outage) {}, execMode(mode))
				o.enqueue(1, outbox.Message{})
				o.swallowReplyTo(`record_id`) // in the parameter, so that it is the execution and no preparation
				round := o.round(t.Context(), o.worker)
				o.await("the delivery", func() bool { return len(o.calls.events(t)) == 2 })
				o.await("the outcome is in the table", func() bool { return o.count("lease_token IS NOT NULL") == 0 })

				o.up()

				s := counts(wait(o.rig, "the round", round))
				require.NotEmpty(t, s.LastError)
				tt.want.Claimed, s.LastError = 1, ""
				require.Equal(t, tt.want, s)
				require.Len(t, o.calls.events(t), 2)
				if tt.then == "" {
					require.Empty(t, o.records())
				} else {
					require.Equal(t, 1, o.count(tt.then))
				}
			})
		}
	}
}

// swallowReplyTo loses the replies from the next request on whose bytes contain text.
func (o *outage) swallowReplyTo(text string) {
	var once sync.Once
	o.proxy.OnClient(func(chunk []byte) {
		if bytes.Contains(chunk, []byte(`"`+text)) || bytes.Contains(chunk, []byte(`'`+text)) {
			once.Do(func() { o.proxy.SwallowReplies(true) })
		}
	})
}

func TestAnOutageLongerThanTheLeaseCostsASecondDelivery(t *testing.T) {
	t.Parallel()
	o := newOutage(t, outbox.Plugin{}, accept, (*outage).down)
	receipts := o.enqueue(3, outbox.Message{})

	began := time.Now()
	s := counts(o.worker.ProcessOnce(t.Context()))

	require.GreaterOrEqual(t, time.Since(began), shortLease-time.Second, "it tries for as long as the lease lasts")
	require.NotEmpty(t, s.LastError)
	s.LastError = ""
	require.Equal(t, outbox.Summary{Claimed: 3, Errors: 3}, s)
	other := o.processor(o.open(), outbox.ProcessorConfig{
		Transports: map[string]outbox.Transport{orders: o.calls.transport("other", accept)}, PollInterval: 50 * time.Millisecond,
	})
	o.start(other)
	o.await("another worker has them sent", func() bool { return o.count("status = 'sent' AND attempts = 2") == 3 })
	for _, receipt := range receipts {
		require.Equal(t, 2, o.calls.begun(t)[receipt.ID])
	}
}

// Nobody knows of the leases that a claim took whose reply was lost. They run out.
func TestAClaimWhoseReplyIsLostRunsOut(t *testing.T) {
	t.Parallel()
	o := newOutage(t, outbox.Plugin{}, accept, func(*outage) {})
	receipts := o.enqueue(5, outbox.Message{})
	o.worker.ProcessOnce(context.Background()) // warm: the next claim is prepared
	o.exec("UPDATE outbox SET status = 'pending', attempts = 0, sent_at = NULL")
	first := o.calls.begun(t)
	var once sync.Once
	o.proxy.OnClient(func(chunk []byte) {
		if bytes.Contains(chunk, []byte("behind-a-proxy")) {
			once.Do(func() { o.proxy.SwallowReplies(true) })
		}
	})
	round := o.round(t.Context(), o.worker)
	o.await("the claim is in the table", func() bool { return o.count("status = 'processing'") == 5 })
	o.up()
	s := counts(wait(o.rig, "the round", round))
	require.NotEmpty(t, s.LastError)
	s.LastError = ""
	require.Equal(t, outbox.Summary{Errors: 1}, s)
	require.Equal(t, first, o.calls.begun(t), "delivers nothing")

	o.start(o.worker)
	o.await("sent after the lease", func() bool { return o.count("status = 'sent' AND attempts = 2") == 5 })
	for _, receipt := range receipts {
		require.Equal(t, 2, o.calls.begun(t)[receipt.ID], "once before and once after")
	}
}

// moments are failures of a database that is in no state to take a write just now. They say nothing against the data.
var moments = []string{
	"25006", // read-only: a failover has made this server the standby
	"40001", // serialization failure
	"40P01", // deadlock
	"53100", // disk full
	"53200", // out of memory
	"53300", // too many connections
	"55P03", // lock timeout
	"57014", // statement timeout
	"57P03", // starting up
	"58030", // I/O error
	"08006", // connection failure, as a pooler may report it
}

func TestOutcomesWaitForABetterMoment(t *testing.T) {
	t.Parallel()
	for _, state := range moments {
		t.Run(state, func(t *testing.T) {
			r := newRig(t)
			r.exec(`CREATE TABLE moment (state text)`)
			r.exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ DECLARE state text; BEGIN
				SELECT m.state INTO state FROM moment m;
				IF FOUND THEN RAISE EXCEPTION 'not now' USING ERRCODE = state; END IF;
				RETURN NEW; END $$`)
			r.exec(`CREATE TRIGGER refuse BEFORE UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION refuse()`)
			r.enqueue(5, outbox.Message{})
			g := newGate(t, accept)
			statements := &tape{}
			round := r.round(t.Context(), r.processor(r.open(statements.record), outbox.ProcessorConfig{
				Transports: map[string]outbox.Transport{orders: g},
			}))
			for range 5 {
				wait(r, "a delivery", g.entered)
			}
			statements.all()
			r.exec(`INSERT INTO moment VALUES (?)`, state)
			g.open()
			tries := 0
			r.await("it has been tried twice", func() bool {
				tries += len(statements.all())
				return tries >= 2
			})

			r.exec(`DELETE FROM moment`)

			s := wait(r, "the round", round)
			require.Equal(t, outbox.Summary{Claimed: 5, Sent: 5, LastError: state}, counts(s))
			require.Equal(t, 5, r.count("status = 'sent' AND attempts = 1"))
		})
	}
}

// A connection that has gone silent, as behind a firewall that forgot it: nothing comes back, no error either. It must
// be given up while there is still lease enough to write the outcome on another one.
func TestASilentConnectionIsGivenUpBeforeTheLeaseEnds(t *testing.T) {
	t.Parallel()
	o := newOutage(t, outbox.Plugin{}, accept, func(*outage) {})
	o.enqueue(1, outbox.Message{})
	o.swallowReplyTo(`record_id`)
	round := o.round(t.Context(), o.worker)
	o.await("the outcome is in the table", func() bool { return o.count("status = 'sent'") == 1 })
	o.proxy.OnClient(func([]byte) { o.proxy.SwallowReplies(false) }) // the next request, on a new connection, is answered

	s := counts(wait(o.rig, "the round", round))

	require.NotEmpty(t, s.LastError)
	s.LastError = ""
	require.Equal(t, outbox.Summary{Claimed: 1, Sent: 1}, s)
}
