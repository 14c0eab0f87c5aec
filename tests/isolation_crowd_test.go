package tests

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
)

// Everybody at once in a database whose default is strict: workers that stumble over each other, messages that fail the
// first time, and clerks who enqueue, withdraw and note receipts. What the database refuses costs no message and no
// attempt, and doubles none.
func TestIsolation_EverybodyUnderARaisedDefault(t *testing.T) {
	t.Parallel()
	for level, raise := range map[string]string{
		"serializable":    `ALTER DATABASE %q SET default_transaction_isolation = 'serializable'`,
		"repeatable read": `ALTER ROLE postgres IN DATABASE %q SET default_transaction_isolation = 'repeatable read'`,
	} {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.exec(fmt.Sprintf(raise, scalar[string](t, r.db, "SELECT current_database()")))
			c := &crowd{rig: r, db: r.open(), met: &failures{states: map[string]int{}}, calls: newJournal(t)}
			require.Equal(t, level, scalar[string](t, c.db, "SHOW transaction_isolation"))
			c.startWorkers(4)

			c.startClerks(4, 20)

			r.await("all have ended", func() bool { return r.count("sent_at IS NULL AND dead_at IS NULL") == 0 })
			c.stopWorkers()
			c.requireNothingLostOrDoubled()
			require.Positive(t, c.met.of("40001")+int(c.again.Load()), "they met serialization failures")
			t.Log("refused to the workers:", c.met.states, "transactions run again by the clerks:", c.again.Load())
		})
	}
}

// crowd is everybody who is at work on an outbox.
type crowd struct {
	*rig
	db    *gorm.DB // the clerks'
	met   *failures
	calls *journal
	stops []func()
	again atomic.Int64

	mu              sync.Mutex
	sent, withdrawn []outbox.Receipt // what is to become of messages
}

// startWorkers starts processors, each with a pool of its own.
func (c *crowd) startWorkers(n int) {
	c.Helper()
	for i := range n {
		c.stops = append(c.stops, c.start(c.processor(c.open(c.met.trace), outbox.ProcessorConfig{
			Transports: map[string]outbox.Transport{orders: c.calls.transport(fmt.Sprint("worker-", i), secondTime)},
			BatchSize:  5, Concurrency: 10, PollInterval: 10 * time.Millisecond,
			Backoff: policy.Backoff{Base: time.Millisecond, Max: time.Millisecond},
		})))
	}
}

func (c *crowd) stopWorkers() {
	for _, stop := range c.stops {
		stop()
	}
}

// secondTime accepts a third of the messages only at the second attempt.
func secondTime(_ context.Context, d outbox.Delivery) (string, error) {
	if needsTwo(d.ID) && d.Attempt == 1 {
		return "", policy.Failure{Category: policy.CategoryNetwork, Code: "503"}
	}
	return "accepted", nil
}

func needsTwo(id int64) bool { return id%3 == 0 }

// startClerks has several do business at once, and waits for them.
func (c *crowd) startClerks(n, deals int) {
	c.Helper()
	errs := make([]error, n)
	var all sync.WaitGroup
	for clerk := range n {
		all.Go(func() {
			for deal := 0; deal < deals && errs[clerk] == nil; deal++ {
				errs[clerk] = c.deal(deal)
			}
		})
	}
	all.Wait()
	require.NoError(c, errors.Join(errs...))
}

// deal enqueues three messages: one under a key that other clerks use too, one that is withdrawn before its time, and
// one whose receipt comes while a worker may be about it.
func (c *crowd) deal(number int) error {
	var receipts []outbox.Receipt
	steps := []func(tx *gorm.DB) error{
		func(tx *gorm.DB) (err error) {
			receipts, err = outbox.EnqueueAll(tx, []outbox.Message{
				{Topic: orders, IdempotencyKey: fmt.Sprint("deal-", number)}, {Topic: orders, Delay: time.Hour}, {Topic: orders},
			})
			return err
		},
		func(tx *gorm.DB) error {
			n, err := outbox.Cancel(tx, outbox.Filter{IDs: []int64{receipts[1].ID}})
			if err == nil && n != 1 {
				err = fmt.Errorf("%d withdrawn", n)
			}
			return err
		},
		func(tx *gorm.DB) error {
			found, err := outbox.RecordReceipt(tx, arrived(receipts[2]))
			if err == nil && !found {
				err = errors.New("a receipt without its record")
			}
			return err
		},
	}
	for _, step := range steps {
		failed, err := untilItCommits(c.db, nil, step)
		c.again.Add(int64(failed))
		if err != nil {
			return err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent = append(c.sent, receipts[0], receipts[2])
	c.withdrawn = append(c.withdrawn, receipts[1])
	return nil
}

// requireNothingLostOrDoubled compares what the clerks were told, what the table says and what the transports saw.
func (c *crowd) requireNothingLostOrDoubled() {
	c.Helper()
	c.calls.requireNeverTwoAtATime(c)
	begun := c.calls.begun(c)
	byID := map[int64]outbox.Record{}
	for _, record := range c.records() {
		byID[record.ID] = record
		require.Equal(c, record.Attempts, begun[record.ID], "deliveries of message %d", record.ID)
	}
	known := map[int64]bool{}
	for _, receipt := range c.sent {
		known[receipt.ID] = true
		want := 1
		if needsTwo(receipt.ID) {
			want = 2
		}
		require.Equal(c, outbox.StatusSent, byID[receipt.ID].Status)
		require.Equal(c, want, byID[receipt.ID].Attempts, "attempts at message %d", receipt.ID)
	}
	for _, receipt := range c.withdrawn {
		known[receipt.ID] = true
		require.Equal(c, outbox.StatusCancelled, byID[receipt.ID].Status)
		require.Zero(c, begun[receipt.ID])
	}
	require.Len(c, byID, len(known), "there is no message that nobody enqueued")
	require.Len(c, known, len(c.withdrawn)*2+len(c.withdrawn)/4, "four clerks share each key")
}

// failures counts what the database refused, by SQLSTATE.
type failures struct {
	mu     sync.Mutex
	states map[string]int
}

func (f *failures) trace(c *pgx.ConnConfig) { c.Tracer = f }

// TraceQueryStart implements pgx.QueryTracer.
func (f *failures) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

// TraceQueryEnd implements pgx.QueryTracer.
func (f *failures) TraceQueryEnd(_ context.Context, _ *pgx.Conn, data pgx.TraceQueryEndData) {
	state := stateOf(data.Err)
	if state == "" {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.states[state]++
}

// of is how often there was a code.
func (f *failures) of(state string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.states[state]
}
