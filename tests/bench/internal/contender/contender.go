// Package contender holds everything that is measured, each behind the same small interface: this library, its peers,
// and two hand-written limits of what the database can do.
package contender

import (
	"context"
	"slices"
	"strings"
)

// Contender keeps messages in a database and delivers them. A message is a number; see [Payload].
type Contender interface {
	// Setup makes the schema in an empty database, with the app's own table.
	Setup(ctx context.Context) error
	// EnqueueTx commits a row of the app's and message n in one transaction.
	EnqueueTx(ctx context.Context, n int) error
	// Bulk commits the messages from ≤ n < to in one transaction.
	Bulk(ctx context.Context, from, to int) error
	// Drain delivers until ctx ends, and then returns as soon as everything handled is recorded.
	Drain(ctx context.Context, w Work) error
	// Store says where the messages lie, for the checks.
	Store() Store
	// Close frees what Open took.
	Close()
}

// Backgrounder is a contender that can be put in front of other rows than the measured ones.
type Backgrounder interface {
	// Background fills the table with so many rows of a kind. It comes before any message.
	Background(ctx context.Context, kind Background, rows int) error
}

// Background is a kind of rows in the way.
type Background string

// The kinds of rows.
const (
	SentRows   Background = "sent"   // finished and kept
	FutureRows Background = "future" // due in some weeks
	OtherRows  Background = "other"  // due, but of a topic that nobody here delivers
)

// Work is what a drain is to do.
type Work struct {
	Handle      func(ctx context.Context, payload []byte) // the handler; it may be called from many goroutines
	Concurrency int                                       // handlers at a time; zero: the contender's own choice
	Topics      int                                       // how many topics to listen to; messages come on the first alone
	Finished    func() bool                               // whether every message has been handled
}

// Store is a description in SQL.
type Store struct {
	Table    string
	Number   string // an expression: the message's number
	Finished string // a condition: delivered, and kept all the same
}

// Options are what a contender needs to open.
type Options struct {
	DSN   string
	Conns int // how many transactions may run at once
}

// Definition is a contender by its name.
type Definition struct {
	Name  string
	About string
	Cases []string // the cases it takes part in, by the beginnings of their names
	Open  func(ctx context.Context, o Options) (Contender, error)
}

// In says whether the contender takes part in a case.
func (d Definition) In(name string) bool {
	return slices.ContainsFunc(d.Cases, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// All are the contenders in the order of the tables.
func All() []Definition {
	return slices.Concat(outboxes, limits, rivers, gues, watermills, plain)
}

// Find gives the contender of a name.
func Find(name string) (Definition, bool) {
	all := All()
	i := slices.IndexFunc(all, func(d Definition) bool { return d.Name == name })
	if i < 0 {
		return Definition{}, false
	}
	return all[i], true
}
