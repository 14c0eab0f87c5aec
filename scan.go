package outbox

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// claimRow takes a row of claimSQL as the driver gives it: database/sql would go through reflection for each column.
type claimRow struct {
	values [15]any
	into   [15]any // pointers to them
}

func (r *claimRow) scan(rows *sql.Rows) (*claim, error) {
	if r.into[0] == nil {
		for i := range r.values {
			r.into[i] = &r.values[i]
		}
	}
	if err := rows.Scan(r.into[:]...); err != nil {
		return &claim{}, err
	}
	return r.claim()
}

// claim reads the columns in their order.
func (r *claimRow) claim() (_ *claim, wrong error) {
	var err error
	next := 0
	column := func() any { next++; return r.values[next-1] }
	text := func() string { return textOf(column()) }
	number := func() int64 {
		n, err := numberOf(column())
		wrong = errors.Join(wrong, err)
		return n
	}
	at := func() time.Time {
		var t instant
		wrong = errors.Join(wrong, t.Scan(column()))
		return t.Time
	}
	c := &claim{}
	c.ID, c.closed, c.TenantID, c.Type, c.Recipient = number(), Status(text()), text(), text(), text()
	c.Payload, c.Headers, c.MessageID = bytesOf(column()), decodeHeaders(bytesOf(column())), text()
	c.ProviderKey = providerKey(c.TenantID, text(), c.MessageID)
	c.Attempt, c.MaxAttempts = int(number()), int(number())
	c.due, c.EnqueuedAt = at(), at()
	if life := column(); life != nil {
		c.life.Valid = true
		c.life.Int64, err = numberOf(life)
		wrong = errors.Join(wrong, err)
	}
	c.UnknownSince = at()
	return c, wrong
}

// The values that drivers give: a text may come as bytes, and a number from an expression as a text.
func textOf(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case []byte:
		return string(v)
	default:
		return ""
	}
}

func bytesOf(v any) []byte {
	switch v := v.(type) {
	case string:
		return []byte(v)
	case []byte:
		return v
	default:
		return nil
	}
}

func numberOf(v any) (int64, error) {
	switch v := v.(type) {
	case int64:
		return v, nil
	case float64:
		return int64(v), nil
	default:
		n, err := strconv.ParseInt(textOf(v), 10, 64)
		if err != nil {
			err = fmt.Errorf("a number came as %T", v)
		}
		return n, err
	}
}

// decodeHeaders is lenient: a row written by hand with headers of another shape must not stop the claim of a batch. A
// value that is no string is given as its JSON text.
func decodeHeaders(text []byte) map[string]string {
	if len(text) == 0 {
		return nil
	}
	var values map[string]any
	if json.Unmarshal(text, &values) != nil || len(values) == 0 {
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
