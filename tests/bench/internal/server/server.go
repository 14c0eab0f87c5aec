// Package server is the PostgreSQL that all contenders share, as the measuring process sees it: databases to measure
// in, and what the server has spent.
package server

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// Server is one running server. Its methods may be called from several goroutines.
type Server struct {
	dsn string // of the database that this package works from; nothing is measured in it

	mu         sync.Mutex // the connection serves one at a time
	conn       *pgx.Conn
	postmaster int  // process id; 0 where it is not a process of this machine
	statements bool // pg_stat_statements counts
}

// Open connects as a user who may create databases. A superuser also sees the server's process id, and with it the
// CPU time where the server runs on this machine.
func Open(ctx context.Context, dsn string) (*Server, error) {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	s := &Server{dsn: dsn, conn: conn}
	var file string
	if conn.QueryRow(ctx, "SELECT pg_read_file('postmaster.pid')").Scan(&file) == nil {
		first, _, _ := strings.Cut(file, "\n")
		if pid, err := strconv.Atoi(first); err == nil && isPostmaster(pid) {
			s.postmaster = pid
		}
	}
	if _, err := conn.Exec(ctx, "CREATE EXTENSION IF NOT EXISTS pg_stat_statements"); err == nil {
		_, err = conn.Exec(ctx, "SELECT count(*) FROM pg_stat_statements") // fails unless it is preloaded
		s.statements = err == nil
	}
	return s, nil
}

// Close ends the connection.
func (s *Server) Close(ctx context.Context) error { return s.conn.Close(ctx) }

// CreateDatabase makes an empty database and gives its DSN. The checkpoint before it lets every measurement begin with
// as little unwritten data as any other.
func (s *Server) CreateDatabase(ctx context.Context, name string) (string, error) {
	for _, statement := range []string{"CHECKPOINT", "DROP DATABASE IF EXISTS " + name, "CREATE DATABASE " + name} {
		if err := s.exec(ctx, statement); err != nil {
			return "", err
		}
	}
	u, err := url.Parse(s.dsn)
	if err != nil || u.Scheme == "" {
		return "", fmt.Errorf("server: the DSN must be a URL, postgres://user@host:port/database: %w", err)
	}
	u.Path = "/" + name
	return u.String(), nil
}

// DropDatabase removes a database, whoever is still connected.
func (s *Server) DropDatabase(ctx context.Context, name string) error {
	return s.exec(ctx, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)")
}

func (s *Server) exec(ctx context.Context, statement string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.conn.Exec(ctx, statement); err != nil {
		return fmt.Errorf("server: %q: %w", statement, err)
	}
	return nil
}

// Usage is what the server has spent so far, or between two looks at it.
type Usage struct {
	CPU          time.Duration // of all its processes
	KnowsCPU     bool
	WAL          int64 // bytes
	Statements   int64 // in one database
	Transactions int64 // in one database; counted by the server up to a second late
	KnowsCalls   bool  // whether Statements says anything
}

// Usage looks at the server and one of its databases.
func (s *Server) Usage(ctx context.Context, database string) (Usage, error) {
	u := Usage{KnowsCalls: s.statements}
	calls := "0"
	if s.statements {
		calls = "(SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements WHERE dbid = d.oid)"
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.conn.QueryRow(ctx, `
SELECT (pg_current_wal_lsn() - '0/0')::bigint, `+calls+`, pg_stat_get_db_xact_commit(d.oid) + pg_stat_get_db_xact_rollback(d.oid)
FROM pg_database AS d WHERE d.datname = $1`, database).Scan(&u.WAL, &u.Statements, &u.Transactions)
	if err != nil {
		return u, fmt.Errorf("server: read what was spent: %w", err)
	}
	if s.postmaster != 0 {
		u.CPU, u.KnowsCPU = cpuTime(s.postmaster)
	}
	return u, nil
}

// Calls is the number of statements or, where the server does not count them, of transactions.
func (u Usage) Calls() int64 {
	if u.KnowsCalls {
		return u.Statements
	}
	return u.Transactions
}

// Sub is what was spent since the earlier look.
func (u Usage) Sub(earlier Usage) Usage {
	u.CPU -= earlier.CPU
	u.WAL -= earlier.WAL
	u.Statements -= earlier.Statements
	u.Transactions -= earlier.Transactions
	return u
}

// AwaitExit waits until nobody but so many connections is left in a database: processes that have ended have then
// reported the last of their transactions.
func (s *Server) AwaitExit(ctx context.Context, database string, others int) error {
	const look = 10 * time.Millisecond
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		var connected int
		s.mu.Lock()
		err := s.conn.QueryRow(ctx, "SELECT count(*) FROM pg_stat_activity WHERE datname = $1 AND backend_type = 'client backend'",
			database).Scan(&connected)
		s.mu.Unlock()
		if err != nil || connected <= others {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Facts are the version and the settings on which numbers depend.
func (s *Server) Facts(ctx context.Context) (map[string]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	rows, err := s.conn.Query(ctx, `
SELECT name, current_setting(name) FROM pg_settings WHERE name = ANY($1)`, []string{
		"server_version", "shared_buffers", "fsync", "synchronous_commit", "full_page_writes", "autovacuum",
		"max_wal_size", "checkpoint_timeout", "shared_preload_libraries",
	})
	if err != nil {
		return nil, fmt.Errorf("server: read the settings: %w", err)
	}
	facts := map[string]string{}
	var name, value string
	_, err = pgx.ForEachRow(rows, []any{&name, &value}, func() error {
		facts[name] = value
		return nil
	})
	return facts, err
}
