package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorm-outbox/outbox/policy"
)

// deafGrace is how long a transport may take to notice that its context has ended before the attempt goes on without
// it. What it still answers in this time counts. It stays within leaseMargin.
const deafGrace = 250 * time.Millisecond

// line is the delivery line of one ProcessOnce or Run: claims wait in a queue for a free worker, and outcomes go on to
// the recorder.
type line struct {
	*Processor
	ctx     context.Context // ends: start nothing more
	terms   *terms          // of the next claim; the claims that are out keep theirs
	tally   tally
	queue   chan claim
	records chan outcome
	moved   chan struct{} // signals that a worker took or finished a claim
	workers sync.WaitGroup
	written chan struct{} // closed when the recorder is done
	size    int           // how many workers
	once    bool          // a topic is delivered at most once: claim nothing ahead
	busy    atomic.Int64  // workers inside an attempt
	average atomic.Int64  // moving average of an attempt's duration
}

// startLine starts the workers and the recorder; finish ends them.
func (p *Processor) startLine(ctx context.Context, workers int) *line {
	l := &line{
		Processor: p, ctx: ctx, size: workers, once: p.deliversOnce(), terms: p.agree(ctx, p.cfg.terms()),
		queue:   make(chan claim, 2*maxBatchSize+workers),
		records: make(chan outcome, maxBatchSize),
		moved:   make(chan struct{}, 1),
		written: make(chan struct{}),
	}
	l.average.Store(int64(unknownDuration))
	go func() {
		defer close(l.written)
		(&recorder{Processor: p, tally: &l.tally}).run(context.WithoutCancel(ctx), l.records)
	}()
	for range l.size {
		l.workers.Add(1)
		go func() {
			defer l.workers.Done()
			l.work()
		}()
	}
	return l
}

// feed queues claims. There is always room: no more is claimed than waitForRoom and ProcessOnce allow.
func (l *line) feed(claims []claim) {
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

// ahead is how many claims should wait in the queue: what the workers can begin within the horizon at the pace they
// keep. More would sit here under a lease while workers of other processes are idle.
func (l *line) ahead() int {
	if l.once {
		return 0
	}
	horizon := min(time.Second, (l.terms.Lease-l.terms.Timeout-leaseMargin)/2)
	average := max(time.Duration(l.average.Load()), 1)
	return int(min(float64(l.size)*float64(horizon)/float64(average), float64(l.terms.BatchSize)))
}

// most is how many records one round may claim.
func (l *line) most() int {
	if l.once {
		return min(l.terms.BatchSize, l.size)
	}
	return l.terms.BatchSize
}

// room is how many records the next claim may bring.
func (l *line) room() int {
	idle := l.size - int(l.busy.Load())
	return min(idle+l.ahead()-len(l.queue), l.terms.BatchSize)
}

// waitForRoom waits until a claim is worth its while, half of what may wait having been taken up. It is false when
// ctx has ended.
func (l *line) waitForRoom(ctx context.Context) bool {
	for ctx.Err() == nil {
		if len(l.queue) <= l.ahead()/2 && l.room() > 0 {
			return true
		}
		select {
		case <-l.moved:
		case <-ctx.Done():
		}
	}
	return false
}

func (l *line) signal() {
	select {
	case l.moved <- struct{}{}:
	default:
	}
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
			l.attempt(c)
			l.busy.Add(-1)
		}
		<-l.slots
		l.signal()
	}
}

// left is what this process believes is left of the lease. The lease began after asked, so the belief errs towards too
// little; of the monotonic clock, which stands still while the machine sleeps, and the wall clock, which may be set,
// the one that says more time has passed is taken.
func (c claim) left() time.Duration { return c.terms.Lease - c.age() }

func (c claim) age() time.Duration {
	now := time.Now()
	return max(now.Sub(c.asked), now.Round(0).Sub(c.asked.Round(0)))
}

// expired reports whether the message's time has passed while it waited for a worker.
func (c claim) expired() bool {
	return c.life.Valid && c.age().Microseconds() >= c.life.Int64 // in microseconds, centuries fit
}

// unattempted gives the claim back without an attempt, which is not counted: to be pending again, its place in the
// queue kept, or expired.
func (c claim) unattempted(status Status) outcome {
	return outcome{claim: c, ID: c.ID, Token: c.token, Status: status, Refund: 1}
}

// result is what came of a call of a transport.
type result struct {
	policy.Outcome
	externalID string
	err        error
}

// attempt delivers one claim, hands over what is to be recorded, and then reports it. However the transport behaves,
// the outcome is there within the Timeout and a little; the app's hook does not hold it up.
func (l *line) attempt(c claim) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(l.ctx), c.terms.Timeout)
	defer cancel()
	began := time.Now()
	r := l.call(ctx, c)
	took := time.Since(began)
	l.timed(took)
	l.records <- r.outcome(c)
	l.observe(c, r, took)
}

// outcome is what is recorded of a result.
func (r result) outcome(c claim) outcome {
	o := outcome{claim: c, ID: c.ID, Token: c.token, Status: r.Status}
	if r.Status == StatusSent {
		if id := policy.Clean(r.externalID, maxExternalID); id != "" {
			o.External = &id
		}
		return o
	}
	category := string(r.Category)
	o.Category, o.Code = &category, r.Code
	if r.Unknown {
		o.Unsure = 1
	}
	if r.Unattempted {
		o.Refund = 1
	}
	if r.Status == StatusPending {
		delay := r.Delay.Microseconds()
		o.Delay = &delay
	}
	return o
}

// maxExternalID is how many characters of a provider's id are kept.
const maxExternalID = 255

// timed keeps the average. Workers may overwrite each other's share; it is an estimate.
func (l *line) timed(took time.Duration) {
	if old := time.Duration(l.average.Load()); old != unknownDuration {
		took = old + (took-old)/8
	}
	l.average.Store(int64(took))
}

// Errors that stand for what a transport did instead of returning one.
var (
	errTimeout = &policy.Failure{Category: policy.CategoryTimeout, Code: "timeout", OutcomeUnknown: true}
	errInside  = &policy.Failure{Category: policy.CategoryTimeout, Code: "still_running", OutcomeUnknown: true}
	errGoexit  = &policy.Failure{Category: policy.CategoryPanic, Code: "goexit", OutcomeUnknown: true}
)

// call runs the transport in a goroutine of its own, so that a panic, a Goexit or a transport that ignores its context
// costs this attempt and nothing else. One that is still inside an earlier attempt at the same record is not called a
// second time.
func (l *line) call(ctx context.Context, c claim) result {
	if !l.inside.enter(c.ID) {
		return l.settle(c, "", errInside)
	}
	done := make(chan result, 1)
	var r result
	go guard(func() { r = l.send(ctx, c) }, func(stopped error) {
		if stopped != nil {
			l.logPanic(c, stopped)
			r = l.settle(c, "", stopped)
		}
		l.inside.leave(c.ID)
		done <- r
	})
	select {
	case r := <-done:
		return r
	case <-ctx.Done():
	}
	grace := time.NewTimer(deafGrace)
	defer grace.Stop()
	select {
	case r := <-done:
		return r
	case <-grace.C:
		return l.settle(c, "", errTimeout)
	}
}

// send calls the transport and judges its answer, both under guard: an error's own methods may panic too.
func (l *line) send(ctx context.Context, c claim) result {
	d := c.Delivery
	if l.cfg.OnAttempt != nil { // which is to see what the transport was given, not what it made of it
		d.Payload, d.Headers = slices.Clone(d.Payload), maps.Clone(d.Headers)
	}
	externalID, err := l.cfg.Transports[c.Topic].Send(ctx, d)
	return l.settle(c, externalID, timedOut(ctx, err))
}

// timedOut makes a timeout of what a transport made of the end of its context, unless it says that the message was
// refused for good: transports tend to report it as a fault of the network.
func timedOut(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	_, said := policy.AsFailure(err)
	if said && !errors.Is(err, context.DeadlineExceeded) || policy.Classify(err) == policy.Permanent {
		return err
	}
	return &policy.Failure{Category: policy.CategoryTimeout, Code: "timeout", OutcomeUnknown: true, Err: err}
}

func (l *line) settle(c claim, externalID string, err error) result {
	settle := policy.Settle
	if l.cfg.AtMostOnce[c.Topic] {
		settle = policy.SettleAtMostOnce
	}
	return result{settle(err, c.Attempt, c.MaxAttempts, c.terms.Backoff, rand.Float64()), externalID, err}
}

// guard runs f, then after, in a goroutine made for it. stopped is nil if f returned, else a failure that stands for
// its panic or its Goexit.
func guard(f func(), after func(stopped error)) {
	var stopped error = errGoexit
	defer func() {
		if v := recover(); v != nil {
			stopped = &policy.Failure{
				Category: policy.CategoryPanic, Code: fmt.Sprintf("%T", v), OutcomeUnknown: true,
				Err: &panicError{value: v, stack: debug.Stack()},
			}
		}
		after(stopped)
	}()
	f()
	stopped = nil
}

// panicError is the cause in a Failure that stands for a panic.
type panicError struct {
	value any
	stack []byte
}

// Error quotes the panic; it goes to OnAttempt alone, never to a log or a column.
func (e *panicError) Error() string { return fmt.Sprintf("panic: %v\n%s", e.value, e.stack) }

// Unwrap gives the value if it was an error.
func (e *panicError) Unwrap() error {
	err, _ := e.value.(error)
	return err
}

// observe reports the attempt to the app and to the log.
func (l *line) observe(c claim, r result, took time.Duration) {
	if r.Unattempted {
		return
	}
	if l.cfg.OnAttempt != nil {
		l.onAttempt(c, Attempt{
			Delivery: c.Delivery, Status: r.Status, Category: r.Category, Code: r.Code, RetryIn: r.Delay,
			ExternalID: r.externalID, Err: r.err, Duration: took,
		})
	}
	level, text := slog.LevelError, "outbox: message "+string(r.Status)
	switch r.Status {
	case StatusSent:
		level = slog.LevelDebug
	case StatusPending:
		level, text = slog.LevelWarn, "outbox: delivery failed, will be retried"
	}
	if l.cfg.Logger.Enabled(l.ctx, level) { // asked first: the attributes cost more than the answer
		l.cfg.Logger.Log(l.ctx, level, text, l.attrs(c, r, took)...)
	}
}

// onAttempt calls the app's hook, whose panic is no business of the message's, and waits for it no longer than for a
// transport.
func (l *line) onAttempt(c claim, a Attempt) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(l.ctx), c.terms.Timeout)
	defer cancel()
	done := make(chan error, 1)
	go guard(func() { l.cfg.OnAttempt(ctx, a) }, func(stopped error) { done <- stopped })
	select {
	case stopped := <-done:
		if stopped != nil {
			l.cfg.Logger.Error("outbox: OnAttempt panicked", "id", c.ID, "topic", c.Topic)
		}
	case <-ctx.Done():
		l.cfg.Logger.Error("outbox: OnAttempt does not return", "id", c.ID, "topic", c.Topic)
	}
}

func (l *line) attrs(c claim, r result, took time.Duration) []any {
	attrs := []any{
		"table", l.store.Table, "id", c.ID, "message_id", c.MessageID, "topic", c.Topic, "type", c.Type,
		"attempt", c.Attempt, "max_attempts", c.MaxAttempts, "duration", took,
	}
	if r.Category != "" {
		attrs = append(attrs, "category", string(r.Category), "code", r.Code)
	}
	if r.Status == StatusPending {
		attrs = append(attrs, "retry_in", r.Delay)
	}
	return attrs
}

// logPanic shows where a transport panicked; the value may be private, the stack is not.
func (l *line) logPanic(c claim, stopped error) {
	var p *panicError
	if errors.As(stopped, &p) {
		l.cfg.Logger.Error("outbox: transport panicked", "id", c.ID, "topic", c.Topic, "value", fmt.Sprintf("%T", p.value), "stack", string(p.stack))
	}
}

// inside is the set of records that are inside a transport.
type inside struct{ ids sync.Map }

func (s *inside) enter(id int64) bool {
	_, taken := s.ids.LoadOrStore(id, struct{}{})
	return !taken
}

func (s *inside) leave(id int64) { s.ids.Delete(id) }
