package outbox

import (
	"database/sql"
	"reflect"

	"gorm.io/gorm"
)

// transactional refuses a handle that is in no transaction, and finds the outbox that it means.
func transactional(tx *gorm.DB, find func(*gorm.DB) (*store, error)) (*store, error) {
	if err := checkTransaction(tx); err != nil {
		return nil, err
	}
	return find(tx)
}

// checkTransaction refuses a handle whose statements would not be part of a transaction. What decides is the pool
// behind the handle's next statement: the types of GORM's wrappers say nothing, since several of them look like a
// transaction over a plain pool.
func checkTransaction(tx *gorm.DB) error {
	switch {
	case tx == nil || tx.Config == nil || tx.Statement == nil:
		return because(ErrNoTransaction, "the handle is nil")
	case tx.Error != nil:
		return because(ErrNoTransaction, "the handle already carries an error: %w", tx.Error)
	case tx.DryRun:
		return because(ErrNoTransaction, "the handle is in DryRun mode and writes nothing")
	case inTransaction(tx.Statement.ConnPool):
		return nil
	case tx.SkipDefaultTransaction:
		return because(ErrNoTransaction, "begin one with db.Transaction and pass its handle; "+
			"model hooks have none of their own under SkipDefaultTransaction, so save the model inside one")
	default:
		return because(ErrNoTransaction, "begin one with db.Transaction and pass its handle")
	}
}

// inTransaction looks through wrappers for what runs the statements: a *sql.Tx does so in a transaction, a *sql.DB or
// a *sql.Conn does not. A foreign wrapper is believed only if it is a whole gorm.Tx: sharding plugins wrap a pool in a
// type that has Commit and Rollback.
func inTransaction(pool gorm.ConnPool) bool {
	switch p := pool.(type) {
	case nil:
		return false
	case *sql.Tx:
		return p != nil // a Begin that failed leaves a nil one
	case *sql.DB, *sql.Conn:
		return false
	case *gorm.PreparedStmtTX:
		return p != nil && inTransaction(p.Tx)
	case *gorm.PreparedStmtDB:
		return p != nil && inTransaction(p.ConnPool)
	}
	if inner, ok := innerPool(pool); ok {
		return inTransaction(inner)
	}
	_, ok := pool.(gorm.Tx)
	return ok
}

// innerPool finds what a wrapper struct holds in its exported ConnPool or Tx field.
func innerPool(pool gorm.ConnPool) (gorm.ConnPool, bool) {
	v := reflect.Indirect(reflect.ValueOf(pool))
	if v.Kind() != reflect.Struct {
		return nil, false
	}
	for _, name := range []string{"ConnPool", "Tx"} {
		if field := v.FieldByName(name); field.IsValid() && field.CanInterface() {
			if inner, ok := field.Interface().(gorm.ConnPool); ok && inner != pool {
				return inner, true
			}
		}
	}
	return nil, false
}
