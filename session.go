package outbox

import (
	"context"
	"database/sql"
	"errors"
	"strings"

	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

// session is a handle of the outbox's own on the pool or transaction of db: none of the caller's clauses, hooks or
// logging, since a log of our SQL would hold payloads and recipients. Prepared-statement wrappers are taken off: they
// gain nothing over the driver's own cache, and can deadlock a pool that is exhausted.
func session(ctx context.Context, db *gorm.DB) *gorm.DB {
	h := db.Session(&gorm.Session{
		NewDB: true, Context: ctx, SkipHooks: true, SkipDefaultTransaction: true, Logger: logger.Discard,
	})
	h.Statement.ConnPool = unwrapPrepared(h.Statement.ConnPool)
	return h
}

func unwrapPrepared(pool gorm.ConnPool) gorm.ConnPool {
	for {
		switch p := pool.(type) {
		case *gorm.PreparedStmtTX:
			pool = p.Tx
		case *gorm.PreparedStmtDB:
			pool = p.ConnPool
		default:
			return pool
		}
	}
}

// collect runs a statement and scans each of its rows.
func collect(db *gorm.DB, scan func(*sql.Rows) error, statement string, args ...any) error {
	rows, err := db.Raw(statement, args...).Rows()
	return scanAll(rows, err, scan)
}

// direct is a transaction of the caller's without GORM around it: the business waits for what is done in it, and GORM's
// way there takes longer than all else that this process does for an enqueue.
type direct struct {
	ctx  context.Context
	pool gorm.ConnPool
}

func directly(tx *gorm.DB) direct {
	return direct{tx.Statement.Context, unwrapPrepared(tx.Statement.ConnPool)}
}

// collect runs a statement that bind has prepared, and scans each of its rows.
func (d direct) collect(scan func(*sql.Rows) error, statement string, args ...any) error {
	rows, err := d.pool.QueryContext(d.ctx, statement, args...)
	return scanAll(rows, err, scan)
}

// bind puts the engine's placeholders into a statement, as GORM would each time.
func bind(db *gorm.DB, statement string) string {
	return session(context.Background(), db).Raw(statement, make([]any, strings.Count(statement, "?"))...).Statement.SQL.String()
}

func scanAll(rows *sql.Rows, err error, scan func(*sql.Rows) error) error {
	if err != nil {
		return err
	}
	for err == nil && rows.Next() {
		err = scan(rows)
	}
	return errors.Join(err, rows.Err(), rows.Close())
}
