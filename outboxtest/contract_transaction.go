package outboxtest

import (
	"context"
	"errors"
	"testing"

	"github.com/gorm-outbox/outbox"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
)

var transactionChecks = []check{
	{"is required", checkNoTransaction},
	{"is recognised", checkTransaction},
	{"commits the message", checkCommit},
	{"rolls the message back", checkRollback},
	{"rolls back to a savepoint", checkSavepoint},
	{"of a hook", checkHook},
	{"missing in a hook", checkHookWithoutTransaction},
	{"handle kept from a hook", checkHandleKept},
}

var errContract = errors.New("the business operation failed")

// enqueuers are the four ways to enqueue one message.
var enqueuers = map[string]func(*gorm.DB) error{
	"Enqueue": func(tx *gorm.DB) error {
		_, err := outbox.Enqueue(tx, mail("one"))
		return err
	},
	"EnqueueAll": func(tx *gorm.DB) error {
		_, err := outbox.EnqueueAll(tx, mails(2))
		return err
	},
	"Plugin.Enqueue": func(tx *gorm.DB) error {
		_, err := outbox.Plugin{}.Enqueue(tx, mail("one"))
		return err
	},
	"Plugin.EnqueueAll": func(tx *gorm.DB) error {
		_, err := outbox.Plugin{}.EnqueueAll(tx, mails(2))
		return err
	},
}

func checkNoTransaction(t *testing.T, db *gorm.DB) {
	install(t, db)
	handles := map[string]*gorm.DB{
		"nil":                 nil,
		"zero":                {},
		"pool":                db,
		"session":             db.Session(&gorm.Session{}),
		"new session":         db.Session(&gorm.Session{NewDB: true}),
		"prepared session":    db.Session(&gorm.Session{PrepareStmt: true}),
		"no default session":  db.Session(&gorm.Session{SkipDefaultTransaction: true}),
		"context":             db.WithContext(context.Background()),
		"debug":               db.Session(&gorm.Session{Logger: db.Logger}),
		"query":               db.Model(&contractOrder{}).Where("id = ?", 1),
		"dry run":             db.Session(&gorm.Session{DryRun: true}),
		"dry run with begin":  finished(t, db.Session(&gorm.Session{DryRun: true}).Begin(), (*gorm.DB).Rollback),
		"committed":           finished(t, db.Begin(), (*gorm.DB).Commit),
		"rolled back":         finished(t, db.Begin(), (*gorm.DB).Rollback),
		"prepared, committed": finished(t, db.Session(&gorm.Session{PrepareStmt: true}).Begin(), (*gorm.DB).Commit),
		"failed begin":        failedBegin(db),
	}
	for name, handle := range handles {
		for how, enqueue := range enqueuers {
			require.ErrorIs(t, enqueue(handle), outbox.ErrNoTransaction, "%s on: %s", how, name)
		}
	}
	require.NoError(t, db.Connection(func(conn *gorm.DB) error {
		require.ErrorIs(t, enqueuers["Enqueue"](conn), outbox.ErrNoTransaction, "one connection")
		return nil
	}))
	require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
		require.ErrorIs(t, enqueuers["Enqueue"](tx.Session(&gorm.Session{DryRun: true})), outbox.ErrNoTransaction, "dry run")
		failed := tx.Session(&gorm.Session{})
		_ = failed.AddError(errContract)
		err := enqueuers["Enqueue"](failed)
		require.ErrorIs(t, err, outbox.ErrNoTransaction, "handle with an error")
		require.ErrorIs(t, err, errContract, "the reason stays visible")
		return nil
	}))
	require.Empty(t, records(t, db))
}

// finished is a transaction's handle after its end.
func finished(t *testing.T, tx *gorm.DB, end func(*gorm.DB) *gorm.DB) *gorm.DB {
	t.Helper()
	require.NoError(t, tx.Error)
	require.NoError(t, end(tx.Session(&gorm.Session{})).Error)
	return tx
}

// failedBegin looks like a transaction by its types.
func failedBegin(db *gorm.DB) *gorm.DB {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return db.WithContext(ctx).Begin()
}

func checkTransaction(t *testing.T, db *gorm.DB) {
	install(t, db)
	tx := db.Begin()
	require.NoError(t, tx.Error)
	handles := map[string]*gorm.DB{
		"begin":              tx,
		"session":            tx.Session(&gorm.Session{}),
		"new session":        tx.Session(&gorm.Session{NewDB: true}),
		"prepared session":   tx.Session(&gorm.Session{PrepareStmt: true}),
		"no default session": tx.Session(&gorm.Session{SkipDefaultTransaction: true}),
		"no hooks":           tx.Session(&gorm.Session{SkipHooks: true}),
		"context":            tx.WithContext(context.Background()),
		"query":              tx.Model(&contractOrder{}),
	}
	for name, handle := range handles {
		for how, enqueue := range enqueuers {
			require.NoError(t, enqueue(handle), "%s on: %s", how, name)
		}
	}
	require.NoError(t, tx.Transaction(enqueuers["Enqueue"]), "nested")
	require.NoError(t, tx.Session(&gorm.Session{DisableNestedTransaction: true}).Transaction(enqueuers["Enqueue"]))
	require.Len(t, records(t, tx), 6*len(handles)+2)
	require.NoError(t, tx.Rollback().Error)
	require.Empty(t, records(t, db))

	prepared := db.Session(&gorm.Session{PrepareStmt: true})
	require.NoError(t, prepared.Transaction(enqueuers["Enqueue"]))
	require.Len(t, records(t, db), 1)
}

func checkCommit(t *testing.T, db *gorm.DB) {
	install(t, db)
	require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
		require.NoError(t, tx.Create(&contractOrder{ID: 7}).Error)
		receipt, err := outbox.Enqueue(tx, mail("placed"))
		require.NoError(t, err)
		seen := RequireEnqueued(t, tx, Match{Topic: topic, Type: "placed", Payload: map[string]string{"kind": "placed"}})
		require.Equal(t, outbox.Receipt{ID: seen.ID, MessageID: seen.MessageID, New: true}, receipt)
		RequireNotEnqueued(t, db, Match{})
		return nil
	}))
	RequireEnqueued(t, db, Match{Type: "placed"})
	requireOrders(t, db, 7)
}

func requireOrders(t *testing.T, db *gorm.DB, want ...int64) {
	t.Helper()
	var found []int64
	require.NoError(t, plain(db).Model(&contractOrder{}).Order("id").Pluck("id", &found).Error)
	require.Equal(t, append([]int64{}, want...), append([]int64{}, found...))
}

func checkRollback(t *testing.T, db *gorm.DB) {
	install(t, db)
	require.ErrorIs(t, db.Transaction(func(tx *gorm.DB) error {
		require.NoError(t, tx.Create(&contractOrder{ID: 7}).Error)
		require.NoError(t, enqueuers["Enqueue"](tx))
		return errContract
	}), errContract)
	requireOrders(t, db)
	RequireNotEnqueued(t, db, Match{})
	requireSummary(t, outbox.Summary{}, once(t, db, configure(NewRecorder())))
}

func checkSavepoint(t *testing.T, db *gorm.DB) {
	install(t, db)
	require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
		require.NoError(t, tx.Create(&contractOrder{ID: 7}).Error)
		require.ErrorIs(t, tx.Transaction(func(inner *gorm.DB) error {
			enqueueIn(t, inner, mail("undone by the inner transaction"))
			return errContract
		}), errContract)
		enqueueIn(t, tx, mail("kept"))
		require.NoError(t, tx.SavePoint("here").Error)
		enqueueIn(t, tx, mail("undone by RollbackTo"))
		require.NoError(t, tx.RollbackTo("here").Error)
		return nil
	}))
	requireOrders(t, db, 7)
	rec := NewRecorder()
	requireSummary(t, outbox.Summary{Claimed: 1, Sent: 1}, once(t, db, configure(rec)))
	require.Equal(t, []string{"kept"}, kinds(rec.Deliveries()))
}

// enqueueIn enqueues one message in a transaction that the check holds.
func enqueueIn(t *testing.T, tx *gorm.DB, m outbox.Message) outbox.Receipt {
	t.Helper()
	receipt, err := outbox.Enqueue(tx, m)
	require.NoError(t, err)
	return receipt
}

func checkHook(t *testing.T, db *gorm.DB) {
	install(t, db)
	db = db.Session(&gorm.Session{})
	db.SkipDefaultTransaction = false // on the session's own copy: this is about the transaction of a hook

	require.NoError(t, db.Create(&contractSale{ID: 1, Message: mail("one")}).Error)
	require.NoError(t, db.Create([]*contractSale{{ID: 2, Message: mail("two")}, {ID: 3, Message: mail("three")}}).Error)
	require.ErrorIs(t, db.Create(&contractSale{ID: 4, Message: mail("four"), Then: errContract}).Error, errContract)
	require.ErrorIs(t, db.Create(&contractSale{ID: 5}).Error, outbox.ErrInvalid)
	require.ErrorIs(t, db.Transaction(func(tx *gorm.DB) error {
		require.NoError(t, tx.Create(&contractSale{ID: 6, Message: mail("six")}).Error)
		return errContract
	}), errContract)

	rec := NewRecorder()
	once(t, db, configure(rec))
	require.ElementsMatch(t, []string{"one", "two", "three"}, kinds(rec.Deliveries()))
	var sales int64
	require.NoError(t, db.Model(&contractSale{}).Count(&sales).Error)
	require.EqualValues(t, 3, sales)
}

func checkHookWithoutTransaction(t *testing.T, db *gorm.DB) {
	install(t, db)
	without := db.Session(&gorm.Session{SkipDefaultTransaction: true})
	require.ErrorIs(t, without.Create(&contractSale{ID: 1, Message: mail("one")}).Error, outbox.ErrNoTransaction)
	RequireNotEnqueued(t, db, Match{})
	require.NoError(t, without.Transaction(func(tx *gorm.DB) error {
		return tx.Create(&contractSale{ID: 2, Message: mail("two")}).Error
	}))
	RequireEnqueued(t, db, Match{Type: "two"})
}

func checkHandleKept(t *testing.T, db *gorm.DB) {
	install(t, db)
	sale := &contractSale{ID: 1, Message: mail("one")}
	require.NoError(t, db.Transaction(func(tx *gorm.DB) error { return tx.Create(sale).Error }))
	require.ErrorIs(t, enqueuers["Enqueue"](sale.handle), outbox.ErrNoTransaction)
	RequireCount(t, db, 1, Match{})
}
