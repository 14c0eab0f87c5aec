package contender

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// limits are what the database can do: the least that a lease and a fence take, on pgx, in batches. They have no
// retries, no topics, no attempts that end, no metrics; a library that gets near them is as good as done.
var limits = []Definition{
	{
		Name: "raw-lease", About: "own pgx code: batched claim (the lease moves available_at, in the index) with prefetch, fenced batched completion",
		Cases: []string{"A", "B", "C", "D", "E", "F-sent", "F-future", "F-plain", "X", "G1"}, Open: rawLease.open,
	},
	{
		Name: "raw-hot", About: "the same with the lease in no index and half-full pages; completion deletes the row",
		Cases: []string{"C", "D", "X"}, Open: rawHot.open,
	},
}

// rawQueue is a limit: its statements.
type rawQueue struct {
	schema   []string
	insert   string // $1 payload
	bulk     string // $1 payloads
	claim    string // $1 token, $2 how many; gives id and payload
	complete string // $1 ids, $2 tokens
	history  string // makes every row a finished one; empty where those are not kept
	finished string // see Store
}

const (
	rawBatch    = 1000
	rawHandlers = 4 // more brings nothing with a handler that does nothing on two cores
	rawFlush    = 5 * time.Millisecond
	rawPoll     = 50 * time.Millisecond
)

type raw struct {
	database
	rawQueue
}

func (q rawQueue) open(ctx context.Context, o Options) (Contender, error) {
	db, err := openDatabase(ctx, o, 3)
	return &raw{db, q}, err
}

// Setup makes the table and its index.
func (c *raw) Setup(ctx context.Context) error { return c.setup(ctx, c.schema...) }

// EnqueueTx adds one row.
func (c *raw) EnqueueTx(ctx context.Context, n int) error {
	return c.order(ctx, n, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, c.insert, Payload(n))
		return err
	})
}

// Bulk adds rows from one array.
func (c *raw) Bulk(ctx context.Context, from, to int) error {
	payloads := make([][]byte, 0, to-from)
	for n := from; n < to; n++ {
		payloads = append(payloads, Payload(n))
	}
	_, err := c.pool.Exec(ctx, c.bulk, payloads)
	return err
}

// rawClaim is a claimed row.
type rawClaim struct {
	id, token int64
	payload   []byte
}

// Drain is one claimer that fetches a batch ahead, handlers, and one completer.
func (c *raw) Drain(ctx context.Context, w Work) error {
	claimed, handled := make(chan rawClaim, rawBatch), make(chan rawClaim, rawBatch)
	var claimErr, completeErr error
	var handlers, ends sync.WaitGroup
	ends.Go(func() { claimErr = c.claimAll(ctx, claimed) })
	for range max(w.Concurrency, rawHandlers) {
		handlers.Go(func() {
			for m := range claimed {
				w.Handle(ctx, m.payload)
				handled <- m
			}
		})
	}
	ends.Go(func() { completeErr = c.completeAll(context.WithoutCancel(ctx), handled) })
	handlers.Wait()
	close(handled)
	ends.Wait()
	if claimErr != nil {
		return claimErr
	}
	return completeErr
}

func (c *raw) claimAll(ctx context.Context, claimed chan<- rawClaim) error {
	defer close(claimed)
	for ctx.Err() == nil {
		batch, err := c.claimBatch(context.WithoutCancel(ctx)) // one that is given up may have taken leases
		if err != nil {
			return err
		}
		for _, m := range batch {
			claimed <- m
		}
		if len(batch) == 0 {
			pause(ctx, rawPoll)
		}
	}
	return nil
}

func (c *raw) claimBatch(ctx context.Context) ([]rawClaim, error) {
	token := rand.Int64()
	rows, err := c.pool.Query(ctx, c.claim, token, rawBatch)
	if err != nil {
		return nil, err
	}
	batch := make([]rawClaim, 0, rawBatch)
	for rows.Next() {
		m := rawClaim{token: token}
		if err := rows.Scan(&m.id, &m.payload); err != nil {
			return nil, err
		}
		batch = append(batch, m)
	}
	return batch, rows.Err()
}

// completeAll goes on after an error, since handlers wait for it.
func (c *raw) completeAll(ctx context.Context, handled <-chan rawClaim) (err error) {
	for first := range handled {
		ids, tokens := []int64{first.id}, []int64{first.token}
		flush := time.NewTimer(rawFlush)
		for waiting := true; waiting && len(ids) < rawBatch; {
			select {
			case m, open := <-handled:
				if waiting = open; open {
					ids, tokens = append(ids, m.id), append(tokens, m.token)
				}
			case <-flush.C:
				waiting = false
			}
		}
		flush.Stop()
		if _, failed := c.pool.Exec(ctx, c.complete, ids, tokens); failed != nil {
			err = failed
		}
	}
	return err
}

// Background copies one row, finished or due later.
func (c *raw) Background(ctx context.Context, kind Background, rows int) error {
	if err := c.Bulk(ctx, template, template+1); err != nil {
		return err
	}
	others := map[string]string{}
	if kind == FutureRows {
		others["available_at"] = "available_at + random() * interval '30 days'"
		if _, err := c.pool.Exec(ctx, "UPDATE raw_messages SET available_at = available_at + interval '1 day'"); err != nil {
			return err
		}
	}
	if kind == SentRows {
		if _, err := c.pool.Exec(ctx, c.history); err != nil {
			return err
		}
	}
	return c.multiply(ctx, "raw_messages", rows, others)
}

// Store is the one table.
func (c *raw) Store() Store {
	return Store{Table: "raw_messages", Number: "(payload->>'n')::bigint", Finished: c.finished}
}
