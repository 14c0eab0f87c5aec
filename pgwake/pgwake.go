// Package pgwake wakes an outbox's processors over PostgreSQL's LISTEN and NOTIFY, so that a message enqueued by one
// process is delivered by another milliseconds after its commit:
//
//	db.Use(outbox.Plugin{WakeUp: true}) // the processes that enqueue
//
//	listener, err := pgwake.New(db) // the processes that deliver
//	processor, err := outbox.NewProcessor(db, outbox.ProcessorConfig{Listener: listener, …})
//
// It is a module of its own because it needs pgx, which the outbox itself does not.
package pgwake

import (
	"context"
	"crypto/rand"
	"database/sql"
	"database/sql/driver"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"gorm.io/gorm"
)

// echoWithin is how long a fresh LISTEN may take to hear its own announcement.
const echoWithin = 5 * time.Second

// ErrDeaf means that the connection does not hear announcements: it goes through a pooler that hands the session to
// others between transactions. The processor goes on polling. Give the listener a database handle that connects to the
// server directly.
var ErrDeaf = errors.New("pgwake: announcements do not arrive, as behind a transaction pooler; connect directly to the server")

// Listener hears announcements on a connection that it holds for as long as it listens.
type Listener struct{ pool *sql.DB }

var _ outbox.Listener = (*Listener)(nil)

// New gives a Listener on db's pool, which must be one of pgx connections, as those of gorm.io/driver/postgres are. It
// holds one connection while Run runs, so a pool that may have only one is refused. It sends nothing yet.
func New(db *gorm.DB) (*Listener, error) {
	if db == nil || db.Config == nil {
		return nil, errors.New("pgwake: the handle is nil")
	}
	pool, err := db.DB()
	if err != nil {
		return nil, fmt.Errorf("pgwake: the handle has no connection pool: %w", err)
	}
	if pool.Stats().MaxOpenConnections == 1 {
		return nil, errors.New("pgwake: the pool may have only one connection, and listening holds one; raise SetMaxOpenConns to 3 or more")
	}
	return &Listener{pool: pool}, nil
}

// Listen implements [outbox.Listener].
func (l *Listener) Listen(ctx context.Context, channel string, heard func()) error {
	session, err := l.pool.Conn(ctx)
	if err != nil {
		return fmt.Errorf("pgwake: connect: %w", err)
	}
	defer session.Close() //nolint:errcheck // what listen ends with says it all
	var ended error       // Raw's own result only says that the connection is dropped
	err = session.Raw(func(driverConn any) error {
		conn, ok := pgxConn(driverConn)
		if !ok {
			ended = fmt.Errorf("pgwake: the pool's connections are %T, not pgx's", driverConn)
			return nil
		}
		ended = l.listen(ctx, conn, channel, heard)
		// A connection that listens would go on collecting announcements in the pool.
		return driver.ErrBadConn
	})
	if ended == nil {
		ended = err
	}
	return ended
}

// pgxConn looks through instrumenting wrappers.
func pgxConn(driverConn any) (*pgx.Conn, bool) {
	for {
		switch c := driverConn.(type) {
		case *stdlib.Conn:
			return c.Conn(), true
		case interface{ Raw() driver.Conn }:
			driverConn = c.Raw()
		default:
			return nil, false
		}
	}
}

func (l *Listener) listen(ctx context.Context, conn *pgx.Conn, channel string, heard func()) error {
	if _, err := conn.Exec(ctx, "LISTEN "+pgx.Identifier{channel}.Sanitize()); err != nil {
		return fmt.Errorf("pgwake: listen: %w", err)
	}
	if err := l.echo(ctx, conn, channel); err != nil {
		return err
	}
	heard() // what was announced before went unheard
	for {
		if _, err := conn.WaitForNotification(ctx); err != nil {
			return fmt.Errorf("pgwake: wait: %w", err)
		}
		heard()
	}
}

// echo makes sure that announcements arrive: behind a transaction pooler LISTEN succeeds, and nothing ever comes.
func (l *Listener) echo(ctx context.Context, conn *pgx.Conn, channel string) error {
	ctx, cancel := context.WithTimeout(ctx, echoWithin)
	defer cancel()
	var word [8]byte
	if _, err := rand.Read(word[:]); err != nil {
		return err
	}
	mine := hex.EncodeToString(word[:])
	if _, err := l.pool.ExecContext(ctx, "SELECT pg_notify($1, $2)", channel, mine); err != nil {
		return fmt.Errorf("pgwake: announce: %w", err)
	}
	for {
		got, err := conn.WaitForNotification(ctx)
		switch {
		case errors.Is(err, context.DeadlineExceeded):
			return ErrDeaf
		case err != nil:
			return fmt.Errorf("pgwake: wait: %w", err)
		case got.Payload == mine:
			return nil
		}
	}
}
