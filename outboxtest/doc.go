// Package outboxtest is what the tests of an application import.
//
//   - [RequireEnqueued] and its siblings look at what a transaction has enqueued, before or after its commit.
//   - [Recorder] is a transport that remembers what it was given and answers as the test tells it to.
//   - [RunContract] checks the whole outbox on a database: run it on the engine, driver and GORM configuration that
//     production uses.
package outboxtest

// TB is what the helpers need of a test; *testing.T and *testing.B have it.
type TB interface {
	// Helper marks the caller as a helper, whose lines a failure does not point at.
	Helper()
	// Errorf notes a failure.
	Errorf(format string, args ...any)
	// FailNow ends the test.
	FailNow()
}
