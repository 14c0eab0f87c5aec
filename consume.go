package outbox

import (
	"database/sql"
	"fmt"
	"time"

	"gorm.io/gorm"
)

// ConsumeOnce is the inbox: it runs fn the first time that a consumer gets a message, in tx, and never again. The marker
// that remembers it commits together with what fn did, so a crash leaves neither, and a redelivery finds the marker:
//
//	err := db.Transaction(func(tx *gorm.DB) error {
//		_, err := outbox.ConsumeOnce(tx, "credits", delivery.MessageID, func(tx *gorm.DB) error {
//			return grantCredits(tx, delivery)
//		})
//		return err
//	})
//
// ran tells whether fn ran. If fn fails or panics, its effect and the marker are undone, also in a transaction that goes
// on, and its error is given back, or its panic goes on. Of two consumers that race for a message one waits for the
// other. tx must be a transaction ([ErrNoTransaction]); consumer and messageID have 1 to 200 characters
// ([ErrInvalid]). Markers are kept until [PurgeConsumed].
func ConsumeOnce(tx *gorm.DB, consumer, messageID string, fn func(tx *gorm.DB) error) (ran bool, err error) {
	s, err := transactional(tx, theOutbox)
	if err != nil {
		return false, err
	}
	return s.consumeOnce(tx, consumer, messageID, fn)
}

// ConsumeOnce is the package's ConsumeOnce with the markers of the plugin's outbox.
func (p Plugin) ConsumeOnce(tx *gorm.DB, consumer, messageID string, fn func(tx *gorm.DB) error) (ran bool, err error) {
	s, err := transactional(tx, p.installed)
	if err != nil {
		return false, err
	}
	return s.consumeOnce(tx, consumer, messageID, fn)
}

const markSQL = `
INSERT INTO {processed} (consumer, message_id, processed_at) VALUES (?, ?, {now})
ON CONFLICT (consumer, message_id) DO NOTHING
RETURNING consumer`

func (s *store) consumeOnce(tx *gorm.DB, consumer, messageID string, fn func(tx *gorm.DB) error) (ran bool, err error) {
	for name, text := range map[string]string{"consumer": consumer, "messageID": messageID} {
		if text == "" {
			return false, invalid("%s is empty", name)
		}
		if err := checkText(name, text, maxName); err != nil {
			return false, err
		}
	}
	if fn == nil {
		return false, invalid("fn is nil")
	}
	// A savepoint, whatever the app has configured: a failed fn must leave no marker in a transaction that goes on.
	outer := tx.Session(&gorm.Session{NewDB: true, Context: tx.Statement.Context})
	outer.DisableNestedTransaction = false
	err = outer.Transaction(func(inner *gorm.DB) error {
		err := collect(session(inner.Statement.Context, inner), func(rows *sql.Rows) error {
			ran = true
			return rows.Scan(new(string))
		}, s.render(markSQL, s.holes()...), consumer, messageID)
		if err != nil {
			return fmt.Errorf("outbox: mark message as consumed: %w", err)
		}
		if !ran {
			return nil
		}
		return fn(inner)
	})
	return ran && err == nil, err
}

// PurgeConsumed deletes the markers of [ConsumeOnce] that are older than the given time, in short transactions that stop
// with the handle's context, and gives back how many. The retention must outlive the longest redelivery, a redrive and
// a restored backup included: a message that comes after its marker is gone is consumed a second time.
func PurgeConsumed(db *gorm.DB, olderThan time.Duration) (int64, error) {
	s, err := theOutbox(db)
	if err != nil {
		return 0, err
	}
	return s.purgeConsumed(db, olderThan)
}

// PurgeConsumed is the package's PurgeConsumed for the plugin's outbox.
func (p Plugin) PurgeConsumed(db *gorm.DB, olderThan time.Duration) (int64, error) {
	s, err := p.installed(db)
	if err != nil {
		return 0, err
	}
	return s.purgeConsumed(db, olderThan)
}

// A chunk is a stretch of the primary key and not a number of matches, so that no statement reads the whole table,
// which has no other index.
const (
	consumedChunkSQL = `
WITH chunk AS (SELECT consumer, message_id FROM {processed} WHERE (consumer, message_id) > (?, ?)
	ORDER BY consumer, message_id LIMIT ?)
SELECT consumer, message_id FROM chunk ORDER BY consumer DESC, message_id DESC LIMIT 1`

	purgeConsumedSQL = `
DELETE FROM {processed}
WHERE (consumer, message_id) > (?, ?) AND (consumer, message_id) <= (?, ?) AND processed_at <= ?`
)

func (s *store) purgeConsumed(db *gorm.DB, olderThan time.Duration) (total int64, err error) {
	if olderThan <= 0 {
		return 0, invalid("the age of markers to purge is %v, must be above 0", olderThan)
	}
	chunkSQL := s.render(consumedChunkSQL, s.holes()...)
	purgeSQL := s.render(purgeConsumedSQL, s.holes()...)
	cutoff, err := s.clock(db, -olderThan)
	if err != nil {
		return 0, err
	}
	var consumer, message string // where the chunk before ended
	err = inChunks(db, func(db *gorm.DB) (more bool, err error) {
		lastConsumer, lastMessage := consumer, message
		err = collect(db, func(rows *sql.Rows) error {
			more = true
			return rows.Scan(&lastConsumer, &lastMessage)
		}, chunkSQL, consumer, message, defaultChunk)
		if err != nil || !more {
			return false, err
		}
		gone := db.Exec(purgeSQL, consumer, message, lastConsumer, lastMessage, s.time(cutoff))
		total += gone.RowsAffected
		consumer, message = lastConsumer, lastMessage
		return true, gone.Error
	})
	return total, wrap("purge consumed markers", err)
}
