// Package outbox is a transactional outbox for applications that use GORM.
//
// The app writes a message, an e-mail or a domain event, in the same transaction as the business fact that causes it.
// A processor delivers it after the commit, at least once, through a transport. A provider that is down can neither
// hang nor abort the business operation, and a process that dies right after the commit loses nothing.
//
// # The life of a message
//
// [Plugin] installs the outbox and migrates its tables. [Enqueue] writes a [Message] in the caller's transaction, as a
// [Record] that is pending. A [Processor] claims records that are due: it takes a lease on them, good for a while by
// the database's clock, under a token that is new for each claim. It hands each to the [Transport] of its topic as a
// [Delivery], and writes what came of it, where the token still stands:
//
//	pending ── claim ──▶ processing ──▶ sent       the transport accepted it
//	   ▲                     │
//	   │                     ├────────▶ discarded  a permanent refusal
//	   │                     ├────────▶ failed     its attempts are spent
//	   └──── retry, release ─┘
//
// A record whose worker died stays processing until its lease runs out, and is then claimed again. The writes of a
// worker that was only slow meet another token, change nothing and are counted as lost.
//
// # At least once
//
// A worker may die, or lose the database, after the provider has accepted a message and before that is recorded. The
// message is then delivered again: the other choice is to lose messages. Everything short of "exactly once" is done
// against doubles. An idempotent enqueue ([Message].IdempotencyKey) makes a repeated request one message. A record is
// never inside two transports while its worker lives: one that cannot be attempted well within its lease is released,
// not tried. Outcomes are written again and again through an outage while their leases last. Every attempt carries the
// same [Delivery].ProviderKey, by which a provider recognises a repeat, and the same MessageID, by which a consumer
// does. Where a provider cannot, and a double is worse than a loss, [ProcessorConfig].AtMostOnce leaves an attempt of
// unknown outcome to a person.
//
// Sent means that the provider accepted the message. What it reports later, by a status webhook, [RecordReceipt] notes
// on the record.
//
// # Errors and outcomes
//
// Mistakes of the caller are errors: [ErrNoTransaction], [ErrInvalid], [ErrNotInstalled]. They are found before any
// SQL, so that the caller's transaction stays usable. Faults of the world are outcomes: a transport says what went
// wrong with a [policy.Failure], and the record is tried again, discarded or failed with its category and code. Errors
// of the database inside a round are counted in the [Summary] and ridden out. No payload, recipient or provider's text
// reaches a log or a column.
//
// # Transports
//
// A transport is a function or an interface with one method; those below transports/ speak to mail servers, WhatsApp,
// webhooks and brokers. [Limit] keeps one to its provider's rate.
//
// # Running it
//
// [Processor.Run] delivers until its context ends; [Processor.ProcessOnce] is one round for an app's own scheduler.
// Any number of processes share the table, without knowing of each other. Times and leases go by the database's clock
// alone. PostgreSQL 13 and later, and SQLite 3.38 and later, run the same statements; on SQLite there is one writer at
// a time, so open it with a busy timeout, WAL and _txlock=immediate.
package outbox
