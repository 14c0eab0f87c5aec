package outbox

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/gorm-outbox/outbox/policy"
)

// Limit slows a transport down to a rate that its provider allows: at most perSecond sends begin each second, evenly
// spaced, in this process. Where the provider answers that it is too much all the same, a [policy.Failure] of category
// rate_limited with a RetryAfter, every message waits that long, unless the answer is RetryAlone.
//
// A message that would wait longer than half of its Timeout is given back to the table instead, uncounted, to come back
// when it is its turn. Those that wait hold slots of Concurrency, so a topic with a low rate is best served by a
// Processor of its own. A message that t refuses before it asks the provider takes its turn all the same. The rate is
// 0.001 to 1,000,000; NewProcessor refuses another with [ErrInvalid].
func Limit(t Transport, perSecond float64) Transport {
	l := &limited{transport: t, rate: perSecond}
	l.unfit = l.problem()
	return l
}

type limited struct {
	transport Transport
	rate      float64
	unfit     error // what is wrong with the two

	mu    sync.Mutex
	next  time.Time // when the next send may begin
	until time.Time // the provider wants none before
}

// check is asked by NewProcessor.
func (l *limited) check() error { return l.unfit }

func (l *limited) problem() error {
	switch {
	case isNil(l.transport):
		return invalid("the transport given to Limit is nil")
	case !(l.rate >= minRate && l.rate <= maxRate): // also NaN
		return invalid("the rate given to Limit is %v, must be %v to %v a second", l.rate, minRate, maxRate)
	}
	if inner, ok := l.transport.(interface{ check() error }); ok {
		return inner.check()
	}
	return nil
}

// Send waits for its turn.
func (l *limited) Send(ctx context.Context, d Delivery) (string, error) {
	if l.unfit != nil {
		return "", l.unfit
	}
	if err := l.admit(ctx); err != nil {
		return "", err
	}
	id, err := l.transport.Send(ctx, d)
	l.obey(err)
	return id, err
}

// admit waits until a send may begin. After a wait it asks again, since the provider may have called a halt meanwhile.
func (l *limited) admit(ctx context.Context) error {
	for booked := false; ; booked = true {
		wait, ok := l.book(ctx, booked)
		if !ok {
			return notYet(wait)
		}
		if wait <= 0 {
			return nil
		}
		if pause(ctx, wait); ctx.Err() != nil {
			return notYet(0)
		}
	}
}

// book takes the next turn, unless one is taken already, and says how long until then. It refuses a turn that is too
// far away for the context.
func (l *limited) book(ctx context.Context, booked bool) (wait time.Duration, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	turn := l.until
	if !booked && l.next.After(turn) {
		turn = l.next
	}
	if turn.Before(now) {
		turn = now
	}
	wait = turn.Sub(now)
	if deadline, bounded := ctx.Deadline(); ctx.Err() != nil || bounded && wait > deadline.Sub(now)/2 {
		return wait, false
	}
	if !booked {
		l.next = turn.Add(time.Duration(float64(time.Second) / l.rate))
	}
	return wait, true
}

// notYet gives a message back; those that are given back together do not come back together.
func notYet(wait time.Duration) error {
	spread := time.Duration(rand.Float64() * float64(min(wait, time.Minute)) / 4)
	return &policy.Failure{Category: policy.CategoryRateLimited, Code: "held_back", RetryAfter: wait + spread, Unattempted: true}
}

// maxHalt bounds for how long one answer of the provider stops everything.
const maxHalt = time.Hour

// obey remembers how long the provider wants to be left alone.
func (l *limited) obey(err error) {
	f, _ := policy.AsFailure(err)
	if err == nil || f.Category != policy.CategoryRateLimited || f.RetryAfter <= 0 || f.RetryAlone {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if until := time.Now().Add(min(f.RetryAfter, maxHalt)); until.After(l.until) {
		l.until = until
	}
}
