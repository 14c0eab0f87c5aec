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

// result is what came of a call of a transport.
type result struct {
	policy.Outcome
	externalID string
	err        error
}

// attempt is one call of a transport. It is decided once: by what the transport does, or by the watch when that takes
// too long.
type attempt struct {
	*line
	claim   *claim
	began   time.Time
	decided atomic.Bool
}

// attempt delivers one claim, hands over what is to be recorded, and then reports it. However the transport behaves,
// the outcome is there within the Timeout and a little. A panic, a Goexit or a transport that ignores its context costs
// this attempt and nothing else; after the latter two another worker has the caller's place, and goOn is false.
func (l *line) attempt(c *claim) (goOn bool) {
	if !l.inside.enter(c.ID) { // an earlier attempt at the same record has not returned yet
		l.conclude(c, l.settle(c, "", errInside), 0)
		return true
	}
	a := &attempt{line: l, claim: c, began: time.Now()}
	ctx, cancel := context.WithTimeout(l.lasting, c.terms.Timeout)
	watch := time.AfterFunc(c.terms.Timeout+deafGrace, a.giveUp)
	var r result
	var stopped error = errGoexit
	defer func() {
		v := recover()
		cancel()
		watch.Stop()
		if v != nil {
			stopped = panicked(v)
			l.logPanic(c, stopped)
		}
		if stopped != nil {
			r = l.settle(c, "", stopped)
		}
		goOn = a.end(r)
		if goOn && stopped == errGoexit {
			l.replace()
		}
	}()
	r = l.send(ctx, c)
	stopped = nil
	return
}

// end decides an attempt whose transport has returned, unless that came too late.
func (a *attempt) end(r result) bool {
	a.inside.leave(a.claim.ID)
	if !a.decided.CompareAndSwap(false, true) {
		return false
	}
	a.conclude(a.claim, r, time.Since(a.began))
	return true
}

// giveUp decides an attempt whose transport ignores its context, and leaves the worker to it.
func (a *attempt) giveUp() {
	if a.decided.CompareAndSwap(false, true) {
		a.conclude(a.claim, a.settle(a.claim, "", errTimeout), time.Since(a.began))
		a.replace()
	}
}

// conclude hands over what is to be recorded before it reports it: the app's hook does not hold it up.
func (l *line) conclude(c *claim, r result, took time.Duration) {
	l.timed(took)
	l.records <- r.outcome(c)
	l.observe(c, r, took)
}

// outcome is what is recorded of a result.
func (r result) outcome(c *claim) outcome {
	o := outcome{claim: c, ID: c.ID, Token: c.token, Status: r.Status}
	if r.Status == StatusSent {
		if r.externalID != "" {
			id := policy.Clean(r.externalID, maxExternalID)
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

// Errors that stand for what a transport did instead of returning one.
var (
	errTimeout = &policy.Failure{Category: policy.CategoryTimeout, Code: "timeout", OutcomeUnknown: true}
	errInside  = &policy.Failure{Category: policy.CategoryTimeout, Code: "still_running", OutcomeUnknown: true}
	errGoexit  = &policy.Failure{Category: policy.CategoryPanic, Code: "goexit", OutcomeUnknown: true}
)

// send calls the transport and judges its answer, both under guard: an error's own methods may panic too.
func (l *line) send(ctx context.Context, c *claim) result {
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

func (l *line) settle(c *claim, externalID string, err error) result {
	settle := policy.Settle
	if l.cfg.AtMostOnce[c.Topic] {
		settle = policy.SettleAtMostOnce
	}
	return result{settle(err, c.Attempt, c.MaxAttempts, c.terms.Backoff, rand.Float64()), externalID, err}
}

// panicked is the failure that stands for a panic; called where it is recovered, so that the stack is still there.
func panicked(v any) error {
	return &policy.Failure{
		Category: policy.CategoryPanic, Code: fmt.Sprintf("%T", v), OutcomeUnknown: true,
		Err: &panicError{value: v, stack: debug.Stack()},
	}
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
func (l *line) observe(c *claim, r result, took time.Duration) {
	if r.Unattempted {
		return
	}
	if l.cfg.OnAttempt != nil {
		l.onAttempt(c, Attempt{
			Delivery: c.Delivery, Status: r.Status, Category: r.Category, Code: r.Code, RetryIn: r.Delay,
			ExternalID: r.externalID, Err: r.err, Duration: took,
		})
	}
	level := slog.LevelError
	switch r.Status {
	case StatusSent:
		level = slog.LevelDebug
	case StatusPending:
		level = slog.LevelWarn
	}
	if !l.cfg.Logger.Enabled(l.ctx, level) { // asked first: the attributes cost more than the answer
		return
	}
	text := "outbox: message " + string(r.Status)
	if r.Status == StatusPending {
		text = "outbox: delivery failed, will be retried"
	}
	l.cfg.Logger.Log(l.ctx, level, text, l.attrs(c, r, took)...)
}

// onAttempt calls the app's hook, whose panic is no business of the message's, and waits for it no longer than for a
// transport.
func (l *line) onAttempt(c *claim, a Attempt) {
	ctx, cancel := context.WithTimeout(l.lasting, c.terms.Timeout)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done) // also after a Goexit
		defer func() {
			if recover() != nil {
				l.cfg.Logger.Error("outbox: OnAttempt panicked", "id", c.ID, "topic", c.Topic)
			}
		}()
		l.cfg.OnAttempt(ctx, a)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		l.cfg.Logger.Error("outbox: OnAttempt does not return", "id", c.ID, "topic", c.Topic)
	}
}

func (l *line) attrs(c *claim, r result, took time.Duration) []any {
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
func (l *line) logPanic(c *claim, stopped error) {
	var p *panicError
	if errors.As(stopped, &p) {
		l.cfg.Logger.Error("outbox: transport panicked", "id", c.ID, "topic", c.Topic, "value", fmt.Sprintf("%T", p.value), "stack", string(p.stack))
	}
}

// inside is the set of records that are inside a transport.
type inside struct {
	mu  sync.Mutex
	ids map[int64]struct{}
}

func (s *inside) enter(id int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, taken := s.ids[id]; taken {
		return false
	}
	if s.ids == nil {
		s.ids = map[int64]struct{}{}
	}
	s.ids[id] = struct{}{}
	return true
}

func (s *inside) leave(id int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.ids, id)
}
