package tests

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"gorm.io/gorm"
)

// refusal is a database's error with its SQLSTATE.
type refusal string

// Error implements error.
func (r refusal) Error() string { return "refused: " + string(r) }

// SQLState is how the outbox reads it.
func (r refusal) SQLState() string { return string(r) }

// What the model's database does to a processor, and how it shows.
const (
	noFault      = "none"
	claimRefused = "the claim is refused"       // by a serialization failure, say
	claimLost    = "the claim's answer is lost" // as if the worker had died right after it
	writeRefused = "the write is refused"       // at the first try
	writeLost    = "the write's answer is lost" // at the first try
	forgetful    = "23514"                      // what the write of an outcome that is to be forgotten is refused with
	passing      = refusal("40001")             // what a refusal that passes is
	lostAnswer   = "bad connection"             // how the outbox calls the loss of an answer
)

// How the outbox's statements are told from each other.
const (
	inClaims    = "leased_until = CASE WHEN"
	inWrites    = "coalesce(o.category,"
	inDeletions = "(SELECT record_id, token FROM" // of what was sent: a write too
)

// faultyPool is a pool that fails as it is told.
type faultyPool struct {
	gorm.ConnPool

	mu     sync.Mutex
	fault  string         // for the next statement that it is about
	forget map[int64]bool // records whose outcomes are never written: their worker dies with them
}

// set arms the pool for a round.
func (p *faultyPool) set(fault string, forget map[int64]bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault, p.forget = fault, forget
}

// QueryContext is how every statement of a processor goes.
func (p *faultyPool) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	claim := strings.Contains(query, inClaims)
	write := strings.Contains(query, inWrites) || strings.Contains(query, inDeletions)
	if write && p.forgets(args) {
		return nil, refusal(forgetful)
	}
	switch p.trip(claim, write) {
	case claimRefused, writeRefused:
		return nil, passing
	case claimLost, writeLost:
		rows, err := p.ConnPool.QueryContext(ctx, query, args...)
		if err != nil {
			return nil, err
		}
		for rows.Next() { // the statement runs to its end
		}
		return nil, errors.Join(driver.ErrBadConn, rows.Close())
	}
	return p.ConnPool.QueryContext(ctx, query, args...)
}

// forgets reports whether a write is about a record whose outcome is to be forgotten.
func (p *faultyPool) forgets(args []any) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id := range p.forget {
		if strings.Contains(fmt.Sprint(args...), fmt.Sprintf(`"record_id":%d,`, id)) {
			return true
		}
	}
	return false
}

// trip gives the fault that a statement meets, once.
func (p *faultyPool) trip(claim, write bool) (fault string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	about := claim && (p.fault == claimRefused || p.fault == claimLost) || write && (p.fault == writeRefused || p.fault == writeLost)
	if about {
		fault, p.fault = p.fault, noFault
	}
	return fault
}

// answer is what a transport makes of a delivery, and what the oracle needs to know of it.
type answer struct {
	name             string
	external         string // accepted
	category, code   string // failed
	permanent        bool   // and to be discarded
	unknown          bool   // the provider may have it all the same
	unsaid           bool   // the error is no policy.Failure
	unattempted      bool   // the provider was not asked
	retryAfter       time.Duration
	died             bool // the outcome is never written
	panics, goesAway bool
}

// answers are the kinds of outcomes.
var answers = []answer{
	{name: "sent"},
	{name: "sent x1", external: "x1"},
	{name: "sent x2", external: "x2"},
	{name: "sent, and died", died: true},
	{name: "an error", category: "unknown", unsaid: true},
	{name: "refused by the network", category: "network", code: "503"},
	{name: "timed out", category: "timeout", code: "timeout", unknown: true},
	{name: "slow down", category: "rate_limited", code: "429", retryAfter: 3 * time.Hour},
	{name: "still busy with it", category: "idempotency_conflict", code: "409"},
	{name: "credentials", category: "credentials", code: "401", permanent: true},
	{name: "no such number, perhaps sent", category: "number", code: "131026", permanent: true, unknown: true},
	{name: "an own category, for good", category: "odd", code: "x", permanent: true},
	{name: "held back", category: "rate_limited", code: "held_back", unattempted: true, retryAfter: 2 * time.Hour},
	{name: "held back, outcome unknown", category: "network", unattempted: true, unknown: true, retryAfter: 4 * time.Hour},
	{name: "held back for good", category: "template", code: "gone", unattempted: true, permanent: true, retryAfter: time.Hour},
	{name: "panic", category: "panic", code: "string", unknown: true, panics: true},
	{name: "Goexit", category: "panic", code: "goexit", unknown: true, goesAway: true},
}

// GoString is how a failing run shows it.
func (a answer) GoString() string { return a.name }

// reply behaves as the answer says.
func (a answer) reply() (string, error) {
	switch {
	case a.panics:
		panic(a.name)
	case a.goesAway:
		runtime.Goexit()
	case a.category == "":
		return a.external, nil
	case a.unsaid:
		return "", errors.New(a.name)
	}
	f := policy.Failure{
		Category: policy.Category(a.category), Code: a.code, RetryAfter: a.retryAfter,
		OutcomeUnknown: a.unknown, Unattempted: a.unattempted,
	}
	if a.permanent {
		f.Class = policy.Permanent
	}
	return "", fmt.Errorf("wrapped: %w", f)
}

// script is a transport that answers each record as it is told, and keeps what it was given.
type script struct {
	mu      sync.Mutex
	answers map[int64]answer
	got     []outbox.Delivery
	entered chan struct{} // one for each delivery
	opened  chan struct{} // no answer before it is closed
	open    func()
}

func newScript() *script {
	s := &script{entered: make(chan struct{}, 1000), opened: make(chan struct{})}
	s.open = sync.OnceFunc(func() { close(s.opened) })
	return s
}

// Send implements outbox.Transport.
func (s *script) Send(_ context.Context, d outbox.Delivery) (string, error) {
	s.mu.Lock()
	s.got = append(s.got, d)
	s.mu.Unlock()
	s.entered <- struct{}{}
	<-s.opened
	s.mu.Lock()
	a, expected := s.answers[d.ID]
	s.mu.Unlock()
	if !expected {
		return "", errors.New("not expected")
	}
	return a.reply()
}

// tell sets the answers and lets them be given.
func (s *script) tell(answers map[int64]answer) {
	s.mu.Lock()
	s.answers = answers
	s.mu.Unlock()
	s.open()
}

// deliveries gives what came.
func (s *script) deliveries() []outbox.Delivery {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]outbox.Delivery(nil), s.got...)
}
