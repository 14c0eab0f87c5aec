package policy

import (
	"errors"
	"time"
)

// Class says whether trying again can help.
type Class string

// The classes. The zero value means "not said": [Failure] then takes the class of its category.
const (
	OK        Class = "ok"
	Transient Class = "transient"
	Permanent Class = "permanent"
)

// Category groups failures by what an operator has to do about them. Transports may use categories of their own:
// what is not catalogued here is transient, so that an unknown fault delays a message and never drops it.
type Category string

// The catalogued categories. The first group is transient, the second permanent.
const (
	CategoryNetwork             Category = "network"              // unreachable, reset, server error
	CategoryRateLimited         Category = "rate_limited"         // the provider asks to slow down
	CategoryIdempotencyConflict Category = "idempotency_conflict" // the provider is still busy with the same key
	CategoryTimeout             Category = "timeout"              // set by the processor: no answer in time
	CategoryPanic               Category = "panic"                // set by the processor: the transport panicked
	CategoryUnknown             Category = "unknown"              // an error that is no Failure

	CategoryCredentials Category = "credentials" // the sender's key, account or permission is refused
	CategoryRejected    Category = "rejected"    // the provider refuses the message
	CategoryBilling     Category = "billing"     // the account has to be paid first
	CategoryTemplate    Category = "template"    // the template is unknown, or does not fit its data
	CategoryNumber      Category = "number"      // the recipient does not exist or cannot receive
	CategoryWindow      Category = "window"      // outside the time in which the channel allows the message
	CategoryPayload     Category = "payload"     // the payload does not decode
)

// CategoryOutcomeUnknown is that of a record whose topic is delivered at most once, and which may or may not have been
// delivered: a person has to look. Its code says what happened to the attempt.
const CategoryOutcomeUnknown Category = "outcome_unknown"

// Categories of records that are closed without a send; their code repeats the category.
const (
	CategoryLeaseExpired      Category = "lease_expired"      // the last allowed attempt never reported back
	CategoryAttemptsExhausted Category = "attempts_exhausted" // due, but with no attempt left
)

// conflictDelay is the least wait after an idempotency conflict: the provider is still working on the first request,
// and a quick retry only meets it again.
const conflictDelay = 60 * time.Second

// TransientCategories lists the catalogued transient categories, for tests and panels.
func TransientCategories() []Category {
	return []Category{
		CategoryNetwork, CategoryRateLimited, CategoryIdempotencyConflict, CategoryTimeout, CategoryPanic, CategoryUnknown,
	}
}

// PermanentCategories lists the permanent categories, for tests and panels.
func PermanentCategories() []Category {
	return []Category{
		CategoryCredentials, CategoryRejected, CategoryBilling, CategoryTemplate, CategoryNumber, CategoryWindow, CategoryPayload,
	}
}

// Class is Permanent for the categories of [PermanentCategories] and Transient for every other.
func (c Category) Class() Class {
	switch c {
	case CategoryCredentials, CategoryRejected, CategoryBilling, CategoryTemplate, CategoryNumber, CategoryWindow, CategoryPayload:
		return Permanent
	default:
		return Transient
	}
}

// MinDelay is the least wait before a retry after a failure of this category: 60 s for an idempotency conflict, even
// the first time, and zero for every other.
func (c Category) MinDelay() time.Duration {
	if c == CategoryIdempotencyConflict {
		return conflictDelay
	}
	return 0
}

// Failure is the error by which a transport says what went wrong. Return it by value or by pointer, bare or wrapped.
// An error that holds no Failure is transient, with category unknown.
type Failure struct {
	Category       Category      // groups it; empty: unknown
	Code           string        // the provider's own code, cut to 64 characters when stored
	Class          Class         // overrides the class of the category; empty: the category's
	RetryAfter     time.Duration // the provider asks to wait at least this long; zero or less: it does not say
	RetryAlone     bool          // the wait is about this message alone, as a limit per recipient is: others need not slow down
	OutcomeUnknown bool          // the provider may have accepted the message all the same, as after a timeout
	Unattempted    bool          // the provider was not asked at all: the attempt is not counted
	Err            error         // the cause, for logs of the app's own; never stored, never logged by the outbox
}

// Error gives category and code alone: the cause may quote the recipient or the payload. It is there for Unwrap.
func (f Failure) Error() string {
	text := "outbox: delivery failed: " + string(f.category())
	if f.Code != "" {
		text += "/" + f.Code
	}
	return text
}

// Unwrap gives the cause.
func (f Failure) Unwrap() error { return f.Err }

func (f Failure) category() Category {
	if f.Category == "" {
		return CategoryUnknown
	}
	return f.Category
}

func (f Failure) class() Class {
	if f.Class == "" {
		return f.category().Class()
	}
	return f.Class
}

// AsFailure finds the first Failure in err's tree, given by value or by pointer.
func AsFailure(err error) (Failure, bool) {
	unknown := Failure{Category: CategoryUnknown, Err: err}
	var byPointer *Failure
	if errors.As(err, &byPointer) {
		if byPointer == nil { // a nil *Failure in an error is a slip; looking on would call its methods
			return unknown, false
		}
		return *byPointer, true
	}
	var byValue Failure
	if errors.As(err, &byValue) {
		return byValue, true
	}
	return unknown, false
}

// Classify says what err means for the message: nil is OK, a [Failure] anywhere in its tree decides by its class, and
// every other error is Transient.
func Classify(err error) Class {
	if err == nil {
		return OK
	}
	f, _ := AsFailure(err)
	if f.class() == OK { // an error is never a success, whatever it says of itself
		return Transient
	}
	return f.class()
}
