// Package trial takes one measurement: in a database of its own, by processes of its own. The processes are this very
// program, started again: what a contender costs its process can then be read from the process.
package trial

import (
	"time"
)

// Role is what a child process does.
type Role string

// The roles.
const (
	Prepare Role = "prepare" // make the schema, the rows in the way and the messages
	Enqueue Role = "enqueue" // transactions with a message, as fast as they go
	Bulk    Role = "bulk"    // many messages in each transaction
	Produce Role = "produce" // transactions with a message, at random moments, at a given rate
	Drain   Role = "drain"   // deliver until everything is delivered
	Idle    Role = "idle"    // deliver what never comes
)

// Task is what a child process is told. Only what its role needs is set.
type Task struct {
	Role      Role
	Contender string
	DSN       string
	Ledger    string // path; empty where nothing is delivered

	Setup      bool   // Prepare: make the schema first
	Background string // Prepare: which rows come into the way
	Rows       int    // Prepare: how many of those
	From, To   int    // Prepare, Bulk, Produce: the messages, From ≤ n < To

	Settle     time.Duration // Produce, Idle: how long workers get to start up before it counts
	Goroutines int           // Enqueue
	Period     time.Duration // Enqueue, Idle: how long
	Rate       float64       // Produce: transactions per second

	Until       int           // Drain: how many messages the ledger has when all is done
	Limit       time.Duration // Drain: give up after this time
	Concurrency int           // Drain: handlers at a time; zero: the contender's choice
	Handler     time.Duration // Drain: how long each message takes
	Topics      int           // Drain, Idle
	Timed       bool          // Drain: note when each message reaches its handler
}

// Result is what a child process found.
type Result struct {
	Count   int           // transactions or messages; a drain leaves the counting to the ledger
	Total   int           // Enqueue: transactions with those before the clock ran
	Began   int64         // Unix time in nanoseconds, when the clock ran
	Ended   int64         // and when it stopped
	CPU     time.Duration // of the process meanwhile
	Mallocs uint64        // allocations
	Bytes   uint64        // allocated
	P50     time.Duration // Enqueue: of the transactions
	P99     time.Duration
	Error   string // why there is no result
}

// BulkSize is how many messages a bulk transaction holds.
const BulkSize = 1000
