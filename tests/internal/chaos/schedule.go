// Package chaos decides what a chaos run does and judges what came of it. It does neither: the test of the parent
// directory starts the processes, breaks what the [Schedule] says, and brings back a [History], which Check holds
// against the promises of the outbox. Everything here is a function of a seed, so that a run can be had again.
package chaos

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// Kind is a kind of fault.
type Kind string

// The faults.
const (
	Kill       Kind = "worker killed"            // kill -9, and another started in its place
	Deploy     Kind = "worker replaced"          // asked to end, and another started in its place
	Stop       Kind = "worker stopped"           // SIGSTOP for longer than its lease, then SIGCONT: a zombie
	Terminate  Kind = "backends terminated"      // pg_terminate_backend, of a worker's or of everybody's
	Crash      Kind = "server crashed"           // the end of pg_ctl stop -m immediate, and a start
	Cut        Kind = "connections cut"          // of one worker, by the proxy
	Delay      Kind = "network slowed"           // every chunk of one worker's, both ways
	Refuse     Kind = "unreachable"              // cut, and no new connection for a while
	Outage     Kind = "unreachable past a lease" // the same for longer than a lease
	LoseClaim  Kind = "claim's reply lost"       // the claim is made and its worker never hears of it
	LoseRecord Kind = "recording's reply lost"   // the outcome is written and its worker never hears of it
	LoseCommit Kind = "COMMIT's reply lost"      // a producer's transaction is committed and it never hears of it
)

// Everybody is the worker of a fault that concerns all of them.
const Everybody = -1

// Cycle is how long one pass through the deck of faults takes.
const Cycle = 18 * time.Second

// Burst is how often the app is busy. Its messages then come all at once, so that the workers have a queue.
const Burst = 2 * time.Second

// deck is what happens in each cycle: how often, and for how long.
var deck = []struct {
	kind        Kind
	times       int
	least, most time.Duration
}{
	{Kill, 5, 0, 0},
	{Deploy, 3, 0, 0},
	{Stop, 2, 6 * time.Second, 7 * time.Second},
	{Terminate, 4, 0, 0},
	{Crash, 1, 200 * time.Millisecond, 1500 * time.Millisecond},
	{Cut, 3, 0, 0},
	{Delay, 2, time.Second, 3 * time.Second},
	{Refuse, 1, 500 * time.Millisecond, 2 * time.Second},
	{Outage, 1, 6 * time.Second, 7 * time.Second},
	{LoseClaim, 2, 200 * time.Millisecond, 2 * time.Second},
	{LoseRecord, 5, 200 * time.Millisecond, 2 * time.Second},
	{LoseCommit, 3, 200 * time.Millisecond, 500 * time.Millisecond},
}

// Fault is one thing that goes wrong.
type Fault struct {
	At     time.Duration // from the start of the run
	Kind   Kind
	Worker int           // its number, or Everybody
	For    time.Duration // zero for what takes no time
}

// String says it as the log of a run does.
func (f Fault) String() string {
	whose := fmt.Sprintf("worker %d", f.Worker)
	if f.Worker == Everybody {
		whose = "everybody"
	}
	return fmt.Sprintf("%7.2fs %s: %s, for %v", f.At.Seconds(), whose, f.Kind, f.For.Round(time.Millisecond))
}

// Schedule is what goes wrong in the given number of cycles, in order of time.
func Schedule(seed uint64, workers, cycles int) (faults []Fault) {
	random := rand.New(rand.NewPCG(seed, 1))
	for cycle := range cycles {
		kinds := shuffled(random)
		step := Cycle / time.Duration(len(kinds))
		for i, f := range kinds {
			f.At = time.Duration(cycle)*Cycle + time.Duration(i)*step + between(random, 0, step)
			if f.Kind == Kill || f.Kind == Deploy || f.Kind == Stop { // when there is work
				f.At = f.At.Truncate(Burst) + between(random, Burst/20, Burst/2)
			}
			faults = append(faults, f)
		}
	}
	slices.SortStableFunc(faults, func(a, b Fault) int { return cmp.Compare(a.At, b.At) })
	busy := make([]time.Duration, workers) // until when a worker is in the hands of a fault
	for i := range faults {
		f := &faults[i]
		if f.Kind == Crash || f.Kind == LoseCommit || f.Kind == Terminate && random.IntN(3) == 0 {
			continue
		}
		f.Worker = free(random, busy, f.At)
		busy[f.Worker] = f.At + f.For + time.Second
	}
	return faults
}

// shuffled is the deck as it is played in one cycle. What takes longest begins in its first half.
func shuffled(random *rand.Rand) (faults []Fault) {
	for _, card := range deck {
		for range card.times {
			faults = append(faults, Fault{Kind: card.kind, Worker: Everybody, For: between(random, card.least, card.most)})
		}
	}
	random.Shuffle(len(faults), func(i, j int) { faults[i], faults[j] = faults[j], faults[i] })
	for i, f := range faults {
		if half := len(faults) / 2; i >= half && f.For >= 5*time.Second {
			j := slices.IndexFunc(faults[:half], func(f Fault) bool { return f.For < 5*time.Second })
			faults[i], faults[j] = faults[j], faults[i]
		}
	}
	return faults
}

// free is a worker that no other fault has in its hands, or that is soon let go.
func free(random *rand.Rand, busy []time.Duration, at time.Duration) int {
	var idle []int
	for worker, until := range busy {
		if until <= at {
			idle = append(idle, worker)
		}
	}
	if len(idle) == 0 {
		return slices.Index(busy, slices.Min(busy))
	}
	return idle[random.IntN(len(idle))]
}

func between(random *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(random.Int64N(int64(most-least)+1))
}
