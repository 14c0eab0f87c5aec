package trial

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorm-outbox/outbox/tests/bench/internal/contender"
	"github.com/gorm-outbox/outbox/tests/bench/internal/ledger"
	"golang.org/x/sync/errgroup"
)

var roles = map[Role]func(Task, contender.Contender, *ledger.Ledger) job{
	Prepare: func(t Task, c contender.Contender, _ *ledger.Ledger) job { return job{run: t.prepare(c)} },
	Bulk:    func(t Task, c contender.Contender, _ *ledger.Ledger) job { return t.bulk(c) },
	Enqueue: func(t Task, c contender.Contender, _ *ledger.Ledger) job { return t.enqueue(c) },
	Produce: func(t Task, c contender.Contender, l *ledger.Ledger) job { return job{run: t.produce(c, l)} },
	Drain:   func(t Task, c contender.Contender, l *ledger.Ledger) job { return job{run: t.drain(c, l)} },
	Idle:    func(t Task, c contender.Contender, _ *ledger.Ledger) job { return t.idle(c) },
}

func (t Task) prepare(c contender.Contender) func(context.Context) error {
	return func(ctx context.Context) error {
		if t.Setup {
			if err := c.Setup(ctx); err != nil {
				return err
			}
		}
		if t.Rows > 0 {
			background, ok := c.(contender.Backgrounder)
			if !ok {
				return errors.ErrUnsupported
			}
			if err := background.Background(ctx, contender.Background(t.Background), t.Rows); err != nil {
				return err
			}
		}
		return t.fill(ctx, c)
	}
}

// fill enqueues the task's messages.
func (t Task) fill(ctx context.Context, c contender.Contender) error {
	for n := t.From; n < t.To; n += BulkSize {
		if err := c.Bulk(ctx, n, min(n+BulkSize, t.To)); err != nil {
			return err
		}
	}
	return nil
}

func (t Task) bulk(c contender.Contender) job {
	return job{
		run: func(ctx context.Context) error { return t.fill(ctx, c) },
		finish: func(r *Result) error {
			r.Count = t.To - t.From
			return nil
		},
	}
}

// enqueue runs transactions from several goroutines for a time. Each has run a few before, so that connections and
// prepared statements are there.
func (t Task) enqueue(c contender.Contender) job {
	const warmUp = 20
	var next atomic.Int64
	each := func(ctx context.Context, work func(ctx context.Context) error) error {
		goroutines, ctx := errgroup.WithContext(ctx)
		for range t.Goroutines {
			goroutines.Go(func() error { return work(ctx) })
		}
		return goroutines.Wait()
	}
	warm := func(ctx context.Context) error {
		for range warmUp {
			if err := c.EnqueueTx(ctx, int(next.Add(1)-1)); err != nil {
				return err
			}
		}
		return nil
	}
	var mu sync.Mutex
	var times []time.Duration
	run := func(ctx context.Context) error {
		own := make([]time.Duration, 0, 1<<12)
		for end := time.Now().Add(t.Period); time.Now().Before(end); {
			began := time.Now()
			if err := c.EnqueueTx(ctx, int(next.Add(1)-1)); err != nil {
				return err
			}
			own = append(own, time.Since(began))
		}
		mu.Lock()
		defer mu.Unlock()
		times = append(times, own...)
		return nil
	}
	return job{
		warm: func(ctx context.Context) error { return each(ctx, warm) },
		run:  func(ctx context.Context) error { return each(ctx, run) },
		finish: func(r *Result) error {
			slices.Sort(times)
			r.Count, r.Total = len(times), int(next.Load())
			r.P50, r.P99 = Quantile(times, 0.5), Quantile(times, 0.99)
			return nil
		},
	}
}

// produce starts a transaction for each message at its moment, however long those before it take: waiting for them
// would hide the delays that are looked for. The moments are those of a Poisson process.
func (t Task) produce(c contender.Contender, l *ledger.Ledger) func(context.Context) error {
	return func(ctx context.Context) error {
		due := time.Now().Add(t.Settle)
		transactions, ctx := errgroup.WithContext(ctx)
		for n := t.From; n < t.To; n++ {
			due = due.Add(time.Duration(rand.ExpFloat64() / t.Rate * float64(time.Second)))
			pause(ctx, time.Until(due))
			transactions.Go(func() error {
				err := c.EnqueueTx(ctx, n)
				l.Commit(n)
				return err
			})
		}
		return transactions.Wait()
	}
}

// drain delivers until the ledger is full, or the time is over.
func (t Task) drain(c contender.Contender, l *ledger.Ledger) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, stop := context.WithTimeout(ctx, t.Limit)
		defer stop()
		go func() {
			l.Wait(ctx, t.Until)
			stop()
		}()
		return c.Drain(ctx, contender.Work{
			Handle: t.handler(l), Concurrency: t.Concurrency, Topics: t.Topics,
			Finished: func() bool { return l.Handled() >= t.Until },
		})
	}
}

func (t Task) handler(l *ledger.Ledger) func(context.Context, []byte) {
	return func(ctx context.Context, payload []byte) {
		n := contender.Number(payload)
		if t.Timed {
			l.Start(n)
		}
		if t.Handler > 0 {
			pause(ctx, t.Handler)
		}
		l.Handle(n)
	}
}

// idle runs a worker that has nothing to do. What it does to start up is not counted.
func (t Task) idle(c contender.Contender) job {
	ended := make(chan error, 1)
	var stop context.CancelFunc
	return job{
		warm: func(ctx context.Context) error {
			ctx, stop = context.WithCancel(ctx)
			go func() {
				ended <- c.Drain(ctx, contender.Work{
					Handle: func(context.Context, []byte) {}, Topics: t.Topics, Finished: func() bool { return true },
				})
			}()
			pause(ctx, t.Settle)
			return nil
		},
		run: func(ctx context.Context) error {
			pause(ctx, t.Period)
			return nil
		},
		finish: func(*Result) error {
			stop()
			return <-ended
		},
	}
}

// Quantile reads a quantile off sorted times.
func Quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

// pause waits for d or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
