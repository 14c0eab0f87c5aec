package outboxtest

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
)

var consumeChecks = []check{
	{"runs once for each message and consumer", checkConsumeOnce},
	{"leaves neither marker nor effect when it fails", checkConsumeFailure},
	{"passes a panic on", checkConsumePanic},
	{"rolls back with the transaction", checkConsumeRollback},
	{"lets one of many racers run", checkConsumeRace},
	{"needs a transaction and sound ids", checkConsumeRefusals},
	{"markers can be purged", checkPurgeConsumed},
}

// consume runs an effect, a new order, in a transaction of its own that the caller may spoil.
func consume(db *gorm.DB, consumer, messageID string, order int64, after func() error) (ran bool, err error) {
	err = db.Transaction(func(tx *gorm.DB) error {
		ran, err = outbox.ConsumeOnce(tx, consumer, messageID, func(tx *gorm.DB) error {
			return tx.Create(&contractOrder{ID: order}).Error
		})
		return errors.Join(err, after())
	})
	return ran, err
}

func fine() error { return nil }

func orders(t *testing.T, db *gorm.DB) int {
	t.Helper()
	var n int64
	require.NoError(t, db.Model(&contractOrder{}).Count(&n).Error)
	return int(n)
}

func checkConsumeOnce(t *testing.T, db *gorm.DB) {
	install(t, db)
	for i, want := range []struct {
		consumer, message string
		ran               bool
	}{{"credits", "m1", true}, {"credits", "m1", false}, {"mail", "m1", true}, {"credits", "m2", true}, {"credits", "M1", true}} {
		ran, err := consume(db, want.consumer, want.message, int64(i+1), fine)
		require.NoError(t, err)
		require.Equal(t, want.ran, ran, "%+v", want)
	}
	require.Equal(t, 4, orders(t, db))
}

// checkConsumeFailure fails inside a transaction that goes on and commits.
func checkConsumeFailure(t *testing.T, db *gorm.DB) {
	install(t, db)
	require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
		ran, err := outbox.ConsumeOnce(tx, "credits", "m1", func(tx *gorm.DB) error {
			require.NoError(t, tx.Create(&contractOrder{ID: 1}).Error)
			return errContract
		})
		require.ErrorIs(t, err, errContract)
		require.False(t, ran)
		return nil
	}))
	require.Zero(t, orders(t, db), "the effect is undone")
	ran, err := consume(db, "credits", "m1", 1, fine)
	require.NoError(t, err)
	require.True(t, ran, "and so is the marker")
}

func checkConsumePanic(t *testing.T, db *gorm.DB) {
	install(t, db)
	require.PanicsWithValue(t, "boom", func() {
		_ = db.Transaction(func(tx *gorm.DB) error {
			_, err := outbox.ConsumeOnce(tx, "credits", "m1", func(tx *gorm.DB) error {
				require.NoError(t, tx.Create(&contractOrder{ID: 1}).Error)
				panic("boom")
			})
			return err
		})
	})
	require.Zero(t, orders(t, db))
	ran, err := consume(db, "credits", "m1", 1, fine)
	require.NoError(t, err)
	require.True(t, ran)
}

func checkConsumeRollback(t *testing.T, db *gorm.DB) {
	install(t, db)
	ran, err := consume(db, "credits", "m1", 1, func() error { return errContract })
	require.ErrorIs(t, err, errContract)
	require.True(t, ran)
	require.Zero(t, orders(t, db))
	ran, err = consume(db, "credits", "m1", 1, fine)
	require.NoError(t, err)
	require.True(t, ran)
	require.Equal(t, 1, orders(t, db))
}

func checkConsumeRace(t *testing.T, db *gorm.DB) {
	install(t, db)
	var ran atomic.Int64
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			did, err := consume(db, "credits", "m1", int64(i+1), fine)
			if err != nil {
				t.Errorf("consume: %v", err)
			}
			if did {
				ran.Add(1)
			}
		}()
	}
	wg.Wait()
	require.EqualValues(t, 1, ran.Load())
	require.Equal(t, 1, orders(t, db))
}

func checkConsumeRefusals(t *testing.T, db *gorm.DB) {
	install(t, db)
	_, err := outbox.ConsumeOnce(db, "credits", "m1", func(*gorm.DB) error { return nil })
	require.ErrorIs(t, err, outbox.ErrNoTransaction)
	long := strings.Repeat("x", 201)
	require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
		for _, ids := range [][2]string{{"", "m1"}, {"credits", ""}, {long, "m1"}, {"credits", long}, {"a\x00", "m1"}, {"credits", "\xff"}} {
			_, err := outbox.ConsumeOnce(tx, ids[0], ids[1], func(*gorm.DB) error { return nil })
			require.ErrorIs(t, err, outbox.ErrInvalid)
		}
		_, err := outbox.ConsumeOnce(tx, "credits", "m1", nil)
		require.ErrorIs(t, err, outbox.ErrInvalid)
		return tx.Create(&contractOrder{ID: 1}).Error // the transaction is none the worse for it
	}))
	require.Equal(t, 1, orders(t, db))
}

func checkPurgeConsumed(t *testing.T, db *gorm.DB) {
	install(t, db)
	for i, message := range []string{"m1", "m2", "m3"} {
		_, err := consume(db, "credits", message, int64(i+1), fine)
		require.NoError(t, err)
	}
	n, err := outbox.PurgeConsumed(db, time.Hour)
	require.NoError(t, err)
	require.Zero(t, n)
	require.NoError(t, plain(db).Table(locate(db, outbox.Plugin{}).Table+"_processed").Where("message_id = ?", "m2").
		UpdateColumn("processed_at", time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)).Error)
	n, err = outbox.PurgeConsumed(db, time.Hour)
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
	ran, err := consume(db, "credits", "m2", 4, fine)
	require.NoError(t, err)
	require.True(t, ran, "what was purged is consumed again")
	_, err = outbox.PurgeConsumed(db, 0)
	require.ErrorIs(t, err, outbox.ErrInvalid)
}
