package tests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

// What must not be seen.
const (
	secret  = "secret-123"
	address = "ana@example.test"
)

// transcript collects what loggers write.
type transcript struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (w *transcript) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(p)
}

// String gives what was written so far.
func (w *transcript) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

// chatty has GORM log every statement in full, as slow ones are.
func chatty(w *transcript) gorm.Config {
	return gorm.Config{Logger: logger.New(log.New(w, "", 0), logger.Config{SlowThreshold: time.Nanosecond, LogLevel: logger.Info})}
}

// private is a message full of what must not be seen.
func private(kind string) outbox.Message {
	return outbox.Message{
		Topic: "email", Type: kind, Recipient: address, TenantID: "t", IdempotencyKey: kind + " " + address,
		Payload: map[string]string{"password": secret, "to": address}, Headers: map[string]string{"authorization": secret},
	}
}

// privateWorld is a database whose every logger writes to one transcript.
type privateWorld struct {
	db   *gorm.DB
	logs *transcript
}

// eachPrivateWorld also catches what goes to the default loggers of GORM and of Go.
func eachPrivateWorld(t *testing.T, test func(t *testing.T, w privateWorld)) {
	for _, engine := range engines {
		t.Run(engine.name, func(t *testing.T) {
			logs := &transcript{}
			gormDefault, slogDefault, writer := logger.Default, slog.Default(), log.Writer()
			logger.Default = chatty(logs).Logger
			slog.SetDefault(slog.New(slog.NewTextHandler(logs, &slog.HandlerOptions{Level: slog.LevelDebug})))
			log.SetOutput(logs)
			t.Cleanup(func() {
				logger.Default = gormDefault
				slog.SetDefault(slogDefault)
				log.SetOutput(writer)
			})
			db := engine.open(t, chatty(logs))
			require.NoError(t, db.Exec("SELECT 'control'").Error)
			require.Contains(t, logs.String(), "SELECT 'control'", "the log is heard")
			require.NoError(t, db.Use(outbox.Plugin{}))
			test(t, privateWorld{db, logs})
		})
	}
}

// debug is a processor's logger that leaves nothing out.
func (w privateWorld) debug() *slog.Logger {
	return slog.New(slog.NewJSONHandler(w.logs, &slog.HandlerOptions{Level: slog.LevelDebug, AddSource: true}))
}

// processor sends everything to the transport and logs all it does.
func (w privateWorld) processor(t *testing.T, transport outbox.TransportFunc) *outbox.Processor {
	t.Helper()
	p, err := outbox.NewProcessor(w.db, outbox.ProcessorConfig{
		Transports: map[string]outbox.Transport{"email": transport}, Lease: 5 * time.Second, Timeout: time.Second, BatchSize: 4,
		Concurrency: 4, Logger: w.debug(),
	})
	require.NoError(t, err)
	return p
}

// hides checks what can be seen from outside: logs, texts of errors, and any other text.
func (w privateWorld) hides(t *testing.T, texts ...any) {
	t.Helper()
	for _, text := range append(texts, w.logs) {
		shown := fmt.Sprintf("%v %+v %s", text, text, text)
		require.NotContains(t, shown, secret)
		require.NotContains(t, shown, address)
		require.NotContains(t, shown, "example.test")
	}
}

func TestC39_NothingPrivateIsLogged(t *testing.T) {
	answers := map[string]outbox.TransportFunc{
		"sent": func(context.Context, outbox.Delivery) (string, error) { return "ok", nil },
		"text": func(_ context.Context, d outbox.Delivery) (string, error) {
			return "", fmt.Errorf("550 %s: no such user, payload %s", d.Recipient, d.Payload)
		},
		"failure": func(_ context.Context, d outbox.Delivery) (string, error) {
			return "", &policy.Failure{Category: policy.CategoryRejected, Code: "550", Err: errors.New("no " + d.Recipient)}
		},
		"joined": func(_ context.Context, d outbox.Delivery) (string, error) {
			return "", errors.Join(errors.New(secret), fmt.Errorf("%s: %w", d.Recipient, policy.Failure{Category: policy.CategoryNetwork, Code: "reset"}))
		},
		"panic": func(_ context.Context, d outbox.Delivery) (string, error) {
			panic("no " + d.Recipient + string(d.Payload))
		},
		"panic error": func(_ context.Context, d outbox.Delivery) (string, error) { panic(errors.New(d.Recipient)) },
		"panic value": func(_ context.Context, d outbox.Delivery) (string, error) { panic(d) },
		"timeout": func(ctx context.Context, d outbox.Delivery) (string, error) {
			<-ctx.Done()
			return "", fmt.Errorf("%s: %w", d.Recipient, ctx.Err())
		},
	}
	eachPrivateWorld(t, func(t *testing.T, w privateWorld) {
		for kind := range answers {
			enqueue(t, w.db, private(kind), private("last "+kind))
			enqueue(t, w.db, private(kind))
		}
		mustExecQuietly(t, w.db, "UPDATE outbox SET max_attempts = 1 WHERE type LIKE 'last %'")
		p := w.processor(t, func(ctx context.Context, d outbox.Delivery) (string, error) {
			return answers[strings.TrimPrefix(d.Type, "last ")](ctx, d)
		})
		total := outbox.Summary{}
		for round := p.ProcessOnce(t.Context()); round.Claimed > 0; round = p.ProcessOnce(t.Context()) {
			w.hides(t, round)
			total.Sent, total.Retried = total.Sent+round.Sent, total.Retried+round.Retried
			total.Failed, total.Discarded = total.Failed+round.Failed, total.Discarded+round.Discarded
		}
		require.Equal(t, outbox.Summary{Sent: 2, Retried: 6, Failed: 6, Discarded: 2}, total)
		w.hides(t)
		require.Contains(t, w.logs.String(), `"category":"rejected","code":"550"`, "what an operator needs is there")
		for _, r := range records(t, w.db.Session(&gorm.Session{Logger: logger.Discard})) {
			if r.Status == outbox.StatusSent {
				continue
			}
			require.NotEmpty(t, *r.LastErrorCategory)
			w.hides(t, *r.LastErrorCategory)
			if r.LastErrorCode != nil {
				w.hides(t, *r.LastErrorCode)
			}
		}
	})
}

// mustExecQuietly runs a statement of the test's own.
func mustExecQuietly(t *testing.T, db *gorm.DB, statement string) {
	t.Helper()
	mustExec(t, db.Session(&gorm.Session{Logger: logger.Discard}), statement)
}

func TestC39_NothingPrivateInErrors(t *testing.T) {
	eachPrivateWorld(t, func(t *testing.T, w privateWorld) {
		_, err := outbox.Enqueue(w.db, private("x"))
		require.ErrorIs(t, err, outbox.ErrNoTransaction)
		w.hides(t, err)
		tx := begin(t, w.db)
		for name, spoil := range map[string]func(m *outbox.Message){
			"payload":   func(m *outbox.Message) { m.Payload = map[string]string{"a": secret + address + "\x00"} },
			"raw":       func(m *outbox.Message) { m.Payload = []byte(secret) },
			"marshaler": func(m *outbox.Message) { m.Payload = indiscreet{} },
			"key":       func(m *outbox.Message) { m.IdempotencyKey = strings.Repeat(address, 50) },
			"recipient": func(m *outbox.Message) { m.Recipient = address + "\x00" },
			"type":      func(m *outbox.Message) { m.Type = secret + "\xff" },
			"tenant":    func(m *outbox.Message) { m.TenantID = address + "\x00" },
			"headers":   func(m *outbox.Message) { m.Headers = map[string]string{address: secret + "\x00"} },
		} {
			m := private("x")
			spoil(&m)
			_, err := outbox.EnqueueAll(tx, []outbox.Message{private("y"), m})
			require.ErrorIs(t, err, outbox.ErrInvalid, name)
			w.hides(t, err)
		}
		require.NoError(t, tx.Rollback().Error)
		uuids := outbox.Plugin{Table: "uuids", Tenant: outbox.TenantColumn{Type: "uuid"}}
		require.NoError(t, w.db.Use(uuids))
		tx = begin(t, w.db)
		m := private("x")
		m.TenantID = address
		_, err = uuids.Enqueue(tx, m)
		require.ErrorIs(t, err, outbox.ErrInvalid)
		w.hides(t, err)
	})
}

// indiscreet fails with what it was to encode.
type indiscreet struct{}

// MarshalJSON implements json.Marshaler.
func (indiscreet) MarshalJSON() ([]byte, error) { return nil, errors.New(secret + address) }

// TestC39_NothingPrivateWhenEnqueueFailsInSQL has the database refuse the insert and the lookup in several ways.
func TestC39_NothingPrivateWhenEnqueueFailsInSQL(t *testing.T) {
	breaks := map[string]string{
		"dropped column": "ALTER TABLE outbox DROP COLUMN recipient",
		"dropped table":  "DROP TABLE outbox",
	}
	onPostgres := map[string]string{
		"check constraint": "ALTER TABLE outbox ADD CHECK (recipient NOT LIKE '%@%')",
		"narrower column":  "ALTER TABLE outbox ALTER COLUMN recipient TYPE varchar(5)",
		"another type":     "ALTER TABLE outbox ALTER COLUMN recipient TYPE integer USING 1",
		"unique index":     "CREATE UNIQUE INDEX ON outbox (recipient)",
	}
	eachPrivateWorld(t, func(t *testing.T, w privateWorld) {
		statements := breaks
		if w.db.Dialector.Name() == "postgres" {
			statements = merged(breaks, onPostgres)
		}
		for name, statement := range statements {
			t.Run(name, func(t *testing.T) {
				tx := begin(t, w.db)
				require.NoError(t, tx.Session(&gorm.Session{Logger: logger.Discard}).Exec(statement).Error)
				_, err := outbox.Enqueue(tx, private("one"))
				if err == nil { // the unique index takes one
					_, err = outbox.EnqueueAll(tx, []outbox.Message{mail("bare"), private("two")})
				}
				require.Error(t, err)
				w.hides(t, err)
				var refused *pgconn.PgError
				if errors.As(err, &refused) {
					w.hides(t, refused.Message)
				}
				require.NoError(t, tx.Rollback().Error)
			})
		}
	})
}

func merged(maps ...map[string]string) map[string]string {
	all := map[string]string{}
	for _, m := range maps {
		for name, value := range m {
			all[name] = value
		}
	}
	return all
}

// TestC39_NothingPrivateWhenRecordingFailsInSQL takes a column away while messages are at their transport.
func TestC39_NothingPrivateWhenRecordingFailsInSQL(t *testing.T) {
	eachPrivateWorld(t, func(t *testing.T, w privateWorld) {
		enqueue(t, w.db, private("sent"))
		p := w.processor(t, func(_ context.Context, d outbox.Delivery) (string, error) {
			mustExecQuietly(t, w.db, "ALTER TABLE outbox DROP COLUMN last_error_code")
			return "ext", errors.New("no " + d.Recipient)
		})
		round := make(chan outbox.Summary, 1)
		go func() { round <- p.ProcessOnce(context.Background()) }()
		require.Eventually(t, func() bool { return strings.Contains(w.logs.String(), "recording failed") }, patience, glance)
		mustExecQuietly(t, w.db, "ALTER TABLE outbox ADD COLUMN last_error_code text")
		summary := <-round
		require.Equal(t, 1, summary.Retried)
		require.NotEmpty(t, summary.LastError)
		w.hides(t, summary)

		mustExecQuietly(t, w.db, "ALTER TABLE outbox DROP COLUMN recipient")
		summary = p.ProcessOnce(t.Context())
		require.Equal(t, 1, summary.Errors)
		w.hides(t, summary)
	})
}

func TestC39_NothingPrivateForOperators(t *testing.T) {
	eachPrivateWorld(t, func(t *testing.T, w privateWorld) {
		id := enqueue(t, w.db, private("x"))[0].ID
		p := w.processor(t, func(_ context.Context, d outbox.Delivery) (string, error) {
			return "", policy.Failure{Category: policy.CategoryRejected, Err: errors.New("no " + d.Recipient)}
		})
		require.Equal(t, 1, p.ProcessOnce(t.Context()).Discarded)
		mine := outbox.Filter{TenantID: "t", IdempotencyKey: "x " + address}
		operate := func() []error {
			why, err1 := outbox.Explain(w.db, id)
			w.hides(t, why)
			record, err2 := outbox.Get(w.db, id, false)
			record.IdempotencyKey = nil // the app's own name for the fact
			w.hides(t, record)
			_, err3 := outbox.List(w.db, outbox.ListOptions{Filter: mine})
			_, err4 := outbox.Redrive(w.db, mine)
			err5 := w.db.Transaction(func(tx *gorm.DB) error {
				_, err := outbox.Cancel(tx, mine)
				return err
			})
			_, err6 := outbox.Purge(w.db, outbox.PurgeOptions{OlderThan: time.Hour, TenantID: "t"})
			_, err7 := outbox.Stats(w.db)
			return []error{err1, err2, err3, err4, err5, err6, err7}
		}
		require.NoError(t, errors.Join(operate()...))
		w.hides(t)

		mustExecQuietly(t, w.db, "ALTER TABLE outbox RENAME TO gone")
		for _, err := range operate() {
			require.Error(t, err)
			w.hides(t, err)
		}
		bad := mine
		bad.IdempotencyKey = address + "\x00"
		_, err := outbox.Redrive(w.db, bad)
		require.ErrorIs(t, err, outbox.ErrInvalid)
		w.hides(t, err)
	})
}
