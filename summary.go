package outbox

import (
	"log/slog"
	"strings"
	"sync"
)

// Summary counts what a round did. Claimed = Sent + Retried + Failed + Discarded + Expired + Lost + Released + those
// whose outcome the database did not take.
type Summary struct {
	Claimed   int // records this round took on, the spent ones it only closed included
	Sent      int // accepted by their transport
	Retried   int // failed, to be tried again
	Failed    int // ended with their attempts spent
	Discarded int // ended by a permanent refusal
	Expired   int // ended because their time had passed, without a send
	Lost      int // their lease had passed to another claim, which now decides
	Released  int // given back unattempted: too little was left of their lease, a Limit held them back, or the context ended
	Errors    int // claims the database refused, and outcomes it did not take before their leases ended

	Warnings  []string // settings that cannot hold, such as a lease too short for the batch
	LastError string   // SQLSTATE or the driver's code of the last database error, ridden out or not; never its text
}

// String names what is not zero: "claimed 3, sent 2, retried 1".
func (s Summary) String() string {
	var parts []string
	for _, a := range s.attrs() {
		parts = append(parts, strings.ReplaceAll(a.Key, "_", " ")+" "+a.Value.String())
	}
	if len(parts) == 0 {
		return "nothing due"
	}
	return strings.Join(parts, ", ")
}

// LogValue gives slog what is not zero as a group.
func (s Summary) LogValue() slog.Value { return slog.GroupValue(s.attrs()...) }

func (s Summary) attrs() (attrs []slog.Attr) {
	for _, count := range []struct {
		name string
		n    int
	}{
		{"claimed", s.Claimed}, {"sent", s.Sent}, {"retried", s.Retried}, {"failed", s.Failed}, {"discarded", s.Discarded},
		{"expired", s.Expired}, {"lost", s.Lost}, {"released", s.Released}, {"errors", s.Errors},
	} {
		if count.n != 0 {
			attrs = append(attrs, slog.Int(count.name, count.n))
		}
	}
	if s.LastError != "" {
		attrs = append(attrs, slog.String("last_error", s.LastError))
	}
	return attrs
}

// tally is a Summary in the making.
type tally struct {
	mu sync.Mutex
	Summary
}

func (t *tally) count(f func(*Summary)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f(&t.Summary)
}

func (t *tally) claimed(n int) { t.count(func(s *Summary) { s.Claimed += n }) }

func (t *tally) closed(status Status) {
	t.count(func(s *Summary) {
		s.Claimed++
		s.ended(status)
	})
}

func (t *tally) failed(err error) { t.count(func(s *Summary) { s.LastError = errorCode(err) }) }

func (t *tally) claimFailed(err error) {
	t.count(func(s *Summary) { s.Errors++; s.LastError = errorCode(err) })
}

func (t *tally) unrecorded() { t.count(func(s *Summary) { s.Errors++ }) }

func (t *tally) recorded(o outcome, written bool) {
	t.count(func(s *Summary) {
		switch {
		case !written:
			s.Lost++
		case o.Refund > 0 && o.Status == StatusPending:
			s.Released++
		case o.Status == StatusPending:
			s.Retried++
		default:
			s.ended(o.Status)
		}
	})
}

func (s *Summary) ended(status Status) {
	switch status {
	case StatusSent:
		s.Sent++
	case StatusDiscarded:
		s.Discarded++
	case StatusExpired:
		s.Expired++
	default:
		s.Failed++
	}
}
