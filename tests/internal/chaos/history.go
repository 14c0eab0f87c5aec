package chaos

import (
	"fmt"
	"time"

	"github.com/gorm-outbox/outbox"
)

// History is all that is known of a run when it is over.
type History struct {
	Facts        []StoredFact // what the app's transactions left
	Acknowledged []string     // facts whose COMMIT was answered
	RolledBack   []string     // facts that were undone on purpose
	Records      []Record     // the outbox at the end
	Writes       []Write      // every update of the outbox, in order, noted by the database itself
	Deliveries   []Delivery   // every call of a transport, noted outside the database that breaks
	Lives        []Life       // every worker process
	Outages      []Span       // when a worker could not reach the database, or all could not
	Stalls       []Span       // when a worker says that it got no time to run, for whatever reason
	Timeout      time.Duration
}

// StoredFact is a row of the app's.
type StoredFact struct{ ID, Key string }

// Record is a row of the outbox.
type Record struct {
	ID                    int64
	Fact, Key, Topic      string
	Status                outbox.Status
	Attempts, MaxAttempts int
	ExternalID            string
}

// Write is one update of a record. Was and what ends with Was is what stood there before.
type Write struct {
	Record                   int64
	Writer                   string // the session's application_name: who wrote, whatever the row says
	At                       time.Time
	WasStatus, Status        outbox.Status
	WasAttempts, Attempts    int
	WasToken, Token          string
	WasOwner, Owner          string
	WasUntil, Until          time.Time
	Category, Code, External string
}

// Delivery is one call of a transport.
type Delivery struct {
	ID           string // the provider's id of it
	Record       int64
	Fact, Topic  string
	Attempt      int
	Worker       string
	Behaviour    Behaviour
	Begun, Ended time.Time // Ended is zero if it never did
	Outcome      Outcome
}

// Outcome is how a call of a transport ended.
type Outcome string

// The outcomes.
const (
	Accepted Outcome = "accepted"
	Refused  Outcome = "refused"  // to be tried again
	Rejected Outcome = "rejected" // for good
	TimedOut Outcome = "timed out"
	Panicked Outcome = "panicked"
	Cutoff   Outcome = "" // its process died
)

// accepted reports whether the provider may have the message.
func (d Delivery) accepted() bool { return d.Behaviour.Accepts() && d.Outcome != Refused }

// Span is a stretch of time of a worker's, or of all if the worker has no name.
type Span struct {
	Worker   string
	From, To time.Time
}

func (s Span) of(worker string) bool { return s.Worker == "" || s.Worker == worker }

func (s Span) overlaps(from, to time.Time) bool { return !s.From.After(to) && !s.To.Before(from) }

func anyOverlaps(spans []Span, worker string, from, to time.Time) bool {
	for _, s := range spans {
		if s.of(worker) && s.overlaps(from, to) {
			return true
		}
	}
	return false
}

// Life is a worker process.
type Life struct {
	Worker       string
	Killed, Dead time.Time // when it was killed, zero if never; and when it had certainly ended
	Stopped      []Span    // by a signal
	Report       *Report   // what it said of itself in the end; nil if it could not
}

// Report is what a worker process counted.
type Report struct {
	Rounds     *outbox.Summary       // of all its calls of ProcessOnce, added up; nil of one that uses Run
	Attempts   map[outbox.Status]int // calls of OnAttempt
	NotStarted int                   // those among them that were no call of a transport
	Unnoted    int                   // deliveries that could not be noted as begun
}

// Result is what Check found.
type Result struct {
	Violations []string       // of the promises
	Statuses   map[string]int // records by topic and status
	Delivered  int
	Again      map[string]int // claims that were not the record's first, by why there had to be another
	Duplicates map[string]int // deliveries after one that the provider may have taken, by cause
	Overlaps   map[string]int // deliveries while another was inside a transport, by cause
	Fenced     int            // outcomes that came too late and changed nothing
	Counted    int            // worker processes whose own counts were held against the table
}

func (r *Result) violated(format string, args ...any) {
	r.Violations = append(r.Violations, fmt.Sprintf(format, args...))
}

// Add counts one more round.
func (r *Report) Add(s outbox.Summary) {
	if r.Rounds == nil {
		r.Rounds = &outbox.Summary{}
	}
	sum := r.Rounds
	sum.Claimed += s.Claimed
	sum.Sent += s.Sent
	sum.Retried += s.Retried
	sum.Failed += s.Failed
	sum.Discarded += s.Discarded
	sum.Expired += s.Expired
	sum.Lost += s.Lost
	sum.Released += s.Released
	sum.Errors += s.Errors
}
