package tests

import (
	"bytes"
	"context"
	"fmt"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/tests/internal/proxy"
	"github.com/stretchr/testify/require"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"
)

func TestC01_EnqueueNeedsATransaction(t *testing.T) {
	for _, prepared := range []bool{false, true} {
		t.Run(fmt.Sprintf("PrepareStmt=%t", prepared), func(t *testing.T) {
			eachEngine(t, gorm.Config{PrepareStmt: prepared}, func(t *testing.T, db *gorm.DB) {
				_, err := outbox.Enqueue(db, mail("bare"))
				require.ErrorIs(t, err, outbox.ErrNoTransaction)
				_, err = outbox.EnqueueAll(db, []outbox.Message{mail("bare"), mail("bare")})
				require.ErrorIs(t, err, outbox.ErrNoTransaction)
				require.Zero(t, count(t, db, "outbox"))
			})
		})
	}
}

func TestC01_AMessageSharesTheFateOfItsTransaction(t *testing.T) {
	eachEngine(t, gorm.Config{}, func(t *testing.T, db *gorm.DB) {
		require.NoError(t, db.AutoMigrate(&purchase{}))
		write := func(result error) error {
			return db.Transaction(func(tx *gorm.DB) error {
				require.NoError(t, tx.Create(&purchase{ID: 7}).Error)
				r, err := outbox.Enqueue(tx, mail("order"))
				require.NoError(t, err)
				require.True(t, r.New)
				require.NotZero(t, r.ID)
				require.Len(t, r.MessageID, 36)
				return result
			})
		}
		require.ErrorIs(t, write(errUndo), errUndo)
		require.Zero(t, count(t, db, "outbox"))
		require.Zero(t, count(t, db, "purchases"))

		require.NoError(t, write(nil))
		require.Equal(t, []string{"order"}, typesOf(records(t, db)))
		require.EqualValues(t, 1, count(t, db, "purchases"))
	})
}

func TestC02_ARolledBackSavepointTakesItsMessagesAlong(t *testing.T) {
	inner := map[string]func(t *testing.T, tx *gorm.DB, enqueueM1 func(tx *gorm.DB)){
		"nested Transaction": func(t *testing.T, tx *gorm.DB, enqueueM1 func(tx *gorm.DB)) {
			require.ErrorIs(t, tx.Transaction(func(tx *gorm.DB) error {
				enqueueM1(tx)
				return errUndo
			}), errUndo)
		},
		"SavePoint and RollbackTo": func(t *testing.T, tx *gorm.DB, enqueueM1 func(tx *gorm.DB)) {
			require.NoError(t, tx.SavePoint("before_m1").Error)
			enqueueM1(tx)
			require.NoError(t, tx.RollbackTo("before_m1").Error)
		},
	}
	for name, rollBackM1 := range inner {
		t.Run(name, func(t *testing.T) {
			eachEngine(t, gorm.Config{}, func(t *testing.T, db *gorm.DB) {
				require.NoError(t, db.AutoMigrate(&purchase{}))
				require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
					require.NoError(t, tx.Create(&purchase{ID: 7}).Error)
					rollBackM1(t, tx, func(tx *gorm.DB) {
						_, err := outbox.Enqueue(tx, keyed("M1", "", "key"))
						require.NoError(t, err)
					})
					r, err := outbox.Enqueue(tx, keyed("M2", "", "key")) // what M1 left must not count as the key's holder
					require.True(t, r.New)
					return err
				}))
				require.Equal(t, []string{"M2"}, typesOf(records(t, db)))
				box := &mailbox{}
				require.Equal(t, outbox.Summary{Claimed: 1, Sent: 1}, drain(t, db, box))
				require.Equal(t, []string{"M2"}, box.types())
				require.EqualValues(t, 1, count(t, db, "purchases"))
			})
		})
	}
}

func TestC03_CaughtConflictLeavesTheTransactionUsable(t *testing.T) {
	eachEngine(t, gorm.Config{}, func(t *testing.T, db *gorm.DB) {
		require.NoError(t, db.AutoMigrate(&purchase{}))
		first := enqueue(t, db, keyed("first", "", "order-7"))[0]

		require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
			require.NoError(t, tx.Create(&purchase{ID: 7}).Error)
			again, err := outbox.Enqueue(tx, keyed("again", "", "order-7"))
			require.NoError(t, err)
			require.Equal(t, outbox.Receipt{ID: first.ID, MessageID: first.MessageID}, again)
			return tx.Create(&purchase{ID: 8, Note: "line"}).Error
		}))
		require.Equal(t, []string{"first"}, typesOf(records(t, db)))
		require.EqualValues(t, 2, count(t, db, "purchases"))
	})
}

func TestC03_RefusedMessageLeavesTheTransactionUsable(t *testing.T) {
	eachEngine(t, gorm.Config{}, func(t *testing.T, db *gorm.DB) {
		require.NoError(t, db.AutoMigrate(&purchase{}))
		require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
			require.NoError(t, tx.Create(&purchase{ID: 7}).Error)
			for _, bad := range refused {
				_, err := outbox.Enqueue(tx, bad.message)
				require.ErrorIs(t, err, outbox.ErrInvalid, bad.name)
				_, err = outbox.EnqueueAll(tx, []outbox.Message{mail("with it"), bad.message})
				require.ErrorIs(t, err, outbox.ErrInvalid, bad.name)
			}
			_, err := outbox.Enqueue(tx, mail("good"))
			require.NoError(t, err)
			return tx.Create(&purchase{ID: 8}).Error
		}))
		require.Equal(t, []string{"good"}, typesOf(records(t, db)))
		require.EqualValues(t, 2, count(t, db, "purchases"))
	})
}

func TestC04_LostReplyToCommit(t *testing.T) {
	dsn, err := url.Parse(cluster.CreateDatabase(t))
	require.NoError(t, err)
	direct := openGorm(t, postgres.Open(dsn.String()), gorm.Config{})
	require.NoError(t, direct.Use(outbox.Plugin{}))
	require.NoError(t, direct.AutoMigrate(&purchase{}))

	network, err := proxy.New(dsn.Host)
	require.NoError(t, err)
	t.Cleanup(network.Close)
	dsn.Host = network.Addr()
	db := openGorm(t, postgres.Open(dsn.String()), gorm.Config{})
	require.NoError(t, db.Use(outbox.Plugin{SkipMigrate: true}))

	block := func(ctx context.Context) (r outbox.Receipt, err error) {
		err = db.WithContext(ctx).Transaction(func(tx *gorm.DB) (err error) {
			order := purchase{ID: 7, Note: "paid"}
			if err := tx.Clauses(clause.OnConflict{UpdateAll: true}).Create(&order).Error; err != nil {
				return err
			}
			r, err = outbox.Enqueue(tx, keyed("order", "", "order-7"))
			return err
		})
		return r, err
	}
	network.OnClient(func(chunk []byte) {
		if bytes.Contains(bytes.ToLower(chunk), []byte("commit")) {
			network.SwallowReplies(true)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	first, err := block(ctx)
	require.Error(t, err, "the reply to COMMIT was lost")
	require.True(t, first.New)
	require.Eventually(t, func() bool { return count(t, direct, "outbox") == 1 }, patience, glance, "the server did commit")

	network.OnClient(nil)
	network.SwallowReplies(false)
	network.Cut()
	second, err := block(t.Context())
	require.NoError(t, err)
	require.Equal(t, outbox.Receipt{ID: first.ID, MessageID: first.MessageID}, second)

	box := &mailbox{}
	require.Equal(t, outbox.Summary{Claimed: 1, Sent: 1}, drain(t, direct, box))
	require.Equal(t, outbox.Summary{}, drain(t, direct, box))
	require.Equal(t, first.MessageID, box.deliveries()[0].MessageID)
}

func TestC05_EnqueuedTwiceIsOneMessage(t *testing.T) {
	eachEngine(t, gorm.Config{}, func(t *testing.T, db *gorm.DB) {
		original := keyed("first", "t1", "k1")
		original.Payload, original.Delay = map[string]int{"version": 1}, time.Hour
		first := enqueue(t, db, original)[0]
		before := records(t, db)

		repeat := keyed("second", "t1", "k1")
		repeat.Payload, repeat.Recipient, repeat.MaxAttempts = map[string]int{"version": 2}, "other", 3
		again := enqueue(t, db, repeat)[0]
		require.Equal(t, outbox.Receipt{ID: first.ID, MessageID: first.MessageID}, again)
		require.Equal(t, before, records(t, db), "the first one is untouched")

		other := enqueue(t, db, keyed("other tenant", "t2", "k1"), keyed("no tenant", "", "k1"), mail("no key"), mail("no key"))
		for _, r := range other {
			require.True(t, r.New)
		}
		require.Len(t, records(t, db), 5)
	})
}

func TestC05_AKeyHoldsForAsLongAsItsRecordIsKept(t *testing.T) {
	eachEngine(t, gorm.Config{}, func(t *testing.T, db *gorm.DB) {
		first := enqueue(t, db, keyed("first", "", "k"))[0]
		require.Equal(t, 1, drain(t, db, &mailbox{}).Sent)
		require.Equal(t, first.ID, enqueue(t, db, keyed("sent before", "", "k"))[0].ID)
		require.Zero(t, drain(t, db, &mailbox{}).Claimed, "a repeat of a sent message is not sent again")

		mustExec(t, db, "DELETE FROM outbox WHERE id = ?", first.ID)
		last := enqueue(t, db, keyed("after", "", "k"))[0]
		require.True(t, last.New)
		require.Greater(t, last.ID, first.ID, "ids are never used twice")
	})
}

func TestC05_RepeatsInsideOneCall(t *testing.T) {
	eachEngine(t, gorm.Config{}, func(t *testing.T, db *gorm.DB) {
		old := enqueue(t, db, keyed("old", "t", "old"))[0]
		got := enqueue(t, db, keyed("a", "t", "a"), keyed("old again", "t", "old"), mail("bare"), keyed("a again", "t", "a"),
			keyed("old once more", "t", "old"), keyed("a of another", "u", "a"))
		require.Equal(t, []string{"old", "a", "bare", "a of another"}, typesOf(records(t, db)), "in the order of the call")
		require.Equal(t, outbox.Receipt{ID: old.ID, MessageID: old.MessageID}, got[1])
		require.Equal(t, got[1], got[4])
		require.Equal(t, outbox.Receipt{ID: got[0].ID, MessageID: got[0].MessageID}, got[3])
		for i, isNew := range []bool{true, false, true, false, false, true} {
			require.Equal(t, isNew, got[i].New, "message %d", i)
		}
		require.Less(t, got[0].ID, got[2].ID)
		require.Less(t, got[2].ID, got[5].ID)
	})
}

func TestC06_TheSecondCallerWaitsForTheFirst(t *testing.T) {
	for _, commits := range []bool{true, false} {
		t.Run(fmt.Sprintf("first commits=%t", commits), func(t *testing.T) {
			db := newPostgres(t, gorm.Config{})
			t1 := begin(t, db)
			first, err := outbox.Enqueue(t1, keyed("first", "", "k1"))
			require.NoError(t, err)

			second := make(chan outbox.Receipt, 1)
			var waited sync.WaitGroup
			waited.Go(func() {
				defer close(second)
				err := db.Transaction(func(tx *gorm.DB) error {
					r, err := outbox.Enqueue(tx, keyed("second", "", "k1"))
					second <- r
					return err
				})
				if err != nil {
					t.Errorf("the second caller: %v", err)
				}
			})
			waitsForLock(t, db)
			if commits {
				require.NoError(t, t1.Commit().Error)
				require.Equal(t, outbox.Receipt{ID: first.ID, MessageID: first.MessageID}, <-second)
			} else {
				require.NoError(t, t1.Rollback().Error)
				got := <-second
				require.True(t, got.New)
				require.NotEqual(t, first.MessageID, got.MessageID)
			}
			waited.Wait()
			require.Len(t, records(t, db), 1)
		})
	}
}

func TestC06_FiftyAtOnceOnOneKey(t *testing.T) {
	eachEngine(t, gorm.Config{}, func(t *testing.T, db *gorm.DB) {
		const callers = 50
		receipts := make([]outbox.Receipt, callers)
		errs := make([]error, callers)
		start := make(chan struct{})
		var done sync.WaitGroup
		for i := range callers {
			done.Go(func() {
				<-start
				errs[i] = db.Transaction(func(tx *gorm.DB) (err error) {
					receipts[i], err = outbox.Enqueue(tx, keyed("one", "t", "k"))
					return err
				})
			})
		}
		close(start)
		done.Wait()
		found := records(t, db)
		require.Len(t, found, 1)
		winners := 0
		for i, r := range receipts {
			require.NoError(t, errs[i])
			require.Equal(t, found[0].ID, r.ID)
			require.Equal(t, found[0].MessageID, r.MessageID)
			if r.New {
				winners++
			}
		}
		require.Equal(t, 1, winners)
	})
}
