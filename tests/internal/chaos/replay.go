package chaos

import (
	"github.com/gorm-outbox/outbox"
)

// checkFacts holds that a message is there exactly when its fact is.
func (c *checker) checkFacts() {
	byKey, byFact := map[string]int{}, map[string]int{}
	for _, r := range c.Records {
		byFact[r.Fact]++
		if r.Key != "" {
			byKey[r.Key]++
		}
	}
	stored := map[string]bool{}
	for _, f := range c.Facts {
		stored[f.ID] = true
		if n := byFact[f.ID]; f.Key == "" && n != 1 {
			c.violated("fact %s has %d messages", f.ID, n)
		}
		if n := byKey[f.Key]; f.Key != "" && n != 1 {
			c.violated("fact %s has %d messages with its key %s", f.ID, n, f.Key)
		}
	}
	for _, r := range c.Records {
		if !stored[r.Fact] {
			c.violated("message %d tells of %s, which never was", r.ID, r.Fact)
		}
	}
	for _, id := range c.Acknowledged {
		if !stored[id] {
			c.violated("fact %s was committed, and is gone", id)
		}
	}
	for _, id := range c.RolledBack {
		if stored[id] {
			c.violated("fact %s was rolled back, and is there", id)
		}
	}
	for _, d := range c.Deliveries {
		if !stored[d.Fact] {
			c.violated("delivery %s tells of %s, which never was", d.ID, d.Fact)
		}
	}
}

// replay judges one update of a record and adds it to the record's story. There are three kinds: a claim, a claim that
// closes the record instead, and the outcome of a claim.
func (c *checker) replay(w Write) {
	s := c.stories[w.Record]
	if s == nil {
		c.violated("message %d was written by %s and is gone", w.Record, w.Writer)
		return
	}
	s.last = w
	if w.WasStatus.Terminal() {
		c.violated("message %d was %s, and %s made it %s", w.Record, w.WasStatus, w.Writer, w.Status)
	}
	by := c.writes[w.Writer]
	if by == nil {
		c.violated("message %d was written by %q, which is no worker", w.Record, w.Writer)
		by = &tally{outcomes: map[outbox.Status]int{}}
	}
	closes := w.Status == outbox.StatusFailed && (w.Code == "lease_expired" || w.Code == "attempts_exhausted")
	switch {
	case w.Token != "" && w.Token != w.WasToken:
		by.claims++
		c.taken(s, w)
		s.claims = append(s.claims, &claim{Write: w})
	case closes:
		by.closed++
		c.taken(s, w)
	case w.Token == "" && len(s.claims) > 0:
		c.decided(s, w, by)
	default:
		c.violated("message %d: %s made a %s record %s in no way there is", w.Record, w.Writer, w.WasStatus, w.Status)
	}
}

// taken judges a claim, or what a claim closes: nobody else may hold a lease.
func (c *checker) taken(s *story, w Write) {
	if w.WasStatus == outbox.StatusProcessing {
		if w.WasUntil.After(w.At) {
			c.violated("message %d was taken by %s from %s, %v before the end of its lease", s.ID, w.Writer, w.WasOwner, w.WasUntil.Sub(w.At))
		}
		if s.Topic == Once && w.Token != "" {
			c.violated("message %d is to be delivered once at most, and %s claimed it after %s", s.ID, w.Writer, w.WasOwner)
		}
		s.claims[len(s.claims)-1].next = w.At
	}
	if w.Attempts > s.MaxAttempts {
		c.violated("message %d: %s claimed it for attempt %d of %d", s.ID, w.Writer, w.Attempts, s.MaxAttempts)
	}
	if w.Token != "" && (w.Attempts != w.WasAttempts+1 || w.Owner != w.Writer) {
		c.violated("message %d: %s claimed it for %s, and attempts went from %d to %d", s.ID, w.Writer, w.Owner, w.WasAttempts, w.Attempts)
	}
}

// decided judges an outcome: only who holds the claim may write it.
func (c *checker) decided(s *story, w Write, by *tally) {
	current := s.claims[len(s.claims)-1]
	if w.WasStatus != outbox.StatusProcessing || w.WasToken != current.Token || w.Writer != current.Owner {
		c.violated("message %d: %s wrote %s, and the claim was that of %s", s.ID, w.Writer, w.Status, current.Owner)
		return
	}
	current.outcome = &w
	switch {
	case current.released():
		by.released++
	case w.Attempts != w.WasAttempts:
		c.violated("message %d: %s wrote %s, and attempts went from %d to %d", s.ID, w.Writer, w.Status, w.WasAttempts, w.Attempts)
	default:
		by.outcomes[w.Status]++
	}
}

// place adds a delivery to its record's story, and to the claim that it was made under.
func (c *checker) place(d Delivery) {
	s := c.stories[d.Record]
	if s == nil {
		c.violated("delivery %s is of message %d, which is gone", d.ID, d.Record)
		return
	}
	s.deliveries = append(s.deliveries, d)
	if by := c.writes[d.Worker]; by != nil {
		by.delivered++
	}
	claim := s.claimOf(d)
	switch {
	case claim == nil:
		c.violated("delivery %s of message %d, attempt %d, was made under no claim", d.ID, d.Record, d.Attempt)
	case claim.delivered != nil:
		c.violated("attempt %d at message %d was made twice: %s and %s", d.Attempt, d.Record, claim.delivered.ID, d.ID)
	default:
		claim.delivered = &d
	}
}

// categories are what is recorded of the outcomes of transports, where topics are delivered at least once.
var categories = map[Outcome]string{Refused: "network", Panicked: "panic", TimedOut: "timeout", Rejected: "rejected"}

// checkOutcome holds what a worker wrote against what its transport did.
func (c *checker) checkOutcome(claim *claim) {
	w, d := claim.outcome, claim.delivered
	if w == nil {
		return
	}
	fits := false
	switch {
	case claim.released():
		fits = d == nil
	case w.Status == outbox.StatusSent:
		fits = d != nil && d.Outcome == Accepted && d.ID == w.External
	case d == nil:
		fits = w.Code == "still_running"
	case w.Category == "timeout" || w.Category == "outcome_unknown": // a transport that took too long may end otherwise
		fits = w.Status != outbox.StatusDiscarded && (w.Category == "timeout" || d.Outcome != Rejected && d.Outcome != Refused)
	default:
		fits = w.Category == categories[d.Outcome] && (w.Status == outbox.StatusDiscarded) == (d.Outcome == Rejected)
	}
	if !fits {
		c.violated("message %d: %s wrote %s (%s, %s) of attempt %d, and its transport did this: %+v", w.Record, w.Writer, w.Status,
			w.Category, w.Code, w.Attempts, d)
	}
}

// checkCounts holds what a worker counted against what the table says of it. A count may fall short where the worker
// says that it does not know: of outcomes that met an error or were lost to another claim.
func (c *checker) checkCounts(l Life) {
	table := c.writes[l.Worker]
	if l.Report == nil {
		return
	}
	c.Counted++
	attempts := -l.Report.NotStarted
	for _, n := range l.Report.Attempts {
		attempts += n
	}
	for status, written := range table.outcomes {
		if n := l.Report.Attempts[status]; written > n {
			c.violated("%s reported %d attempts as %s, and wrote %d", l.Worker, n, status, written)
		}
	}
	if attempts != table.delivered && l.Report.Unnoted == 0 {
		c.violated("%s reported %d attempts, and made %d", l.Worker, attempts, table.delivered)
	}
	if l.Report.Rounds == nil {
		return
	}
	s := *l.Report.Rounds
	unrecorded := s.Claimed - s.Sent - s.Retried - s.Failed - s.Discarded - s.Expired - s.Lost - s.Released
	c.short(l.Worker, "unrecorded", s.Errors, unrecorded, s.Errors)
	c.short(l.Worker, string(outbox.StatusSent), table.outcomes[outbox.StatusSent], s.Sent, unrecorded)
	c.short(l.Worker, string(outbox.StatusDiscarded), table.outcomes[outbox.StatusDiscarded], s.Discarded, unrecorded)
	c.short(l.Worker, "retried", table.outcomes[outbox.StatusPending], s.Retried, unrecorded+s.Lost)
	c.short(l.Worker, "released", table.released, s.Released, unrecorded+s.Lost)
	unheard := s.Errors * maxUnheard // a claim that met an error may have claimed and closed a batch
	c.short(l.Worker, string(outbox.StatusFailed), table.outcomes[outbox.StatusFailed]+table.closed, s.Failed, unrecorded+unheard)
	c.short(l.Worker, "claimed", table.claims+table.closed, s.Claimed, unheard)
}

// maxUnheard is how many records a claim may have met whose reply was lost: the largest batch of any worker.
const maxUnheard = 1000

// short objects unless the count is what was written, or less by no more than the slack.
func (c *checker) short(worker, what string, written, counted, slack int) {
	if missing := written - counted; missing < 0 || missing > slack {
		c.violated("%s counted %d %s, and wrote %d; it admits to %d unknown", worker, counted, what, written, slack)
	}
}
