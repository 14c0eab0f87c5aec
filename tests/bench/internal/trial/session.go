package trial

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/gorm-outbox/outbox/tests/bench/internal/contender"
	"github.com/gorm-outbox/outbox/tests/bench/internal/ledger"
	"github.com/gorm-outbox/outbox/tests/bench/internal/server"
	"github.com/jackc/pgx/v5"
)

// patience is how long a child may take beyond the time it was given.
const patience = 10 * time.Minute

// Session is one measurement of one contender.
type Session struct {
	Contender string
	Ledger    *ledger.Ledger // nil until OpenLedger

	server   *server.Server
	database string
	dsn      string
	dir      string
	conn     *pgx.Conn // to the measured database; idle while a clock runs
	store    contender.Store

	connections int // of this process to the measured database
}

var databases atomic.Int64

// Start makes a database for a contender.
func Start(ctx context.Context, s *server.Server, c contender.Definition) (_ *Session, err error) {
	session := &Session{Contender: c.Name, server: s, database: fmt.Sprintf("bench_%d_%d", os.Getpid(), databases.Add(1))}
	defer func() {
		if err != nil {
			err = errors.Join(err, session.Close())
		}
	}()
	if session.dsn, err = s.CreateDatabase(ctx, session.database); err != nil {
		return nil, err
	}
	if session.dir, err = os.MkdirTemp("", "outbox-bench-"); err != nil {
		return nil, err
	}
	if session.conn, err = pgx.Connect(ctx, session.dsn); err != nil {
		return nil, err
	}
	opened, err := c.Open(ctx, contender.Options{DSN: session.dsn, Conns: 1})
	if err != nil {
		return nil, err
	}
	defer opened.Close()
	session.connections++
	session.store = opened.Store()
	return session, nil
}

// Close removes the database and the files.
func (s *Session) Close() error {
	ctx := context.Background() // also after an interrupt
	var err error
	if s.Ledger != nil {
		err = s.Ledger.Close()
	}
	if s.conn != nil {
		err = errors.Join(err, s.conn.Close(ctx))
	}
	return errors.Join(err, s.server.DropDatabase(ctx, s.database), os.RemoveAll(s.dir))
}

// OpenLedger makes the ledger, for so many messages.
func (s *Session) OpenLedger(size int) (err error) {
	s.Ledger, err = ledger.Create(s.ledgerPath(), size)
	return err
}

func (s *Session) ledgerPath() string { return filepath.Join(s.dir, "ledger") }

// Exec runs a statement in the measured database.
func (s *Session) Exec(ctx context.Context, statement string) error {
	_, err := s.conn.Exec(ctx, statement)
	return err
}

// HoldSnapshot keeps the database from cleaning up what is deleted from now on, as a forgotten transaction does.
func (s *Session) HoldSnapshot(ctx context.Context) (release func(), err error) {
	conn, err := pgx.Connect(ctx, s.dsn)
	if err != nil {
		return nil, err
	}
	s.connections++
	release = func() {
		s.connections--
		_ = conn.Close(context.WithoutCancel(ctx))
	}
	for _, statement := range []string{"BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT count(*) FROM pg_class"} {
		if _, err := conn.Exec(ctx, statement); err != nil {
			release()
			return nil, err
		}
	}
	return release, nil
}

// Measured is what processes that ran side by side found, together.
type Measured struct {
	Results []Result // in the order of their tasks
	Began   time.Time
	Elapsed time.Duration // from the first beginning to the last end
	CPU     time.Duration // of the processes
	Mallocs uint64
	Bytes   uint64
	Server  server.Usage
}

// Run runs the tasks side by side, each in a process, all beginning at once, and gives what they and the server spent.
func (s *Session) Run(ctx context.Context, tasks ...Task) (m Measured, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	processes := make([]*process, 0, len(tasks))
	defer func() {
		for _, p := range processes {
			err = errors.Join(err, p.end())
		}
	}()
	for _, task := range tasks {
		task.Contender, task.DSN = s.Contender, s.dsn
		if s.Ledger != nil {
			task.Ledger = s.ledgerPath()
		}
		p, err := startProcess(ctx, task)
		if err != nil {
			return m, err
		}
		processes = append(processes, p)
	}
	before, err := s.begin(ctx, processes)
	if err != nil {
		return m, err
	}
	for _, p := range processes {
		r, err := p.result()
		if err != nil {
			cancel() // the others may wait for what this one did not do
			return m, err
		}
		m.Results = append(m.Results, r)
	}
	m.add()
	after, err := s.after(ctx, processes)
	m.Server = after.Sub(before)
	return m, err
}

// after looks at the server once all have answered. Where it counts transactions only, it has counted those of a
// process when that has ended.
func (s *Session) after(ctx context.Context, processes []*process) (server.Usage, error) {
	usage, err := s.server.Usage(ctx, s.database)
	if err != nil || usage.KnowsCalls {
		return usage, err
	}
	for _, p := range processes {
		err = errors.Join(err, p.end())
	}
	if err := errors.Join(err, s.server.AwaitExit(ctx, s.database, s.connections)); err != nil {
		return usage, err
	}
	late, err := s.server.Usage(ctx, s.database)
	usage.Transactions = late.Transactions
	return usage, err
}

// begin waits for all processes to be ready, looks at the server, and lets them go.
func (s *Session) begin(ctx context.Context, processes []*process) (server.Usage, error) {
	for _, p := range processes {
		if err := p.ready(); err != nil {
			return server.Usage{}, err
		}
	}
	before, err := s.server.Usage(ctx, s.database)
	for _, p := range processes {
		err = errors.Join(err, p.begin())
	}
	return before, err
}

// add adds up the results.
func (m *Measured) add() {
	began, ended := m.Results[0].Began, m.Results[0].Ended
	for _, r := range m.Results {
		began, ended = min(began, r.Began), max(ended, r.Ended)
		m.CPU += r.CPU
		m.Mallocs += r.Mallocs
		m.Bytes += r.Bytes
	}
	m.Began, m.Elapsed = time.Unix(0, began), time.Duration(ended-began)
}
