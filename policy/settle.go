package policy

import (
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// maxCode is how many characters of a category or a code are kept.
const maxCode = 64

// Outcome is what an attempt makes of its record.
type Outcome struct {
	Status   Status        // sent, pending (it will be tried again), discarded or failed
	Delay    time.Duration // pending: how long until it is due again
	Category Category      // empty when sent
	Code     string        // cleaned and cut to 64 characters; may be empty

	Unknown     bool // the provider may have accepted the message all the same
	Unattempted bool // the provider was not asked: the attempt is to be given back
}

// unattemptedDelay is the least wait of a message whose provider was not asked: nothing else keeps it from going round.
const unattemptedDelay = time.Second

// Settle decides what becomes of a record after an attempt ended with err. attempt counts from 1. Sent on nil;
// discarded on a permanent failure; failed when this was the last attempt; else pending, due after the longest of the
// backoff, the provider's RetryAfter and the category's least wait. One that was no attempt is pending again after
// RetryAfter, and a second at least. random is passed to [Backoff.Delay].
func Settle(err error, attempt, maxAttempts int, b Backoff, random float64) Outcome {
	class := Classify(err)
	if class == OK {
		return Outcome{Status: StatusSent}
	}
	f, _ := AsFailure(err)
	out := Outcome{
		Category: Category(Clean(string(f.category()), maxCode)), Code: Clean(f.Code, maxCode), Unknown: f.OutcomeUnknown,
	}
	switch {
	case class == Permanent:
		out.Status = StatusDiscarded
	case f.Unattempted:
		out.Status, out.Unknown, out.Unattempted = StatusPending, false, true
		out.Delay = max(min(f.RetryAfter, maxDelay), unattemptedDelay)
	case attempt >= maxAttempts:
		out.Status = StatusFailed
	default:
		out.Status = StatusPending
		out.Delay = max(b.Delay(attempt-1, random), min(f.RetryAfter, maxDelay), f.category().MinDelay())
	}
	return out
}

// SettleAtMostOnce is Settle for messages that are better lost than doubled: where Settle would try again although the
// provider may have accepted the message, it fails, category outcome_unknown, for a person to decide. An error that
// holds no [Failure] does not say that nothing was accepted, and counts as such.
func SettleAtMostOnce(err error, attempt, maxAttempts int, b Backoff, random float64) Outcome {
	out := Settle(err, attempt, maxAttempts, b, random)
	_, said := AsFailure(err)
	retries := out.Status == StatusPending || out.Status == StatusFailed
	if !retries || out.Unattempted || said && !out.Unknown {
		return out
	}
	if out.Code == "" {
		out.Code = string(out.Category)
	}
	return Outcome{Status: StatusFailed, Category: CategoryOutcomeUnknown, Code: out.Code, Unknown: true}
}

// Clean makes s fit for a text column and for a terminal: invalid UTF-8 and control characters become '?', and it is
// cut to limit characters. Providers' codes and ids come from outside; a byte that the column cannot hold must not
// keep an outcome from being recorded.
func Clean(s string, limit int) string {
	if n := limit * utf8.UTFMax; len(s) > n { // what lies beyond can't be kept: don't scan megabytes for it
		s = s[:n]
	}
	s = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || unicode.IsControl(r) {
			return '?'
		}
		return r
	}, s)
	if utf8.RuneCountInString(s) <= limit {
		return s
	}
	return string([]rune(s)[:limit])
}
