package policy

import "time"

// Status is where a record stands in its life. The values are what the database column holds.
type Status string

// The states of a record. Pending and processing are alive; the others are terminal.
const (
	StatusPending    Status = "pending"    // waits for its due time, for a first or a later attempt
	StatusProcessing Status = "processing" // claimed: a worker holds its lease
	StatusSent       Status = "sent"       // the transport accepted it
	StatusDiscarded  Status = "discarded"  // permanently refused
	StatusFailed     Status = "failed"     // its attempts are spent
	StatusCancelled  Status = "cancelled"  // withdrawn by the app before it was sent
	StatusExpired    Status = "expired"    // its time passed before it was sent
)

// Dead reports whether a record in this state failed for good: kept with its category and code, and to be redriven or
// purged.
func (s Status) Dead() bool { return s == StatusDiscarded || s == StatusFailed }

// Terminal reports whether a record in this state is never claimed again.
func (s Status) Terminal() bool { return s != StatusPending && s != StatusProcessing }

// State is what the claim rule looks at.
type State struct {
	Status      Status    // where the record stands
	Attempts    int       // how often the record has been claimed for delivery
	MaxAttempts int       // how often it may be
	DueAt       time.Time // when it may be tried next; a lease never moves it
	LeasedUntil time.Time // when the current lease ends; zero: none
	ExpiresAt   time.Time // from when on it must not be sent; zero: never
	AtMostOnce  bool      // its topic is better lost than doubled
}

// Decision says what a worker that looks at a record should do with it.
type Decision string

// What [Decide] can answer.
const (
	Send       Decision = "send"        // claim it and deliver it
	Reclaim    Decision = "reclaim"     // as Send, but its last worker let the lease run out
	Discard    Decision = "discard"     // close it without a send: its attempts are spent, or one more might double it
	Expire     Decision = "expire"      // close it without a send: its time has passed
	RetryLater Decision = "retry_later" // it failed before and its next attempt is not due yet
	Wait       Decision = "wait"        // nothing to do: terminal, scheduled for later, or leased
)

// Decide is the claim rule. The processor's SQL says the same: a record is claimed exactly when Decide answers
// Send, Reclaim, Discard or Expire at the database's time. All bounds are inclusive: a record due at now is due, a
// lease that ends at now has ended, and so has the life of a record that expires at now.
func Decide(m State, now time.Time) Decision {
	leased := m.LeasedUntil.After(now)
	switch {
	case m.Status.Terminal() || leased:
		return Wait
	case m.DueAt.After(now) && m.Attempts > 0:
		return RetryLater
	case m.DueAt.After(now):
		return Wait
	case m.Status == StatusProcessing && m.AtMostOnce: // its last worker may have sent it
		return Discard
	case !m.ExpiresAt.IsZero() && !m.ExpiresAt.After(now):
		return Expire
	case m.Attempts >= m.MaxAttempts:
		return Discard
	case m.Status == StatusProcessing:
		return Reclaim
	default:
		return Send
	}
}
