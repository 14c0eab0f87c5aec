// Package policy holds the decisions of the outbox and nothing else: when a record may be claimed, what an attempt's
// result means, how long to wait before the next one. Everything here is pure: no I/O, no clock, no global
// randomness. Time and randomness enter as arguments, so each rule can be tested on its own and read without the
// machinery that applies it.
//
//   - [Decide] is the claim rule, the same one that the processor's SQL applies.
//   - [Classify] and [Settle] turn a transport's error into what becomes of the record.
//   - [Backoff] spaces the attempts.
//   - [Failure] is how a transport says more than "it failed".
package policy
