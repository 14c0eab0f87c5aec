package tests

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/tests/internal/chaos"
	"github.com/jackc/pgx/v5/pgconn"
	"gorm.io/gorm"
)

const producerName = "producer"

// errUndone ends a transaction or a savepoint that is meant to be rolled back.
var errUndone = errors.New("rolled back on purpose")

// produce commits the blocks one by one, in bursts evenly spread over a time.
func (c *chaosRun) produce(ctx context.Context, db *gorm.DB, blocks []chaos.Block, over time.Duration) {
	for i, b := range blocks {
		c.until(ctx, (over * time.Duration(i) / time.Duration(len(blocks))).Truncate(chaos.Burst))
		c.commit(ctx, db.WithContext(ctx), b)
	}
}

// commit does what an app does that must not lose a transaction: it looks how it ended, and runs it again if need be.
func (c *chaosRun) commit(ctx context.Context, db *gorm.DB, b chaos.Block) {
	for try := 0; ctx.Err() == nil; try++ {
		stored := false
		if try > 0 {
			pass(50 * time.Millisecond)
			var err error
			if stored, err = isStored(db, b); err != nil {
				continue
			}
		}
		if stored && !mayRepeat(b) {
			c.ended(b)
			return
		}
		receipts, err := write(db, b)
		var refused *pgconn.PgError
		switch {
		case err == nil:
			if stored && slices.ContainsFunc(receipts, func(r outbox.Receipt) bool { return r.New }) {
				c.problem(fmt.Errorf("a transaction that was stored enqueued its messages again: %+v", b))
			}
			c.ended(b)
			return
		case b.Rollback:
			c.ended(b)
			return
		case errors.As(err, &refused) && refused.Code == "23505": // its COMMIT came through after we had looked
			c.ended(b)
			return
		}
	}
}

// ended notes what the block has left, and what it has undone.
func (c *chaosRun) ended(b chaos.Block) {
	c.note(func() {
		for _, f := range b.Facts {
			if f.Undone || b.Rollback {
				c.history.RolledBack = append(c.history.RolledBack, f.ID)
			} else {
				c.history.Acknowledged = append(c.history.Acknowledged, f.ID)
			}
		}
	})
}

// mayRepeat reports whether the block may be run twice: its messages all have keys.
func mayRepeat(b chaos.Block) bool {
	return !slices.ContainsFunc(b.Committed(), func(f chaos.Fact) bool { return f.Key == "" })
}

// isStored looks whether the block's commit came through although it was not answered.
func isStored(db *gorm.DB, b chaos.Block) (stored bool, err error) {
	facts := b.Committed()
	if len(facts) == 0 {
		return false, nil
	}
	err = db.Raw(`SELECT EXISTS (SELECT FROM facts WHERE id = ?)`, facts[0].ID).Scan(&stored).Error
	return stored, err
}

// write is the block's transaction, each fact with its message.
func write(db *gorm.DB, b chaos.Block) (receipts []outbox.Receipt, err error) {
	err = db.Transaction(func(tx *gorm.DB) error {
		for _, f := range b.Facts {
			if f.Undone {
				undone := tx.Transaction(func(tx *gorm.DB) error {
					if _, err := put(tx, f); err != nil {
						return err
					}
					return errUndone
				})
				if !errors.Is(undone, errUndone) {
					return undone
				}
				continue
			}
			receipt, err := put(tx, f)
			if err != nil {
				return err
			}
			receipts = append(receipts, receipt)
		}
		if b.Rollback {
			return errUndone
		}
		return nil
	})
	return receipts, err
}

// put writes a fact and enqueues its message.
func put(tx *gorm.DB, f chaos.Fact) (outbox.Receipt, error) {
	statement := `INSERT INTO facts VALUES (?, ?)`
	if f.Key != "" {
		statement += ` ON CONFLICT DO NOTHING`
	}
	if err := tx.Exec(statement, f.ID, f.Key).Error; err != nil {
		return outbox.Receipt{}, err
	}
	return outbox.Enqueue(tx, outbox.Message{
		Topic: f.Topic, IdempotencyKey: f.Key, MaxAttempts: f.MaxAttempts, Payload: chaos.Content{Fact: f.ID, Plan: f.Plan},
	})
}
