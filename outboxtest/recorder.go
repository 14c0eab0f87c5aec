package outboxtest

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/gorm-outbox/outbox"
)

// waitLimit is how long the helpers wait for something that must come.
const waitLimit = 30 * time.Second

// Recorder is a transport that records what it is given and plays a script: each delivery consumes one [Result], and
// when none is left every further one is accepted with a made-up id. The zero value accepts everything. It is safe for
// concurrent use, and one recorder may serve any number of topics and processors.
type Recorder struct {
	mu         sync.Mutex
	deliveries []outbox.Delivery
	script     []Result
	matching   []matching
	inside     map[string]int // message id → deliveries of it that are under way
	most       int
	arrived    chan struct{} // closed at the next delivery
}

// matching is the part of a script that is kept for some messages.
type matching struct {
	match   func(outbox.Delivery) bool
	results []Result
}

var _ outbox.Transport = (*Recorder)(nil)

// NewRecorder gives a recorder that plays the results in order.
func NewRecorder(results ...Result) *Recorder { return new(Recorder).Then(results...) }

// Then adds results to the end of the script.
func (r *Recorder) Then(results ...Result) *Recorder {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.script = append(r.script, results...)
	return r
}

// For keeps results for the deliveries that match: these play them first, and the script only when they are used up.
// match must not call the recorder.
func (r *Recorder) For(match func(outbox.Delivery) bool, results ...Result) *Recorder {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.matching = append(r.matching, matching{match, results})
	return r
}

// OfType matches deliveries of the type, for [Recorder.For].
func OfType(name string) func(outbox.Delivery) bool {
	return func(d outbox.Delivery) bool { return d.Type == name }
}

// Send implements [outbox.Transport].
func (r *Recorder) Send(ctx context.Context, d outbox.Delivery) (externalID string, err error) {
	result, n := r.enter(d)
	defer r.leave(d)
	if result.play == nil {
		return fmt.Sprintf("outboxtest-%d", n), nil
	}
	return result.play(ctx, d)
}

// enter records a delivery and gives its result and its number, from 1.
func (r *Recorder) enter(d outbox.Delivery) (Result, int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.deliveries = append(r.deliveries, clone(d))
	if r.inside == nil {
		r.inside = map[string]int{}
	}
	r.inside[d.MessageID]++
	r.most = max(r.most, r.inside[d.MessageID])
	if r.arrived != nil {
		close(r.arrived)
		r.arrived = nil
	}
	return r.next(d), len(r.deliveries)
}

func (r *Recorder) next(d outbox.Delivery) Result {
	for i := range r.matching {
		if m := &r.matching[i]; len(m.results) > 0 && m.match(d) {
			return shift(&m.results)
		}
	}
	if len(r.script) > 0 {
		return shift(&r.script)
	}
	return Result{}
}

func shift(results *[]Result) Result {
	first := (*results)[0]
	*results = (*results)[1:]
	return first
}

func (r *Recorder) leave(d outbox.Delivery) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.inside[d.MessageID]--; r.inside[d.MessageID] == 0 {
		delete(r.inside, d.MessageID)
	}
}

// clone keeps a record of d that nobody else can change.
func clone(d outbox.Delivery) outbox.Delivery {
	d.Payload = bytes.Clone(d.Payload)
	d.Headers = maps.Clone(d.Headers)
	return d
}

// Deliveries gives what has been delivered so far, in the order of arrival; those still under way are among them.
func (r *Recorder) Deliveries() []outbox.Delivery {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]outbox.Delivery(nil), r.deliveries...)
}

// Count is how many deliveries there have been so far.
func (r *Recorder) Count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.deliveries)
}

// Concurrent is the highest number of deliveries of one and the same message that were under way at a time. The outbox
// keeps it at 1 while the worker that holds a message's lease lives.
func (r *Recorder) Concurrent() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.most
}

// WaitFor waits until there have been n deliveries, for 30 seconds at most, and gives all there are.
func (r *Recorder) WaitFor(t TB, n int) []outbox.Delivery {
	t.Helper()
	limit := time.NewTimer(waitLimit)
	defer limit.Stop()
	for {
		arrived := r.nextArrival()
		if deliveries := r.Deliveries(); len(deliveries) >= n {
			return deliveries
		}
		select {
		case <-arrived:
		case <-limit.C:
			t.Errorf("waited %v for %d deliveries, had %d", waitLimit, n, r.Count())
			t.FailNow()
			return nil
		}
	}
}

// nextArrival is closed when the next delivery arrives.
func (r *Recorder) nextArrival() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.arrived == nil {
		r.arrived = make(chan struct{})
	}
	return r.arrived
}
