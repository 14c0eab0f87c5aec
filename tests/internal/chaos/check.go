package chaos

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gorm-outbox/outbox"
)

// Why a claim was not the record's last.
const (
	causeKilled  = "its worker was killed"
	causeStopped = "its worker was stopped past its lease"
	causeOutage  = "its worker could not reach the database"
	causeStarved = "its worker got no time to run"
	causeDeaf    = "its transport ignored the end of its context"
	causeTimeout = "the provider took it and its answer did not come in time"
	causeUnknown = "NOTHING EXPLAINS IT"
)

// claim is one lease of a record's, from the write that made it.
type claim struct {
	Write
	outcome   *Write    // what its worker wrote of it; nil if that never came, or too late
	next      time.Time // when another claim took the record over, or closed it; zero if none did
	delivered *Delivery // nil if no transport was called
}

// released reports whether it was given back without an attempt.
func (c *claim) released() bool {
	return c.outcome != nil && c.outcome.Status == outbox.StatusPending && c.outcome.Attempts == c.Attempts-1
}

// story is everything that happened to a record.
type story struct {
	Record
	claims     []*claim
	deliveries []Delivery // in the order in which they began
	last       Write      // the update that left it as it is
}

// checker is a Check under way.
type checker struct {
	*History
	*Result
	stories map[int64]*story
	lives   map[string]*Life
	writes  map[string]*tally // by who wrote
}

// tally is what the table says of one worker.
type tally struct {
	claims, closed, released, delivered int
	outcomes                            map[outbox.Status]int
}

// Check holds the history against what the outbox promises.
func (h *History) Check() *Result {
	c := &checker{
		History: h, stories: map[int64]*story{}, lives: map[string]*Life{}, writes: map[string]*tally{},
		Result: &Result{
			Statuses: map[string]int{}, Delivered: len(h.Deliveries),
			Again: map[string]int{}, Duplicates: map[string]int{}, Overlaps: map[string]int{},
		},
	}
	for i := range h.Lives {
		c.lives[h.Lives[i].Worker] = &h.Lives[i]
		c.writes[h.Lives[i].Worker] = &tally{outcomes: map[outbox.Status]int{}}
	}
	for _, r := range h.Records {
		c.stories[r.ID] = &story{Record: r}
		c.Statuses[r.Topic+" "+string(r.Status)]++
	}
	c.checkFacts()
	for _, w := range h.Writes {
		c.replay(w)
	}
	for _, d := range h.Deliveries {
		c.place(d)
	}
	for _, id := range slices.Sorted(maps.Keys(c.stories)) {
		c.checkStory(c.stories[id])
	}
	for _, l := range h.Lives {
		c.checkCounts(l)
	}
	return c.Result
}

// checkStory judges one record.
func (c *checker) checkStory(s *story) {
	if !s.Status.Terminal() {
		c.violated("message %d has not ended: %s after %d attempts", s.ID, s.Status, s.Attempts)
	}
	if s.Attempts > s.MaxAttempts {
		c.violated("message %d was tried %d times, of %d allowed", s.ID, s.Attempts, s.MaxAttempts)
	}
	slices.SortFunc(s.deliveries, func(a, b Delivery) int { return a.Begun.Compare(b.Begun) })
	c.checkEnd(s)
	for _, claim := range s.claims {
		c.checkOutcome(claim)
	}
	c.checkClaims(s)
	c.checkOverlaps(s)
	c.checkDuplicates(s)
	if s.Topic == Once {
		c.checkOnce(s)
	}
}

// checkEnd holds the row against the last write that it saw, and what was sent against a delivery.
func (c *checker) checkEnd(s *story) {
	if s.Status == outbox.StatusSent && !slices.ContainsFunc(s.deliveries, func(d Delivery) bool {
		return d.ID == s.ExternalID && d.Attempt == s.Attempts && d.Outcome == Accepted
	}) {
		c.violated("message %d is sent by %q after %d attempts, and no such delivery was accepted", s.ID, s.ExternalID, s.Attempts)
	}
	charged := 0
	for _, claim := range s.claims {
		if !claim.released() {
			charged++
		}
	}
	if charged != s.Attempts {
		c.violated("message %d counts %d attempts, its claims %d", s.ID, s.Attempts, charged)
	}
	if len(s.claims) > 0 && (s.last.Status != s.Status || s.last.Attempts != s.Attempts || s.last.External != s.ExternalID) {
		c.violated("message %d is not what its last write made of it: %+v, %+v", s.ID, s.Record, s.last)
	}
}

// lost says why a claim's outcome never reached the table.
func (c *checker) lost(claim *claim) string {
	life := c.lives[claim.Owner]
	switch {
	case life == nil:
		return causeUnknown
	case !life.Killed.IsZero() && life.Killed.Before(claim.Until):
		return causeKilled
	case anyOverlaps(life.Stopped, claim.Owner, claim.At, claim.Until):
		return causeStopped
	case c.unheard(claim) || anyOverlaps(c.Outages, claim.Owner, claim.Until.Add(-lastTries), claim.Until):
		return causeOutage
	case anyOverlaps(c.Stalls, claim.Owner, claim.At, claim.Until):
		return causeStarved
	default:
		return causeUnknown
	}
}

// lastTries is how long before the end of its lease a worker must be cut off for its outcome not to be written: it tries
// again at least each second, and a try of which it hears nothing takes a third of the lease.
const lastTries = 3 * time.Second

// unheard reports whether the answer to the claim itself may have been lost: nothing was delivered under it.
func (c *checker) unheard(claim *claim) bool {
	const onItsWay = time.Second // a statement, when the connection behind it is cut already; and its answer
	return claim.delivered == nil && anyOverlaps(c.Outages, claim.Owner, claim.At.Add(-onItsWay), claim.At.Add(onItsWay))
}

// checkClaims says of each claim why it was not the last, and objects if nothing explains it.
func (c *checker) checkClaims(s *story) {
	for i, claim := range s.claims {
		if claim.outcome == nil && !claim.next.IsZero() {
			cause := c.lost(claim)
			if cause == causeUnknown {
				c.violated("message %d: the claim of %s for attempt %d came to nothing, and no fault explains it", s.ID, claim.Owner, claim.Attempts)
			}
			if d := claim.delivered; d != nil && d.Outcome != Cutoff && d.Ended.After(claim.next) {
				c.Fenced++
			}
			c.Again[cause]++
		} else if i+1 < len(s.claims) {
			c.Again[why(claim)]++
		}
	}
}

// why says what had an attempt followed by another although its outcome was recorded.
func why(c *claim) string {
	switch {
	case c.released():
		return "released"
	case c.outcome == nil:
		return causeUnknown
	default:
		return "retried: " + c.outcome.Category
	}
}

// checkDuplicates says of each delivery that the provider may have taken, and that another such followed, why.
func (c *checker) checkDuplicates(s *story) {
	last := -1
	for i, d := range s.deliveries {
		if d.accepted() {
			last = i
		}
	}
	for i, d := range s.deliveries {
		if i >= last || !d.accepted() {
			continue
		}
		cause := causeUnknown
		switch claim := s.claimOf(d); {
		case claim == nil:
		case claim.outcome == nil:
			cause = c.lost(claim)
		case claim.outcome.Category == "timeout" && d.Behaviour == Deaf:
			cause = causeDeaf
		case claim.outcome.Category == "timeout":
			cause = causeTimeout
		}
		if cause == causeUnknown {
			c.violated("message %d was delivered again after %s had delivered it, and no fault explains it", s.ID, d.ID)
		}
		c.Duplicates[cause]++
	}
}

// checkOnce holds a topic that is delivered at most once against its promise: after an attempt that may have reached
// the provider there is no other.
func (c *checker) checkOnce(s *story) {
	for i, d := range s.deliveries {
		if i > 0 && s.deliveries[i-1].Outcome != Refused {
			c.violated("message %d is to be delivered once at most, and %s tried it after %s, which %s", s.ID, d.ID,
				s.deliveries[i-1].ID, s.deliveries[i-1].Outcome)
		}
	}
}

// checkOverlaps objects to a delivery that began while another was inside a transport, unless one of the two workers
// was stopped, or the other transport was deaf.
func (c *checker) checkOverlaps(s *story) {
	for i, first := range s.deliveries {
		for _, second := range s.deliveries[i+1:] {
			if !second.Begun.Before(c.ended(first)) {
				continue
			}
			cause := c.overlap(s, first, second)
			if cause == causeUnknown {
				c.violated("message %d went into %s while it was inside %s", s.ID, second.ID, first.ID)
			}
			c.Overlaps[cause]++
		}
	}
}

// ended is when a delivery was over at the latest.
func (c *checker) ended(d Delivery) time.Time {
	life := c.lives[d.Worker]
	switch {
	case d.Outcome != Cutoff:
		return d.Ended
	case life != nil && !life.Dead.IsZero():
		return life.Dead
	default:
		c.violated("delivery %s of message %d has no end", d.ID, d.Record)
		return d.Begun
	}
}

func (c *checker) overlap(s *story, first, second Delivery) string {
	one, other := s.claimOf(first), s.claimOf(second)
	if one == nil || other == nil || first.Worker == second.Worker { // one process knows what it is about
		return causeUnknown
	}
	for _, at := range []struct {
		worker   string
		from, to time.Time
	}{{first.Worker, one.At, second.Begun}, {second.Worker, other.At, second.Begun}} {
		if life := c.lives[at.worker]; life != nil && anyOverlaps(life.Stopped, at.worker, at.from, at.to) {
			return causeStopped
		}
		if anyOverlaps(c.Stalls, at.worker, at.from, at.to) {
			return causeStarved
		}
	}
	if one.outcome != nil && one.outcome.Category == "timeout" && second.Begun.Sub(first.Begun) >= c.Timeout {
		return causeDeaf
	}
	return causeUnknown
}

// claimOf is the claim under which a delivery was made.
func (s *story) claimOf(d Delivery) *claim {
	for _, claim := range slices.Backward(s.claims) {
		if claim.Owner == d.Worker && claim.Attempts == d.Attempt && !claim.At.After(d.Begun) {
			return claim
		}
	}
	return nil
}

// String gives the totals.
func (r *Result) String() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%d deliveries; %d late outcomes fenced off; %d workers' counts agree\n", r.Delivered, r.Fenced, r.Counted)
	for _, part := range []struct {
		name   string
		counts map[string]int
	}{{"records", r.Statuses}, {"claimed again", r.Again}, {"delivered again", r.Duplicates}, {"at the same time", r.Overlaps}} {
		fmt.Fprintf(&text, "%s:", part.name)
		for _, key := range slices.Sorted(maps.Keys(part.counts)) {
			fmt.Fprintf(&text, " %s %d;", key, part.counts[key])
		}
		text.WriteString("\n")
	}
	return text.String()
}
