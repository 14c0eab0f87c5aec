package trial

import (
	"context"
	"fmt"
)

// CheckStored says what is wrong unless the database holds the messages 0 ≤ n < count, each once, and a row of the
// app's for each.
func (s *Session) CheckStored(ctx context.Context, count, orders int) error {
	var written int
	if orders > 0 {
		if err := s.conn.QueryRow(ctx, "SELECT count(*) FROM orders").Scan(&written); err != nil {
			return err
		}
	}
	if written != orders {
		return fmt.Errorf("the app wrote %d rows and has %d", orders, written)
	}
	if s.store.Table == "" { // a contender without messages
		return nil
	}
	var stored, distinct, most int
	err := s.conn.QueryRow(ctx, fmt.Sprintf(
		"SELECT count(*), count(DISTINCT n), coalesce(max(n), -1) FROM (SELECT %s AS n FROM %s) AS stored WHERE n >= 0",
		s.store.Number, s.store.Table)).Scan(&stored, &distinct, &most)
	if err != nil {
		return err
	}
	if stored != count || distinct != count || most != count-1 {
		return fmt.Errorf("of %d messages enqueued, %d are stored, %d of them different, the last numbered %d",
			count, stored, distinct, most)
	}
	return nil
}

// CheckRecorded says what is wrong unless every message is recorded as delivered at the first attempt.
func (s *Session) CheckRecorded(ctx context.Context) error {
	var left int
	err := s.conn.QueryRow(ctx, fmt.Sprintf("SELECT count(*) FROM %s WHERE NOT (%s) AND %s >= 0",
		s.store.Table, s.store.Finished, s.store.Number)).Scan(&left)
	if err == nil && left > 0 {
		err = fmt.Errorf("%d messages were handled and are not recorded so, or not at the first attempt", left)
	}
	return err
}
