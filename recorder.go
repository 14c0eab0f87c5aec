package outbox

import (
	"context"
	"errors"
	"time"
)

// How outcomes are written: together, and again until it works.
const (
	recordRows     = 1000
	recordWait     = 50 * time.Millisecond // after the first failure, doubling
	recordWaitMost = time.Second           // soon after the database is back: leases are running out
)

// recorder writes outcomes. Those that become ready while a write is under way are the next write, so the batches grow
// with the load, and without load nothing waits.
type recorder struct {
	*Processor
	tally *tally
	held  []outcome     // refused one by one, for a reason that may pass
	wait  time.Duration // until they are tried again
	tried time.Time     // when they were
}

// run records until the channel is closed and nothing is held. Its context has no end: what was sent must be recorded.
func (r *recorder) run(ctx context.Context, outcomes <-chan outcome) {
	for open := true; open || len(r.held) > 0; {
		var batch []outcome
		if batch, open = r.gather(outcomes); !open {
			outcomes = nil
		}
		r.write(ctx, batch, false)
		r.retryHeld(ctx)
	}
}

// gather waits for an outcome, and takes with it those that are ready too. What is held cuts the wait short.
func (r *recorder) gather(outcomes <-chan outcome) (batch []outcome, open bool) {
	var again <-chan time.Time
	if len(r.held) > 0 {
		timer := time.NewTimer(time.Until(r.tried.Add(r.wait)))
		defer timer.Stop()
		again = timer.C
	}
	select {
	case <-again:
		return nil, outcomes != nil
	case first, ok := <-outcomes:
		if !ok {
			return nil, false
		}
		batch = append(make([]outcome, 0, min(1+len(outcomes), recordRows)), first)
	}
	for len(batch) < recordRows {
		select {
		case next, ok := <-outcomes:
			if !ok {
				return batch, false
			}
			batch = append(batch, next)
		default:
			return batch, true
		}
	}
	return batch, true
}

// write records a batch, and keeps trying while the leases last: these messages have been sent, and giving up early is
// what makes duplicates. unsure says that an earlier try failed and may have been carried out all the same, or has
// waited in vain for a record that somebody has locked.
func (r *recorder) write(ctx context.Context, batch []outcome, unsure bool) {
	for wait := recordWait; len(batch) > 0; wait = min(2*wait, recordWaitMost) {
		fates, err := r.try(ctx, batch, unsure)
		if err == nil {
			r.settle(batch, fates)
			return
		}
		r.tally.failed(err)
		if refuses(err) {
			r.split(ctx, batch, err, unsure || r.store.DeleteSent) // where the deletions may stand already
			return
		}
		r.cfg.Logger.Error("outbox: recording failed, will be retried", "table", r.store.Table, "records", len(batch), "error", errorCode(err))
		unsure = true
		pause(ctx, wait)
		batch = r.dropExpired(batch)
	}
}

// split finds the outcome that the database objects to, so that it takes no other with it. One refused for its values
// is given up; another may only need the schema mended, and is held.
func (r *recorder) split(ctx context.Context, batch []outcome, err error, unsure bool) {
	if half := len(batch) / 2; half > 0 {
		r.write(ctx, batch[:half], unsure)
		r.write(ctx, batch[half:], unsure)
		return
	}
	o := batch[0]
	if refusesValues(err) {
		r.giveUp(o, "the database refuses it")
		return
	}
	r.hold(o, errorCode(err))
}

// hold keeps an outcome for another try, while others go on.
func (r *recorder) hold(o outcome, why string) {
	if !o.held {
		r.cfg.Logger.Error("outbox: recording failed, will be retried", "table", r.store.Table, "id", o.ID,
			"topic", o.claim.Topic, "error", why)
	}
	o.held = true
	r.held = append(r.held, o)
}

// retryHeld tries what is held once more when its time has come.
func (r *recorder) retryHeld(ctx context.Context) {
	if len(r.held) == 0 || time.Since(r.tried) < r.wait {
		return
	}
	held := r.dropExpired(r.held)
	r.held = nil
	r.write(ctx, held, true)
	r.tried, r.wait = time.Now(), min(2*max(r.wait, recordWait), recordWaitMost)
	if len(r.held) == 0 {
		r.wait = 0
	}
}

// try is one write, and gives the fate of each outcome. After one that failed, records that somebody has locked are
// left out, and those that were not met are looked at.
func (r *recorder) try(ctx context.Context, batch []outcome, unsure bool) (map[int64]fate, error) {
	ctx, cancel := context.WithTimeout(ctx, batch[0].claim.terms.patience())
	defer cancel()
	db := session(ctx, r.db)
	met, err := r.store.record(db, batch, unsure)
	if err != nil {
		return nil, err
	}
	fates := map[int64]fate{}
	if unsure && len(met) < len(batch) {
		if fates, err = r.store.fates(db, batch); err != nil {
			return nil, err
		}
	}
	for id := range met {
		fates[id] = fateWritten
	}
	return fates, nil
}

// refuses reports whether the database objects to the statement, its values or the schema it meets, and not to the
// moment: by the class of its SQLSTATE, or as a constraint of SQLite's.
func refuses(err error) bool {
	var number interface{ Code() int }
	switch sqlClass(err) {
	case "":
		return errors.As(err, &number) && number.Code()&0xff == sqliteConstraint
	case "22", "23", "42", "44", "54", "P0":
		return true
	default:
		return false
	}
}

// refusesValues reports whether it objects to what is written, as a constraint or a trigger of the app's own does.
func refusesValues(err error) bool {
	switch sqlClass(err) {
	case "", "22", "23", "44", "54", "P0": // without a SQLSTATE it is SQLite's constraint
		return true
	default:
		return false
	}
}

// sqlClass is the class of an error's SQLSTATE, empty where it has none.
func sqlClass(err error) string {
	var state interface{ SQLState() string }
	if errors.As(err, &state) && len(state.SQLState()) == 5 {
		return state.SQLState()[:2]
	}
	return ""
}

// sqliteConstraint is SQLITE_CONSTRAINT, the low byte of its kinds.
const sqliteConstraint = 19

// dropExpired gives up on outcomes whose leases have ended: other claims decide about those records now.
func (r *recorder) dropExpired(batch []outcome) []outcome {
	var kept []outcome
	for _, o := range batch {
		if o.claim.left() > 0 {
			kept = append(kept, o)
		} else {
			r.giveUp(o, "its lease ended first")
		}
	}
	return kept
}

func (r *recorder) giveUp(o outcome, why string) {
	r.tally.unrecorded()
	r.cfg.Logger.Error("outbox: outcome not recorded, the message will be delivered again: "+why, "table", r.store.Table,
		"id", o.ID, "topic", o.claim.Topic, "outcome", string(o.Status))
}

// settle counts what was written and what another claim had taken over, and holds what somebody has locked.
func (r *recorder) settle(batch []outcome, fates map[int64]fate) {
	for _, o := range batch {
		switch fates[o.ID] {
		case fateOpen:
			r.hold(o, "locked")
			continue
		case fateLost:
			r.cfg.Logger.Warn("outbox: lease lost, another claim decides", "table", r.store.Table, "id", o.ID,
				"topic", o.claim.Topic, "outcome", string(o.Status))
		}
		r.tally.recorded(o, fates[o.ID] == fateWritten)
	}
}
