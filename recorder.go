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
}

// run records until the channel is closed and empty. Its context has no end: what was sent must be recorded.
func (r *recorder) run(ctx context.Context, outcomes <-chan outcome) {
	for first := range outcomes {
		batch := []outcome{first}
		for more := true; more && len(batch) < recordRows; {
			select {
			case next, ok := <-outcomes:
				if more = ok; ok {
					batch = append(batch, next)
				}
			default:
				more = false
			}
		}
		r.write(ctx, batch, false)
	}
}

// write records a batch, and keeps trying while the leases last: these messages have been sent, and giving up early is
// what makes duplicates.
//
// unsure says that an earlier try failed and may have been carried out all the same.
func (r *recorder) write(ctx context.Context, batch []outcome, unsure bool) {
	for wait := recordWait; len(batch) > 0; wait = min(2*wait, recordWaitMost) {
		written, err := r.try(ctx, batch, unsure)
		if err == nil {
			r.settle(batch, written)
			return
		}
		r.tally.failed(err)
		r.cfg.Logger.Error("outbox: recording failed, will be retried", "table", r.store.Table, "records", len(batch), "error", errorCode(err))
		if refusesData(err) {
			r.split(ctx, batch, unsure || r.store.DeleteSent) // where the deletions may stand already
			return
		}
		unsure = true
		pause(ctx, wait)
		batch = r.dropExpired(batch)
	}
}

// try is one write. Where an earlier one failed, records whose lease is gone are looked at: if they stand as that
// write would have left them, it was carried out and only its answer was lost.
func (r *recorder) try(ctx context.Context, batch []outcome, unsure bool) (map[int64]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, batch[0].claim.terms.patience())
	defer cancel()
	db := session(ctx, r.db)
	written, err := r.store.record(db, batch)
	if err != nil || !unsure || len(written) == len(batch) {
		return written, err
	}
	standing, err := r.store.recorded(db, batch)
	for id := range written {
		standing[id] = true
	}
	return standing, err
}

// refusesData reports whether the database objects to what is written and not to the moment, as a constraint or a
// trigger of the app's own does. By the class of its SQLSTATE an error is about the moment if it is about the
// connection, the transaction, resources, locks, an operator or the system; of SQLite's, all are but a constraint.
func refusesData(err error) bool {
	var state interface{ SQLState() string }
	var number interface{ Code() int }
	switch {
	case errors.As(err, &state) && len(state.SQLState()) == 5:
		switch state.SQLState()[:2] {
		case "08", "25", "40", "53", "55", "57", "58":
			return false
		}
		return true
	case errors.As(err, &number):
		return number.Code()&0xff == sqliteConstraint
	}
	return false
}

// sqliteConstraint is SQLITE_CONSTRAINT, the low byte of its kinds.
const sqliteConstraint = 19

// split finds the outcome that the database objects to, so that it takes no other with it.
func (r *recorder) split(ctx context.Context, batch []outcome, unsure bool) {
	if len(batch) == 1 {
		r.giveUp(batch[0], "the database refuses it")
		return
	}
	half := len(batch) / 2
	r.write(ctx, batch[:half], unsure)
	r.write(ctx, batch[half:], unsure)
}

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

// settle counts what was written, and what another claim had taken over.
func (r *recorder) settle(batch []outcome, written map[int64]bool) {
	for _, o := range batch {
		if !written[o.ID] {
			r.cfg.Logger.Warn("outbox: lease lost, another claim decides", "table", r.store.Table, "id", o.ID,
				"topic", o.claim.Topic, "outcome", string(o.Status))
		}
		r.tally.recorded(o, written[o.ID])
	}
}
