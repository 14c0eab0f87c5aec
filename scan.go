package outbox

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"time"
)

// scanClaim reads a row of claimSQL.
func scanClaim(rows *sql.Rows) (c claim, err error) {
	var (
		status           Status
		key              sql.NullString
		payload, headers []byte
		due, created     instant
		unknown          instant
	)
	err = rows.Scan(&c.ID, &status, &c.TenantID, &c.Topic, &c.Type, &c.Recipient, &payload, &headers, &c.MessageID,
		&key, &c.Attempt, &c.MaxAttempts, &due, &created, &c.life, &unknown)
	if err != nil {
		return c, err
	}
	c.Headers = decodeHeaders(headers)
	c.Payload, c.due, c.EnqueuedAt, c.UnknownSince = payload, due.Time, created.Time, unknown.Time
	c.ProviderKey = providerKey(c.TenantID, key.String, c.MessageID)
	if status != StatusProcessing {
		c.closed = status
	}
	return c, nil
}

// decodeHeaders is lenient: a row written by hand with headers of another shape must not stop the claim of a batch. A
// value that is no string is given as its JSON text.
func decodeHeaders(text []byte) map[string]string {
	var values map[string]any
	if len(text) == 0 || json.Unmarshal(text, &values) != nil || len(values) == 0 {
		return nil
	}
	headers := make(map[string]string, len(values))
	for name, value := range values {
		if s, ok := value.(string); ok {
			headers[name] = s
		} else if text, err := json.Marshal(value); err == nil {
			headers[name] = string(text)
		}
	}
	return headers
}

// instant scans a timestamp, NULL as the zero time: drivers give SQLite's as text where the column's type is not known to them.
type instant struct{ time.Time }

// Scan implements sql.Scanner.
func (i *instant) Scan(v any) (err error) {
	switch v := v.(type) {
	case nil:
		i.Time = time.Time{}
	case time.Time:
		i.Time = v
	case string:
		i.Time, err = time.Parse(sqliteTime, v)
	case []byte:
		i.Time, err = time.Parse(sqliteTime, string(v))
	default:
		err = fmt.Errorf("a timestamp came as %T", v)
	}
	return err
}
