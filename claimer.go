package outbox

import (
	"context"
	"slices"
	"sync"
	"time"
)

// fullScan is how often at least a topic is claimed from the very beginning, whatever its floor.
const fullScan = 2 * time.Second

// patience bounds a statement whose answer never comes, as behind a dead connection: soon enough to try again while the
// lease lasts.
func (t *terms) patience() time.Duration { return min(t.Lease/3, 15*time.Second) }

// claimer takes leases, sharing each round between the topics. A line may have several at work.
type claimer struct {
	*line
	floors *floors
	failed bool // the last round met a database error
}

// floor is where the next claim of a topic may begin. While an old transaction keeps the database from cleaning up,
// the index entries of finished records pile up at the head of the claim index, and a claim from the beginning walks
// over all of them. So a claim that came back full is followed by one from the due time it had reached. Records below
// that, released, retried or committed late, are seen by the claim from the beginning that follows as soon as one
// comes back short, and every few seconds in any case.
type floor struct {
	due     time.Time // zero: claim from the beginning
	scanned time.Time // when that was done last
}

// floors are those of the topics, shared by the claimers of a line.
type floors struct {
	mu      sync.Mutex
	byTopic map[string]floor
}

// of gives where a claim of the topic that is asked for now should begin.
func (f *floors) of(topic string, asked time.Time) time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	if known := f.byTopic[topic]; asked.Sub(known.scanned) < fullScan {
		return known.due
	}
	return time.Time{}
}

// reached notes how far a claim has come: the due time of its last record if it came back full, else zero. What
// another claim has reached meanwhile counts, if it is further on.
func (f *floors) reached(topic string, from, asked, due time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	known := f.byTopic[topic]
	if from.IsZero() {
		known.scanned = asked
	}
	if due.IsZero() || due.After(known.due) {
		known.due = due
	}
	f.byTopic[topic] = known
}

func newClaimer(l *line) *claimer {
	return &claimer{line: l, floors: &floors{byTopic: map[string]floor{}}}
}

// claimBeside has other claimers at work where the line has room for more than one claim: a claim is mostly waiting
// for the disk. They begin when told that there is more, and rest when it comes to its end. The function it gives
// waits for their end, which is that of ctx.
func (c *claimer) claimBeside(ctx context.Context, more <-chan struct{}) (wait func()) {
	var others sync.WaitGroup
	for range c.store.claimers - 1 {
		other := &claimer{line: c.line, floors: c.floors}
		others.Add(1)
		go func() {
			defer others.Done()
			for {
				select {
				case <-more:
					other.claimOn(ctx)
				case <-ctx.Done():
					return
				}
			}
		}()
	}
	return others.Wait
}

// claimOn claims whole batches for as long as there are any and the line has room for them.
func (c *claimer) claimOn(ctx context.Context) {
	for ctx.Err() == nil {
		booked := c.book(c.most())
		if booked == 0 || !c.bring(ctx, booked) || c.failed {
			return
		}
	}
}

// bring claims into the room that was booked for it.
func (c *claimer) bring(ctx context.Context, booked int) (more bool) {
	claims, more := c.round(ctx, booked)
	c.feed(claims)
	c.booked.Add(-int64(booked))
	return more
}

// round claims up to limit records: first an equal share for each topic, so that no backlog keeps another topic's
// messages waiting, then what is left for those that have more. It reports whether there may be more still. What was
// claimed is not kept waiting while a topic has nothing but a pile of records to close.
func (c *claimer) round(ctx context.Context, limit int) (claims []*claim, more bool) {
	c.failed = false
	hungry := c.hungry(ctx)
	for before := -1; len(hungry) > 0 && !c.failed && ctx.Err() == nil; {
		if len(claims) > 0 && len(claims) == before {
			return claims, true
		}
		before = len(claims)
		var next []string
		for i, topic := range hungry {
			share := (limit - len(claims) + len(hungry) - i - 1) / (len(hungry) - i)
			if share <= 0 {
				return claims, true
			}
			got, full := c.topic(ctx, topic, share)
			claims = append(claims, got...)
			if full {
				next = append(next, topic)
			}
		}
		hungry = next
	}
	return claims, len(hungry) > 0
}

// hungry gives the topics worth a claim, each round another first. Those whose last claim left more behind are; the
// others are asked together, so that an idle processor costs one statement a round, however many topics it serves.
func (c *claimer) hungry(ctx context.Context) []string {
	turn := int(c.turn.Add(1) % uint64(len(c.topics)))
	topics := append(append([]string(nil), c.topics[turn:]...), c.topics[:turn]...)
	var quiet []string
	left := map[string]bool{}
	now := time.Now()
	for _, topic := range topics {
		if left[topic] = !c.floors.of(topic, now).IsZero(); !left[topic] {
			quiet = append(quiet, topic)
		}
	}
	if len(quiet) < 2 {
		return topics
	}
	ctx, cancel := c.statementContext(ctx)
	defer cancel()
	waiting, err := c.store.waiting(session(ctx, c.db), quiet)
	if err != nil {
		c.fail(err, "")
		return nil
	}
	return slices.DeleteFunc(topics, func(topic string) bool { return !left[topic] && !waiting[topic] })
}

// statementContext lets a statement run to its end even if ctx ends meanwhile: a claim given up half-way might have
// taken leases that nobody knows of.
func (c *claimer) statementContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), c.terms.Load().patience())
}

func (c *claimer) fail(err error, topic string) {
	c.failed = true
	c.tally.claimFailed(err)
	c.cfg.Logger.Error("outbox: claim failed", "table", c.store.Table, "topic", topic, "error", errorCode(err))
}

// topic claims up to limit records of one topic that can be delivered, and reports whether there may be more. Those
// whose time has passed or whose attempts are spent are closed on the way.
func (c *claimer) topic(ctx context.Context, topic string, limit int) (claims []*claim, more bool) {
	found, more := c.claim(ctx, topic, limit)
	for _, f := range found {
		if f.closed != "" {
			c.tally.closed(f.closed)
			c.logClosed(f)
		} else {
			claims = append(claims, f)
		}
	}
	return claims, more
}

// claim is one claim statement. There may be more if it came back full, or did not look from the beginning.
func (c *claimer) claim(ctx context.Context, topic string, limit int) (found []*claim, more bool) {
	asked, terms := time.Now(), c.terms.Load()
	from := c.floors.of(topic, asked)
	ctx, cancel := c.statementContext(ctx)
	defer cancel()
	found, err := c.store.claim(session(ctx, c.db), lease{
		topic: topic, limit: limit, floor: from, owner: c.cfg.Owner, term: terms.Lease, once: c.cfg.AtMostOnce[topic],
	})
	if err != nil {
		c.fail(err, topic)
		return nil, false
	}
	for _, f := range found {
		f.asked, f.terms = asked, terms
	}
	var due time.Time
	full := len(found) == limit
	if full {
		due = found[limit-1].due
	}
	c.floors.reached(topic, from, asked, due)
	return found, full || !from.IsZero()
}

func (c *claimer) logClosed(f *claim) {
	why := "its attempts are spent"
	switch {
	case f.closed == StatusExpired:
		why = "its time has passed"
	case f.Attempt < f.MaxAttempts:
		why = "its worker never reported back, and it must not be delivered twice"
	}
	c.cfg.Logger.Error("outbox: message "+string(f.closed)+": "+why, "table", c.store.Table, "id", f.ID,
		"topic", f.Topic, "type", f.Type, "attempts", f.Attempt)
}
