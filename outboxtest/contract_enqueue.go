package outboxtest

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"
)

var enqueueChecks = []check{
	{"writes a whole record", checkStored},
	{"keeps payloads", checkPayloads},
	{"applies the plugin's defaults", checkDefaults},
	{"takes none", checkEnqueueNone},
	{"takes 20000 in order", checkMany},
	{"ignores the caller's clauses", checkClauses},
	{"leaves the caller's handle as it was", checkHandleUnchanged},
	{"needs the plugin", checkNotInstalled},
}

func checkStored(t *testing.T, db *gorm.DB) {
	install(t, db)
	m := outbox.Message{
		Topic: topic, Type: "order_confirmation", Recipient: "ana@example.test", TenantID: "t1", IdempotencyKey: "order-7",
		Payload: json.RawMessage(`{"order":7}`), Headers: map[string]string{"lang": "es"}, MaxAttempts: 3,
	}
	receipt := enqueue(t, db, m)[0]
	r := record(t, db, receipt.ID)

	require.True(t, receipt.New)
	require.Equal(t, receipt.MessageID, r.MessageID)
	require.Regexp(t, `^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`, r.MessageID, "a UUIDv7")
	require.Equal(t, m.Topic, r.Topic)
	require.Equal(t, m.Type, r.Type)
	require.Equal(t, m.Recipient, r.Recipient)
	require.Equal(t, m.TenantID, r.TenantID)
	require.Equal(t, m.IdempotencyKey, text(r.IdempotencyKey))
	require.JSONEq(t, `{"order":7}`, string(r.Payload))
	require.EqualValues(t, map[string]any{"lang": "es"}, r.Headers)
	require.Equal(t, 3, r.MaxAttempts)
	requireFresh(t, r)

	bare := record(t, db, enqueue(t, db, outbox.Message{Topic: "orders"})[0].ID)
	require.Nil(t, bare.IdempotencyKey, "none is made up")
	require.Equal(t, "null", string(bare.Payload))
	require.Empty(t, bare.Headers)
	require.Empty(t, bare.Type+bare.Recipient+bare.TenantID)
	requireFresh(t, bare)
}

// requireFresh requires a record that waits for its first attempt and is due since it was enqueued.
func requireFresh(t *testing.T, r outbox.Record) {
	t.Helper()
	requireSound(t, r)
	require.Equal(t, outbox.StatusPending, r.Status)
	require.Zero(t, r.Attempts)
	require.Nil(t, r.LastErrorCategory)
	require.Nil(t, r.LastErrorCode)
	require.Nil(t, r.ExternalID)
	require.True(t, r.DueAt.Equal(r.CreatedAt), "due at %v, enqueued at %v", r.DueAt, r.CreatedAt)
	require.True(t, r.UpdatedAt.Equal(r.CreatedAt))
	require.WithinDuration(t, time.Now(), r.CreatedAt, 10*time.Minute, "the clocks of a database and a process differ a little; a zone taken for another differs by more")
}

func checkPayloads(t *testing.T, db *gorm.DB) {
	install(t, db)
	type order struct {
		ID   int64     `json:"id"`
		Tags []string  `json:"tags"`
		At   time.Time `json:"at"`
	}
	payloads := []any{
		nil, true, 7, 0.1, "text", "", []int{}, map[string]any{}, []any{nil, 1, "a", map[string]any{"b": []any{}}},
		order{ID: 9007199254740993, Tags: []string{"a", "b"}, At: time.Unix(0, 123456789).UTC()},
		&order{ID: -1}, (*order)(nil), json.Number("123456789012345678901234567890.5"),
		"ñandú 😀 \u2028 \ufffd <&> \t\n\"\\ 日本", map[string]string{"clé": "\x7f\x01", "": "empty key", `"`: "'?$1:"},
		json.RawMessage(` { "a" : [1, 2.50, "\u00e9", "\ud83d\ude00", "\\u0000"], "b":null } `),
		strings.Repeat("x", outbox.DefaultMaxPayload-2),
	}
	var ms []outbox.Message
	for i, payload := range payloads {
		ms = append(ms, outbox.Message{Topic: topic, Type: pad(i), Payload: payload})
	}
	enqueue(t, db, ms...)
	rec := NewRecorder()
	once(t, db, configure(rec))
	require.Len(t, rec.Deliveries(), len(ms))
	for _, d := range rec.Deliveries() {
		i, err := strconv.Atoi(d.Type)
		require.NoError(t, err)
		want, err := json.Marshal(payloads[i])
		require.NoError(t, err)
		require.Equal(t, exact(t, want), exact(t, d.Payload), "payload %d", i)
	}
}

// exact decodes JSON without rounding its numbers.
func exact(t *testing.T, text []byte) any {
	t.Helper()
	decoder := json.NewDecoder(strings.NewReader(string(text)))
	decoder.UseNumber()
	var v any
	require.NoError(t, decoder.Decode(&v))
	return v
}

func checkDefaults(t *testing.T, db *gorm.DB) {
	type requestKey struct{}
	install(t, db, outbox.Plugin{
		MaxAttempts: 5, MaxPayload: 10,
		Headers: func(ctx context.Context) map[string]string {
			id, _ := ctx.Value(requestKey{}).(string)
			return map[string]string{"request": id, "source": "plugin"}
		},
	})
	ctx := context.WithValue(context.Background(), requestKey{}, "r-1")
	require.NoError(t, db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		enqueueIn(t, tx, outbox.Message{Topic: topic, Headers: map[string]string{"source": "message", "lang": "es"}})
		enqueueIn(t, tx, outbox.Message{Topic: topic, MaxAttempts: 2, Payload: "12345678"})
		_, err := outbox.Enqueue(tx, outbox.Message{Topic: topic, Payload: "123456789"})
		require.ErrorIs(t, err, outbox.ErrInvalid, "over MaxPayload")
		return nil
	}))
	all := records(t, db)
	require.Len(t, all, 2)
	require.EqualValues(t, map[string]any{"request": "r-1", "source": "message", "lang": "es"}, all[0].Headers)
	require.EqualValues(t, map[string]any{"request": "r-1", "source": "plugin"}, all[1].Headers)
	require.Equal(t, 5, all[0].MaxAttempts)
	require.Equal(t, 2, all[1].MaxAttempts)
}

func checkEnqueueNone(t *testing.T, db *gorm.DB) {
	install(t, db)
	require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
		counted, statements := counting(tx)
		for _, none := range [][]outbox.Message{nil, {}} {
			receipts, err := outbox.EnqueueAll(counted, none)
			require.NoError(t, err)
			require.Empty(t, receipts)
		}
		require.Zero(t, statements.Load(), "no message needs no SQL")
		enqueueIn(t, counted, mail("one"))
		require.NotZero(t, statements.Load(), "the check itself sees statements")
		return nil
	}))
	_, err := outbox.EnqueueAll(db, nil)
	require.ErrorIs(t, err, outbox.ErrNoTransaction)
}

// countingPool counts the statements that go through it, as a tracing wrapper would.
type countingPool struct {
	gorm.ConnPool
	statements *atomic.Int64
}

func (p *countingPool) PrepareContext(ctx context.Context, query string) (*sql.Stmt, error) {
	p.statements.Add(1)
	return p.ConnPool.PrepareContext(ctx, query)
}

func (p *countingPool) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	p.statements.Add(1)
	return p.ConnPool.ExecContext(ctx, query, args...)
}

func (p *countingPool) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	p.statements.Add(1)
	return p.ConnPool.QueryContext(ctx, query, args...)
}

func (p *countingPool) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	p.statements.Add(1)
	return p.ConnPool.QueryRowContext(ctx, query, args...)
}

// counting gives a handle on the same transaction, and how many statements it has run.
func counting(tx *gorm.DB) (*gorm.DB, *atomic.Int64) {
	var n atomic.Int64
	h := tx.Session(&gorm.Session{NewDB: true, Context: tx.Statement.Context})
	h.Statement.ConnPool = &countingPool{h.Statement.ConnPool, &n}
	return h, &n
}

func checkMany(t *testing.T, db *gorm.DB) {
	install(t, db)
	const n = 20000
	ms := make([]outbox.Message, n)
	for i := range ms {
		ms[i] = outbox.Message{Topic: topic, Type: pad(i)}
	}
	receipts := enqueue(t, db, ms...)
	var all []outbox.Record // without the columns that cost most to read
	require.NoError(t, plain(db).Table(outbox.DefaultTable).Select("id", "type", "message_id").Order("id").Find(&all).Error)
	require.Len(t, all, n)
	seen := map[string]bool{}
	for i, r := range all { // in the order of their ids
		if r.Type != pad(i) || receipts[i] != (outbox.Receipt{ID: r.ID, MessageID: r.MessageID, New: true}) || seen[r.MessageID] {
			require.FailNow(t, "out of order", "message %d: type %q, receipt %+v of record %d", i, r.Type, receipts[i], r.ID)
		}
		seen[r.MessageID] = true
	}
}

// clauses are handles that carry clauses of the caller's.
var clauses = map[string]func(*gorm.DB) *gorm.DB{
	"where":    func(tx *gorm.DB) *gorm.DB { return tx.Where("1 = 0") },
	"table":    func(tx *gorm.DB) *gorm.DB { return tx.Table("nowhere") },
	"select":   func(tx *gorm.DB) *gorm.DB { return tx.Select("note") },
	"omit":     func(tx *gorm.DB) *gorm.DB { return tx.Omit("note", "payload", "topic") },
	"model":    func(tx *gorm.DB) *gorm.DB { return tx.Model(&contractOrder{ID: 7}) },
	"order":    func(tx *gorm.DB) *gorm.DB { return tx.Order("note desc") },
	"limit":    func(tx *gorm.DB) *gorm.DB { return tx.Limit(0).Offset(5) },
	"group":    func(tx *gorm.DB) *gorm.DB { return tx.Group("note").Having("note = ?", "x") },
	"distinct": func(tx *gorm.DB) *gorm.DB { return tx.Distinct("note") },
	"joins":    func(tx *gorm.DB) *gorm.DB { return tx.Joins("JOIN nowhere ON true") },
	"unscoped": func(tx *gorm.DB) *gorm.DB { return tx.Unscoped() },
	"upsert":   func(tx *gorm.DB) *gorm.DB { return tx.Clauses(clause.OnConflict{UpdateAll: true}) },
	"locking":  func(tx *gorm.DB) *gorm.DB { return tx.Clauses(clause.Locking{Strength: "UPDATE"}) },
	"scopes": func(tx *gorm.DB) *gorm.DB {
		return tx.Scopes(func(q *gorm.DB) *gorm.DB { return q.Where("1 = 0") })
	},
	"batches": func(tx *gorm.DB) *gorm.DB { return tx.Session(&gorm.Session{CreateBatchSize: 1}) },
	"kept":    func(tx *gorm.DB) *gorm.DB { return tx.Where("1 = 0").Session(&gorm.Session{}) },
}

func checkClauses(t *testing.T, db *gorm.DB) {
	install(t, db)
	require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
		for name, with := range clauses {
			first, err := outbox.Enqueue(with(tx), outbox.Message{Topic: topic, Type: name, IdempotencyKey: name})
			require.NoError(t, err, name)
			again, err := outbox.Enqueue(with(tx), outbox.Message{Topic: topic, Type: "again", IdempotencyKey: name})
			require.NoError(t, err, name)
			require.Equal(t, outbox.Receipt{ID: first.ID, MessageID: first.MessageID}, again, name)
		}
		return nil
	}))
	for name := range clauses {
		requireFresh(t, RequireEnqueued(t, db, Match{Type: name, IdempotencyKey: name}))
	}
	RequireCount(t, db, len(clauses), Match{})

	for name, with := range clauses { // nor do they play a part on the handle of a processor
		summary := once(t, with(db), configure(NewRecorder(Fail(errContract))))
		require.Equal(t, len(clauses)-1, summary.Sent, name)
		require.Equal(t, 1, summary.Retried, name)
		change(t, db, values{"status": "pending", "attempts": 0, "sent_at": nil, "due_at": gorm.Expr("created_at")})
	}
}

func checkHandleUnchanged(t *testing.T, db *gorm.DB) {
	install(t, db)
	require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
		for name, with := range clauses {
			untouched, used := with(tx), with(tx)
			_, err := outbox.EnqueueAll(used, mails(2))
			require.NoError(t, err, name)
			require.NoError(t, used.Error, name)
			require.Equal(t, query(untouched), query(used), name)
		}
		return nil
	}))
}

// query is the statement that a handle would run for orders.
func query(h *gorm.DB) string {
	var orders []contractOrder
	s := h.Session(&gorm.Session{DryRun: true}).Find(&orders).Statement
	return fmt.Sprint(s.SQL.String(), s.Vars, s.Table, s.RowsAffected, s.Error)
}

func checkNotInstalled(t *testing.T, db *gorm.DB) {
	for name, enqueue := range enqueuers {
		require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
			require.ErrorIs(t, enqueue(tx), outbox.ErrNotInstalled, name)
			return nil
		}))
	}
	_, err := outbox.NewProcessor(db, configure(NewRecorder()))
	require.ErrorIs(t, err, outbox.ErrNotInstalled)
	_, err = outbox.NewProcessor(nil, configure(NewRecorder()))
	require.ErrorIs(t, err, outbox.ErrNotInstalled)
	require.ErrorIs(t, outbox.Migrate(db), outbox.ErrNotInstalled)

	install(t, db)
	other := outbox.Plugin{Table: "other"}
	require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
		_, err := other.Enqueue(tx, mail("one"))
		require.ErrorIs(t, err, outbox.ErrNotInstalled)
		return nil
	}))
	_, err = other.NewProcessor(db, configure(NewRecorder()))
	require.ErrorIs(t, err, outbox.ErrNotInstalled)
	require.Error(t, db.Use(outbox.Plugin{}), "installed twice")
}
