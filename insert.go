package outbox

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
)

// How much goes into one statement.
const (
	insertRows  = 1000
	insertBytes = 4 << 20
)

// chunkLen is how many of the rows go into the next statement.
func chunkLen(rows []row) int {
	size := 0
	for n, r := range rows {
		size += len(r.Payload) + len(r.Headers) + len(r.Recipient)
		if n == insertRows || n > 0 && size > insertBytes {
			return n
		}
	}
	return len(rows)
}

// insertTries bounds the chase after a record that holds a key when the insert meets it and is gone, purged, when it
// is looked up.
const insertTries = 5

// insert writes one chunk and fills in its receipts.
func (s *store) insert(tx direct, rows []row, receipts []Receipt) error {
	for try := 0; try < insertTries && len(rows) > 0; try++ {
		missing, err := s.insertNew(tx, rows, receipts)
		if err != nil {
			return err
		}
		if rows, err = s.findExisting(tx, missing, receipts); err != nil {
			return err
		}
	}
	if len(rows) > 0 {
		return fmt.Errorf("%d messages met a record with their key that could not be read", len(rows))
	}
	return nil
}

// insertNew gives back the rows that were not written because their key is taken.
func (s *store) insertNew(tx direct, rows []row, receipts []Receipt) (missing []row, err error) {
	switch keyed := slices.ContainsFunc(rows, func(r row) bool { return r.Key != "" }); {
	case len(rows) == 1:
		return s.insertOne(tx, rows[0], receipts)
	case keyed:
		return s.insertKeyed(tx, rows, receipts)
	default:
		return nil, s.insertPlain(tx, rows, receipts)
	}
}

func (s *store) insertOne(tx direct, r row, receipts []Receipt) (missing []row, err error) {
	statement := s.insertOneSQL
	if r.Key != "" {
		statement = s.insertOneKeySQL
	}
	missing = []row{r}
	err = tx.collect(func(found *sql.Rows) error {
		missing = nil
		receipts[r.N] = Receipt{MessageID: r.MessageID, New: true}
		return found.Scan(&receipts[r.N].ID)
	}, statement, r.Tenant, r.Topic, r.Type, r.Recipient, string(r.Payload), null(string(r.Headers)), r.MessageID,
		null(r.Key), r.MaxAttempts, r.DueAt, r.Delay, r.ExpiresAt)
	return missing, err
}

// insertPlain writes rows without keys, all of which are new. Their ids, sorted, are in the order of the rows.
func (s *store) insertPlain(tx direct, rows []row, receipts []Receipt) error {
	args, err := s.many(rows)
	if err != nil {
		return err
	}
	ids := make([]int64, 0, len(rows))
	var id int64
	err = tx.collect(func(found *sql.Rows) error {
		err := found.Scan(&id)
		ids = append(ids, id)
		return err
	}, s.insertSQL, args...)
	if err == nil && len(ids) != len(rows) {
		err = fmt.Errorf("%d of %d messages were written; does a trigger or a rule keep the others out?", len(ids), len(rows))
	}
	if err != nil {
		return err
	}
	slices.Sort(ids)
	for i, r := range rows {
		receipts[r.N] = Receipt{ID: ids[i], MessageID: r.MessageID, New: true}
	}
	return nil
}

func (s *store) insertKeyed(tx direct, rows []row, receipts []Receipt) (missing []row, err error) {
	args, err := s.many(rows)
	if err != nil {
		return nil, err
	}
	ids := make(map[string]int64, len(rows))
	err = tx.collect(func(found *sql.Rows) error {
		var id int64
		var messageID string
		err := found.Scan(&id, &messageID)
		ids[messageID] = id
		return err
	}, s.insertKeysSQL, args...)
	for _, r := range rows {
		if id, ok := ids[r.MessageID]; ok {
			receipts[r.N] = Receipt{ID: id, MessageID: r.MessageID, New: true}
		} else {
			missing = append(missing, r)
		}
	}
	return missing, err
}

// null is SQL's NULL for what is absent.
func null(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// findExisting gives back the rows whose key nobody holds any more.
func (s *store) findExisting(tx direct, rows []row, receipts []Receipt) ([]row, error) {
	if len(rows) == 0 {
		return nil, nil
	}
	keys := make([]row, len(rows))
	for i, r := range rows {
		keys[i] = row{N: r.N, Tenant: r.Tenant, Key: r.Key}
	}
	param, err := json.Marshal(keys)
	if err != nil {
		return nil, err
	}
	err = tx.collect(func(found *sql.Rows) error {
		var n int
		var r Receipt
		err := found.Scan(&n, &r.ID, &r.MessageID)
		receipts[n] = r
		return err
	}, s.existingSQL, string(param))
	var missing []row
	for _, r := range rows {
		if receipts[r.N].ID == 0 {
			missing = append(missing, r)
		}
	}
	return missing, err
}
