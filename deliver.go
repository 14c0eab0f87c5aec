package outbox

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// line is the delivery line of one ProcessOnce or Run: claims wait in a queue for a free worker, and outcomes go on to
// the recorder.
type line struct {
	*Processor
	ctx     context.Context       // ends: start nothing more
	lasting context.Context       // the same without an end
	terms   atomic.Pointer[terms] // of the next claim; the claims that are out keep theirs
	tally   tally
	queue   chan *claim
	records chan outcome
	moved   chan struct{} // signals that a worker took or finished a claim
	workers sync.WaitGroup
	written chan struct{} // closed when the recorder is done
	size    int           // how many workers
	once    bool          // a topic is delivered at most once: claim nothing ahead
	busy    atomic.Int64  // workers inside an attempt
	average atomic.Int64  // moving average of an attempt's duration
	booking sync.Mutex    // held to take room for a claim
	booked  atomic.Int64  // room taken by claims under way
}

// startLine starts the workers and the recorder; finish ends them.
func (p *Processor) startLine(ctx context.Context, workers int) *line {
	l := &line{
		Processor: p, ctx: ctx, lasting: context.WithoutCancel(ctx), size: workers, once: p.deliversOnce(),
		queue:   make(chan *claim, 2*maxBatchSize+workers),
		records: make(chan outcome, maxBatchSize),
		moved:   make(chan struct{}, 1),
		written: make(chan struct{}),
	}
	l.terms.Store(p.agree(ctx, p.cfg.terms()))
	l.average.Store(int64(unknownDuration))
	go func() {
		defer close(l.written)
		(&recorder{Processor: p, tally: &l.tally}).run(l.lasting, l.records)
	}()
	l.workers.Add(l.size)
	for range l.size {
		go l.work()
	}
	return l
}

// feed queues claims. There is always room: no more is claimed than was booked, or than ProcessOnce allows.
func (l *line) feed(claims []*claim) {
	l.tally.claimed(len(claims))
	for _, c := range claims {
		l.queue <- c
	}
}

// finish waits until everything in the queue has been attempted or released, and recorded.
func (l *line) finish() {
	close(l.queue)
	l.workers.Wait()
	close(l.records)
	<-l.written
}

// ahead is how many claims should wait in the queue or be on their way to it: what the workers can begin within the
// horizon at the pace they keep, up to a few batches. More would sit here under a lease while workers of other
// processes are idle.
func (l *line) ahead() int {
	if l.once {
		return 0
	}
	terms := l.terms.Load()
	horizon := min(time.Second, (terms.Lease-terms.Timeout-leaseMargin)/2)
	average := max(time.Duration(l.average.Load()), 1)
	most := min(4*terms.BatchSize, max(2*terms.BatchSize, maxBatchSize/2))
	return int(min(float64(l.size)*float64(horizon)/float64(average), float64(most)))
}

// room is how many records the next claim may bring.
func (l *line) room() int {
	idle := l.size - int(l.busy.Load())
	return min(idle+l.ahead()-l.waiting(), l.most())
}

// most is how many records one round may claim.
func (l *line) most() int {
	if batch := l.terms.Load().BatchSize; !l.once || batch < l.size {
		return batch
	}
	return l.size
}

// waiting is how many claims are in the queue, or on their way to it.
func (l *line) waiting() int { return len(l.queue) + int(l.booked.Load()) }

// book takes the room for a claim of at least so many records, or none.
func (l *line) book(least int) int {
	l.booking.Lock()
	defer l.booking.Unlock()
	room := l.room()
	if room < least {
		return 0
	}
	l.booked.Add(int64(room))
	return room
}

// waitForRoom waits until a claim is worth its while, half of what may wait having been taken up, and books it. It is 0
// when ctx has ended.
func (l *line) waitForRoom(ctx context.Context) int {
	for ctx.Err() == nil {
		if l.waiting() <= l.ahead()/2 {
			if room := l.book(1); room > 0 {
				return room
			}
		}
		select {
		case <-l.moved:
		case <-ctx.Done():
		}
	}
	return 0
}

// work takes claims off the queue one by one, and attempts each that still has enough of its lease.
func (l *line) work() {
	for c := range l.queue {
		l.slots <- struct{}{} // rounds that overlap share them
		switch {
		case l.ctx.Err() != nil || c.left() < c.terms.Timeout+leaseMargin:
			l.records <- c.unattempted(StatusPending)
		case c.expired():
			l.records <- c.unattempted(StatusExpired)
		default:
			l.busy.Add(1)
			if !l.attempt(c) {
				return // another has this worker's place
			}
			l.busy.Add(-1)
		}
		l.free()
	}
	l.workers.Done()
}

// free gives a worker's slot back.
func (l *line) free() {
	<-l.slots
	tell(l.moved)
}

// replace puts another worker in the place of one that does not return from an attempt.
func (l *line) replace() {
	l.busy.Add(-1)
	l.free()
	go l.work()
}

// left is what this process believes is left of the lease. The lease began after asked, so the belief errs towards too
// little; of the monotonic clock, which stands still while the machine sleeps, and the wall clock, which may be set,
// the one that says more time has passed is taken.
func (c *claim) left() time.Duration { return c.terms.Lease - c.age() }

func (c *claim) age() time.Duration {
	now := time.Now()
	return max(now.Sub(c.asked), now.Round(0).Sub(c.asked.Round(0)))
}

// expired reports whether the message's time has passed while it waited for a worker.
func (c *claim) expired() bool {
	return c.life.Valid && c.age().Microseconds() >= c.life.Int64 // in microseconds, centuries fit
}

// unattempted gives the claim back without an attempt, which is not counted: to be pending again, its place in the
// queue kept, or expired.
func (c *claim) unattempted(status Status) outcome {
	return outcome{claim: c, ID: c.ID, Token: c.token, Status: status, Refund: 1}
}

// timed keeps the average. Workers may overwrite each other's share; it is an estimate.
func (l *line) timed(took time.Duration) {
	if old := time.Duration(l.average.Load()); old != unknownDuration {
		took = old + (took-old)/8
	}
	l.average.Store(int64(took))
}
