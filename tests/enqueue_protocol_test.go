package tests

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/stretchr/testify/require"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
)

// protocols are the ways in which parameters can reach the server; poolers need those without prepared statements.
var protocols = map[string]func(dsn string) gorm.Dialector{
	"PreferSimpleProtocol": func(dsn string) gorm.Dialector {
		return postgres.New(postgres.Config{DSN: dsn, PreferSimpleProtocol: true})
	},
	"exec":           func(dsn string) gorm.Dialector { return postgres.Open(dsn + "&default_query_exec_mode=exec") },
	"cache_describe": func(dsn string) gorm.Dialector { return postgres.Open(dsn + "&default_query_exec_mode=cache_describe") },
	"describe_exec":  func(dsn string) gorm.Dialector { return postgres.Open(dsn + "&default_query_exec_mode=describe_exec") },
	"cache_statement": func(dsn string) gorm.Dialector {
		return postgres.Open(dsn + "&default_query_exec_mode=cache_statement")
	},
}

func eachProtocol(t *testing.T, test func(t *testing.T, db *gorm.DB)) {
	for name, dialector := range protocols {
		t.Run(name, func(t *testing.T) {
			test(t, openGorm(t, dialector(cluster.CreateDatabase(t)), gorm.Config{}))
		})
	}
}

// outcomes answers a message by its type.
var outcomes = outbox.TransportFunc(func(_ context.Context, d outbox.Delivery) (string, error) {
	switch d.Type {
	case "retried", "failed":
		return "", errors.New("try again")
	case "discarded":
		return "", policy.Failure{Category: policy.CategoryRejected, Code: "'no'?"}
	}
	return "ext-'1'?", nil
})

func TestC20_EveryProtocolCarriesAWholeLife(t *testing.T) {
	eachProtocol(t, func(t *testing.T, db *gorm.DB) {
		require.NoError(t, db.Use(outbox.Plugin{}))
		payload := map[string]any{"text": "'quotes' ? $1 \\ é", "n": 1.5, "nested": []any{nil, true}}
		full := outbox.Message{
			Topic: "email", Type: "sent", Recipient: "ana'@example.test", TenantID: "t:1", IdempotencyKey: "k'1", Payload: payload,
			Headers: map[string]string{"a": "'"}, ScheduledFor: time.Now().Add(-time.Hour),
		}
		last := mail("failed")
		last.MaxAttempts = 1
		later := mail("later")
		later.Delay = time.Hour
		rs := enqueue(t, db, full, mail("retried"), mail("discarded"), last, later)
		require.Equal(t, rs[0].ID, enqueue(t, db, full)[0].ID)

		require.Equal(t, outbox.Summary{Claimed: 4, Sent: 1, Retried: 1, Failed: 1, Discarded: 1}, drain(t, db, outcomes))
		found := records(t, db)
		requireSameJSON(t, payload, []byte(found[0].Payload))
		require.Equal(t, map[string]any{"a": "'"}, map[string]any(found[0].Headers))
		require.Equal(t, "ext-'1'?", *found[0].ExternalID)
		require.Equal(t, full.ScheduledFor.UTC().Truncate(time.Microsecond), found[0].DueAt.UTC())
		require.Equal(t, "'no'?", *found[2].LastErrorCode)
		require.Equal(t, outbox.StatusFailed, found[3].Status)
		require.WithinDuration(t, found[4].CreatedAt.Add(time.Hour), found[4].DueAt, time.Millisecond)

		mustExec(t, db, "UPDATE outbox SET due_at = now()")
		box := &mailbox{}
		require.Equal(t, 2, drain(t, db, box).Sent)
		require.Equal(t, []string{"retried", "later"}, box.types())
		require.NoError(t, outbox.Migrate(db))

		second := outbox.Plugin{Table: "second"}
		require.NoError(t, db.Use(second))
		wholeLife(t, db, second)
		afterLife(t, db, second)
	})
}

// TestC20_EveryProtocolCarriesALongRun has Run claim from where it had got to, with an instant for a parameter.
func TestC20_EveryProtocolCarriesALongRun(t *testing.T) {
	eachProtocol(t, func(t *testing.T, db *gorm.DB) {
		require.NoError(t, db.Use(outbox.Plugin{}))
		const messages = 50
		for range messages {
			enqueue(t, db, mail("x"))
		}
		ctx, stop := context.WithTimeout(t.Context(), patience)
		defer stop()
		var sent atomic.Int64
		transport := outbox.TransportFunc(func(context.Context, outbox.Delivery) (string, error) {
			if sent.Add(1) == messages {
				stop()
			}
			return "", nil
		})
		p, err := outbox.NewProcessor(db, outbox.ProcessorConfig{
			Transports: andIdle(transport), BatchSize: 2, Concurrency: 2,
		})
		require.NoError(t, err)
		require.NoError(t, p.Run(ctx))
		require.EqualValues(t, messages, sent.Load())
		require.EqualValues(t, messages, scalar[int](t, db, "SELECT count(*) FROM outbox WHERE status = 'sent' AND attempts = 1"))
	})
}

func TestC20_EveryProtocolCarriesEveryTenantType(t *testing.T) {
	tenants := map[string]string{"uuid": "F47AC10B-58CC-4372-8567-0E02B2C3D479", "bigint": "-0042", "text": "ana's ?"}
	stored := map[string]string{"uuid": strings.ToLower(tenants["uuid"]), "bigint": "-42", "text": "ana's ?"}
	eachProtocol(t, func(t *testing.T, db *gorm.DB) {
		for kind, tenant := range tenants {
			p := outbox.Plugin{Table: "outbox_" + kind, Tenant: outbox.TenantColumn{Name: "club", Type: kind}}
			require.NoError(t, db.Use(p))
			for _, isNew := range []bool{true, false} {
				require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
					r, err := p.Enqueue(tx, keyed("x", tenant, "k"))
					require.Equal(t, isNew, r.New)
					return err
				}))
			}
			box := &mailbox{}
			processor, err := p.NewProcessor(db, outbox.ProcessorConfig{Transports: map[string]outbox.Transport{"email": box}})
			require.NoError(t, err)
			require.Equal(t, outbox.Summary{Claimed: 1, Sent: 1}, processor.ProcessOnce(t.Context()))
			require.Equal(t, stored[kind], box.deliveries()[0].TenantID)
		}
	})
}

func TestC21_TwentyThousandInOneCall(t *testing.T) {
	eachEngine(t, gorm.Config{}, func(t *testing.T, db *gorm.DB) {
		many := 20_000
		if db.Dialector.Name() == "sqlite" {
			many = 3_000 // the race detector slows an engine written in Go thirtyfold
		}
		messages := make([]outbox.Message, many)
		for i := range messages {
			messages[i] = outbox.Message{Topic: "email", Type: fmt.Sprint(i), Payload: map[string]int{"n": i}}
			if i%2 == 0 {
				messages[i].IdempotencyKey = fmt.Sprint("key-", i)
			}
		}
		messages[many-1].Recipient = "\x00"
		require.ErrorIs(t, db.Transaction(func(tx *gorm.DB) error {
			_, err := outbox.EnqueueAll(tx, messages)
			require.ErrorContains(t, err, fmt.Sprintf("message %d of %d", many, many))
			require.Zero(t, count(t, tx, "outbox"), "nothing, not even those before the bad one")
			return err
		}), outbox.ErrInvalid)

		messages[many-1].Recipient = ""
		receipts := enqueue(t, db, messages...)
		require.Len(t, receipts, many)
		found := records(t, db)
		require.Len(t, found, many)
		for i, r := range receipts {
			require.Equal(t, outbox.Receipt{ID: found[i].ID, MessageID: found[i].MessageID, New: true}, r)
			require.Equal(t, fmt.Sprint(i), found[i].Type, "in the order of the call")
		}
		again := enqueue(t, db, messages...)
		require.EqualValues(t, many+many/2, count(t, db, "outbox"))
		for i, r := range again {
			require.Equal(t, i%2 != 0, r.New)
			if i%2 == 0 {
				require.Equal(t, receipts[i].ID, r.ID)
			}
		}
	})
}

func TestC21_LargePayloadsInOneCall(t *testing.T) {
	eachEngine(t, gorm.Config{}, func(t *testing.T, db *gorm.DB) {
		large := strings.Repeat("é", 100_000)
		messages := make([]outbox.Message, 60) // 12 MB
		for i := range messages {
			messages[i] = outbox.Message{Topic: "email", Payload: large}
		}
		enqueue(t, db, messages...)
		length := map[string]string{"postgres": "length(payload #>> '{}')", "sqlite": "length(payload ->> '$')"}[db.Dialector.Name()]
		require.EqualValues(t, 60*100_000, scalar[int](t, db, "SELECT sum("+length+") FROM outbox"))
	})
}

func TestC21_RedriveAndPurgeOfAHundredThousand(t *testing.T) {
	const many = 100_000
	db := newPostgres(t, gorm.Config{})
	mustExec(t, db, `INSERT INTO outbox (tenant_id, topic, type, recipient, payload, message_id, status, attempts, max_attempts,
			due_at, created_at, updated_at, dead_at)
		SELECT '', 'email', 'x', '', '{}', gen_random_uuid(), 'failed', 8, 8, now(), now(), now(), now() FROM generate_series(1, ?)`, many)
	ids := make([]int64, many)
	for i := range ids {
		ids[i] = int64(i + 1)
	}
	revived, err := outbox.Redrive(db, outbox.Filter{IDs: ids})
	require.NoError(t, err)
	require.EqualValues(t, many, revived)
	require.Equal(t, many, scalar[int](t, db, "SELECT count(*) FROM outbox WHERE status = 'pending' AND attempts = 0 AND dead_at IS NULL"))

	mustExec(t, db, "UPDATE outbox SET status = 'sent', sent_at = now()")
	purged, err := outbox.Purge(db, outbox.PurgeOptions{Before: time.Now().Add(time.Hour)})
	require.NoError(t, err)
	require.EqualValues(t, many, purged)
}

func TestC21_NoMessagesAreNoSQL(t *testing.T) {
	db, log := openTraced(t, cluster.CreateDatabase(t), gorm.Config{}, nil)
	require.NoError(t, db.Use(outbox.Plugin{}))
	tx := begin(t, db)
	log.take()
	for _, none := range [][]outbox.Message{nil, {}} {
		receipts, err := outbox.EnqueueAll(tx, none)
		require.NoError(t, err)
		require.Empty(t, receipts)
	}
	require.Empty(t, log.take())
	_, err := outbox.EnqueueAll(db, nil)
	require.ErrorIs(t, err, outbox.ErrNoTransaction)
}

// TestMessageIDsAreOfTheirOwn: UUIDs of version 7, no two alike, the same in the table and at the transport.
func TestMessageIDsAreOfTheirOwn(t *testing.T) {
	eachEngine(t, gorm.Config{}, func(t *testing.T, db *gorm.DB) {
		seen := map[string]bool{}
		receipts := enqueue(t, db, make50()...)
		for i, r := range records(t, db) {
			require.Equal(t, receipts[i].MessageID, r.MessageID)
			require.Regexp(t, `^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`, r.MessageID)
			require.False(t, seen[r.MessageID])
			seen[r.MessageID] = true
		}
		box := &mailbox{}
		drain(t, db, box)
		for i, d := range box.deliveries() {
			require.Equal(t, receipts[i].MessageID, d.MessageID)
		}
	})
}

func make50() []outbox.Message {
	messages := make([]outbox.Message, 50)
	for i := range messages {
		messages[i] = mail("x")
	}
	return messages
}

// TestFewStatements: a message costs one statement, a repeat two, however many there are in a call.
func TestFewStatements(t *testing.T) {
	db, log := openTraced(t, cluster.CreateDatabase(t), gorm.Config{}, nil)
	require.NoError(t, db.Use(outbox.Plugin{}))
	tx := begin(t, db)
	for range 3 { // until the driver has prepared them
		_, err := outbox.Enqueue(tx, keyed("x", "", "k"))
		require.NoError(t, err)
	}
	for want, messages := range map[int][]outbox.Message{
		1: {mail("one")}, 2: {keyed("repeat", "", "k")},
	} {
		log.take()
		_, err := outbox.EnqueueAll(tx, messages)
		require.NoError(t, err)
		require.Len(t, log.take(), want)
	}
	log.take()
	_, err := outbox.EnqueueAll(tx, append(make50(), keyed("repeat", "", "k"), keyed("new", "", "k2"), keyed("newer", "", "k3")))
	require.NoError(t, err)
	require.Len(t, log.take(), 2)
}
