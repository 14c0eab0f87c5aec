package chaos

import (
	"fmt"
	"math/rand/v2"
)

// Behaviour is what a transport does with one attempt.
type Behaviour string

// The behaviours of transports.
const (
	Quick   Behaviour = "quick"   // accepts within milliseconds
	Slow    Behaviour = "slow"    // accepts after a while
	Refuser Behaviour = "refuser" // a known refusal, to be tried again
	Never   Behaviour = "never"   // a known refusal for good
	Panics  Behaviour = "panics"  // before it has sent anything
	Hangs   Behaviour = "hangs"   // sends nothing, and gives up when its context ends
	Loses   Behaviour = "loses"   // the provider accepts, and its answer does not come before the context ends
	Deaf    Behaviour = "deaf"    // as Loses, but goes on long after its context has ended, and then reports success
)

// Accepts reports whether the provider may have the message after such an attempt.
func (b Behaviour) Accepts() bool {
	return b == Quick || b == Slow || b == Loses || b == Deaf
}

// The topics of a run.
const (
	Orders = "orders" // delivered at least once
	Once   = "once"   // delivered at most once
)

// Content is the payload of a message: whose it is, and what its transport is to do with each attempt, the last for
// all that follow.
type Content struct {
	Fact string
	Plan []Behaviour
}

// Behaviour is what the transport does with an attempt, which counts from 1.
func (c Content) Behaviour(attempt int) Behaviour { return c.Plan[min(attempt, len(c.Plan))-1] }

// Fact is a row of the app's and the message that tells of it.
type Fact struct {
	ID, Key, Topic string // Key is empty for a message without one
	Plan           []Behaviour
	MaxAttempts    int
	Undone         bool // written inside a savepoint that is rolled back
}

// Block is a transaction of the app's.
type Block struct {
	Facts    []Fact
	Rollback bool // it ends in a rollback
}

// Committed are the facts that the block leaves in the database if its commit succeeds.
func (b Block) Committed() (facts []Fact) {
	for _, f := range b.Facts {
		if !f.Undone && !b.Rollback {
			facts = append(facts, f)
		}
	}
	return facts
}

// plans are what messages are made for, each so many times in a hundred.
var plans = []struct {
	percent int
	plan    []Behaviour
}{
	{58, []Behaviour{Quick}},
	{28, []Behaviour{Slow}},
	{4, []Behaviour{Refuser, Quick}},
	{2, []Behaviour{Refuser}},
	{2, []Behaviour{Never}},
	{2, []Behaviour{Panics, Slow}},
	{1, []Behaviour{Hangs, Quick}},
	{1, []Behaviour{Loses, Quick}},
	{1, []Behaviour{Deaf, Quick}},
	{1, []Behaviour{Slow, Slow, Deaf, Loses, Quick}},
}

// sharedKeys are keys that all producers use, so that they race for them.
const sharedKeys = 20

// Blocks are the transactions of one producer, with at least so many messages to be committed in all.
func Blocks(seed uint64, producer, messages int) (blocks []Block) {
	w := writer{random: rand.New(rand.NewPCG(seed, 100+uint64(producer))), name: fmt.Sprintf("p%d", producer)}
	for committed := 0; committed < messages; {
		b := w.block()
		blocks = append(blocks, b)
		committed += len(b.Committed())
	}
	return blocks
}

// writer makes up transactions.
type writer struct {
	random *rand.Rand
	name   string
	facts  int
	keys   []string // used so far
}

func (w *writer) block() (b Block) {
	b.Rollback = w.chance(10)
	for range 1 + w.random.IntN(8) {
		f := w.fact()
		f.Undone = w.chance(8)
		b.Facts = append(b.Facts, f)
	}
	return b
}

func (w *writer) fact() Fact {
	w.facts++
	f := Fact{ID: fmt.Sprintf("%s-%d", w.name, w.facts), Topic: Orders, MaxAttempts: 3 + w.random.IntN(6)}
	if w.chance(20) {
		f.Topic = Once
	}
	switch {
	case w.chance(5) && len(w.keys) > 0:
		f.Key = w.keys[w.random.IntN(len(w.keys))]
	case w.chance(2):
		f.Key = fmt.Sprintf("shared-%d", w.random.IntN(sharedKeys))
	case w.chance(60):
		f.Key = "key-" + f.ID
		w.keys = append(w.keys, f.Key)
	}
	percent := w.random.IntN(100)
	for _, p := range plans {
		if percent -= p.percent; percent < 0 {
			f.Plan = p.plan
			break
		}
	}
	return f
}

func (w *writer) chance(percent int) bool { return w.random.IntN(100) < percent }
