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
}

// Settle decides what becomes of a record after an attempt ended with err. attempt counts from 1. Sent on nil;
// discarded on a permanent failure; failed when this was the last attempt; else pending, due after the longest of the
// backoff, the provider's RetryAfter and the category's least wait. random is passed to [Backoff.Delay].
func Settle(err error, attempt, maxAttempts int, b Backoff, random float64) Outcome {
	class := Classify(err)
	if class == OK {
		return Outcome{Status: StatusSent}
	}
	f, _ := AsFailure(err)
	out := Outcome{Category: Category(Clean(string(f.category()), maxCode)), Code: Clean(f.Code, maxCode)}
	switch {
	case class == Permanent:
		out.Status = StatusDiscarded
	case attempt >= maxAttempts:
		out.Status = StatusFailed
	default:
		out.Status = StatusPending
		out.Delay = max(b.Delay(attempt-1, random), min(f.RetryAfter, maxDelay), f.category().MinDelay())
	}
	return out
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
