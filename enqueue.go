package outbox

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/gorm-outbox/outbox/internal/jsoncheck"
	"gorm.io/gorm"
)

// Enqueue writes a message in tx, the transaction of the business fact that causes it: both commit, or neither.
//
// It is refused with [ErrNoTransaction] unless tx is a transaction, and with [ErrInvalid] for a message that could
// not be stored; both before any SQL, so that the transaction stays usable. Enqueued again under the same tenant and
// idempotency key, a message is not written twice: the Receipt is the first one's, with New false, whoever wrote it
// and even if both calls race. Transactions that enqueue the same keys in different orders can deadlock as any inserts
// can; the database ends one of them (SQLSTATE 40P01), to be run again. The clauses on tx play no part and are not
// changed.
func Enqueue(tx *gorm.DB, m Message) (Receipt, error) {
	return first(EnqueueAll(tx, []Message{m}))
}

// EnqueueAll is [Enqueue] for many messages, in a few statements. The receipts are in the order of ms; a key that
// repeats inside ms is written once. None is written if one is refused, and no message is no error.
func EnqueueAll(tx *gorm.DB, ms []Message) ([]Receipt, error) {
	s, err := transactional(tx, theOutbox)
	if err != nil {
		return nil, err
	}
	return s.enqueue(tx, ms)
}

// Enqueue is the package's Enqueue for the plugin's table.
func (p Plugin) Enqueue(tx *gorm.DB, m Message) (Receipt, error) {
	return first(p.EnqueueAll(tx, []Message{m}))
}

// EnqueueAll is the package's EnqueueAll for the plugin's table.
func (p Plugin) EnqueueAll(tx *gorm.DB, ms []Message) ([]Receipt, error) {
	s, err := transactional(tx, p.installed)
	if err != nil {
		return nil, err
	}
	return s.enqueue(tx, ms)
}

func first(rs []Receipt, err error) (Receipt, error) {
	if err != nil {
		return Receipt{}, err
	}
	return rs[0], nil
}

// Bounds of a message, in characters.
const (
	maxName      = 200 // topic, type, tenant, key: an index entry of two of them stays far below a page's third
	maxRecipient = 2000
	maxHeaders   = 16 << 10 // bytes
)

// row is a message as the statements take it.
type row struct {
	N           int             `json:"n"`
	Tenant      string          `json:"tenant"`
	Topic       string          `json:"topic,omitempty"`
	Type        string          `json:"type"`
	Recipient   string          `json:"recipient"`
	Payload     json.RawMessage `json:"payload,omitempty"`
	Headers     json.RawMessage `json:"headers,omitempty"`
	MessageID   string          `json:"message_id,omitempty"`
	Key         string          `json:"key,omitempty"`
	MaxAttempts int             `json:"max_attempts,omitempty"`
	DueAt       any             `json:"due_at,omitempty"`
	Delay       int64           `json:"delay"` // microseconds
	ExpiresAt   any             `json:"expires_at,omitempty"`
}

// identity is what makes two messages the same one.
type identity struct{ tenant, key string }

// enqueue validates every message, then writes those whose key does not repeat one before it, then answers the
// repeats from the receipts of the first.
func (s *store) enqueue(tx *gorm.DB, ms []Message) ([]Receipt, error) {
	rows := make([]row, 0, len(ms))
	repeats := map[int]int{} // message → the earlier one with the same key
	seen := map[identity]int{}
	for n, m := range ms {
		r, err := s.check(tx, m)
		if err != nil {
			return nil, describe(n, len(ms), err)
		}
		if r.Key != "" {
			if earlier, ok := seen[identity{r.Tenant, r.Key}]; ok {
				repeats[n] = earlier
				continue
			}
			seen[identity{r.Tenant, r.Key}] = n
		}
		r.N = n
		rows = append(rows, r)
	}
	receipts := make([]Receipt, len(ms))
	for len(rows) > 0 {
		chunk := rows[:chunkLen(rows)]
		if err := s.insert(directly(tx), chunk, receipts); err != nil {
			if errors.Is(err, sql.ErrTxDone) {
				return nil, because(ErrNoTransaction, "the transaction has already ended: %w", err)
			}
			return nil, fmt.Errorf("outbox: enqueue in %s: %w", s.Table, err)
		}
		rows = rows[len(chunk):]
	}
	if s.WakeUp && slices.ContainsFunc(receipts, func(r Receipt) bool { return r.New }) {
		s.ring(tx)
	}
	for n, earlier := range repeats {
		receipts[n] = Receipt{ID: receipts[earlier].ID, MessageID: receipts[earlier].MessageID}
	}
	return receipts, nil
}

func describe(n, of int, err error) error {
	if of == 1 || !errors.Is(err, ErrInvalid) {
		return err
	}
	return because(ErrInvalid, "message %d of %d: %w", n+1, of, reason(err))
}

// check makes a row of a message, or says what is wrong with it.
func (s *store) check(tx *gorm.DB, m Message) (row, error) {
	r := row{
		Topic: m.Topic, Type: m.Type, Recipient: m.Recipient, Key: m.IdempotencyKey,
		MaxAttempts: m.MaxAttempts, Delay: m.Delay.Microseconds(),
	}
	if err := checkTexts(m); err != nil {
		return r, err
	}
	var err error
	if r.Tenant, err = s.tenant(m.TenantID); err != nil {
		return r, err
	}
	if err := s.checkTimes(m, &r); err != nil {
		return r, err
	}
	if r.MaxAttempts == 0 {
		r.MaxAttempts = s.MaxAttempts
	}
	if r.MaxAttempts < 1 || r.MaxAttempts > maxAttemptsLimit {
		return r, invalid("MaxAttempts is %d, must be 1 to %d, or 0 for the plugin's", m.MaxAttempts, maxAttemptsLimit)
	}
	if r.Payload, err = jsoncheck.Marshal(m.Payload, s.MaxPayload); err != nil {
		return r, invalid("Payload: %w", err)
	}
	if headers := s.headers(tx, m); len(headers) > 0 {
		if r.Headers, err = jsoncheck.Marshal(headers, maxHeaders); err != nil {
			return r, invalid("Headers: %w", err)
		}
	}
	id, err := uuid.NewV7()
	r.MessageID = id.String()
	return r, err
}

// headers merges the plugin's into the message's own, which win.
func (s *store) headers(tx *gorm.DB, m Message) map[string]string {
	if s.Headers == nil {
		return m.Headers
	}
	merged := map[string]string{}
	for name, value := range s.Headers(tx.Statement.Context) {
		merged[name] = value
	}
	for name, value := range m.Headers {
		merged[name] = value
	}
	return merged
}

// checkTexts never quotes a text: a recipient or a key may be private.
func checkTexts(m Message) error {
	if m.Topic == "" {
		return invalid("Topic is empty; it selects the transport")
	}
	for _, t := range []struct {
		name, text string
		limit      int
	}{
		{"Topic", m.Topic, maxName}, {"Type", m.Type, maxName}, {"TenantID", m.TenantID, maxName},
		{"IdempotencyKey", m.IdempotencyKey, maxName}, {"Recipient", m.Recipient, maxRecipient},
	} {
		if err := checkText(t.name, t.text, t.limit); err != nil {
			return err
		}
	}
	return nil
}

func checkText(name, text string, limit int) error {
	if err := jsoncheck.Text(text); err != nil {
		return invalid("%s: %w", name, err)
	}
	if n := utf8.RuneCountInString(text); n > limit {
		return invalid("%s has %d characters, may have %d", name, n, limit)
	}
	return nil
}

// tenant gives the tenant as its column gives it back, and keeps one that the column's type cannot hold from failing
// in SQL, in mid-transaction.
func (s *store) tenant(id string) (string, error) {
	canonical, err := id, error(nil)
	switch s.Tenant.Type {
	case "uuid":
		var u uuid.UUID
		u, err = uuid.Parse(id)
		canonical = u.String()
	case "bigint":
		var n int64
		n, err = strconv.ParseInt(id, 10, 64)
		canonical = strconv.FormatInt(n, 10)
	}
	if err != nil {
		return "", invalid("TenantID must be a %s, the type of column %s", s.Tenant.Type, s.Tenant.Name)
	}
	return canonical, nil
}

// checkTimes sets when the row is due, and until when.
func (s *store) checkTimes(m Message, r *row) (err error) {
	if m.Delay < 0 {
		return invalid("Delay is %v, must not be negative", m.Delay)
	}
	if m.Delay != 0 && !m.ScheduledFor.IsZero() {
		return invalid("both ScheduledFor and Delay are given; set one")
	}
	if r.DueAt, err = s.instant("ScheduledFor", m.ScheduledFor); err != nil {
		return err
	}
	r.ExpiresAt, err = s.instant("ExpiresAt", m.ExpiresAt)
	return err
}

// instant makes a parameter of a time, nil for none.
func (s *store) instant(name string, t time.Time) (any, error) {
	if t.IsZero() {
		return nil, nil
	}
	if t = t.UTC(); t.Year() < 1970 || t.Year() > 9999 {
		return nil, invalid("%s is in the year %d, must be 1970 to 9999", name, t.Year())
	}
	return s.time(t.Truncate(time.Microsecond)), nil
}
