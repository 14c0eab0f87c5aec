package tests

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/gorm-outbox/outbox"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
)

var strictLevels = []sql.IsolationLevel{sql.LevelRepeatableRead, sql.LevelSerializable}

func eachStrictLevel(t *testing.T, test func(t *testing.T, db *gorm.DB, level *sql.TxOptions)) {
	for _, level := range strictLevels {
		for _, translate := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, TranslateError=%t", level, translate), func(t *testing.T) {
				test(t, newPostgres(t, gorm.Config{TranslateError: translate}), &sql.TxOptions{Isolation: level})
			})
		}
	}
}

func TestIsolation_EnqueueAndRepeatsOfEarlierTransactions(t *testing.T) {
	eachStrictLevel(t, func(t *testing.T, db *gorm.DB, level *sql.TxOptions) {
		first := enqueue(t, db, keyed("first", "t", "k1"))[0]
		require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
			again, err := outbox.EnqueueAll(tx, []outbox.Message{keyed("again", "t", "k1"), keyed("new", "t", "k2")})
			require.NoError(t, err)
			require.Equal(t, outbox.Receipt{ID: first.ID, MessageID: first.MessageID}, again[0])
			require.True(t, again[1].New)
			own, err := outbox.Enqueue(tx, keyed("own", "t", "k2")) // a repeat of this very transaction's
			require.NoError(t, err)
			require.Equal(t, outbox.Receipt{ID: again[1].ID, MessageID: again[1].MessageID}, own)
			return nil
		}, level))
		require.Equal(t, []string{"first", "new"}, typesOf(records(t, db)))
	})
}

func TestIsolation_ARaceIsTheDatabasesSerializationFailure(t *testing.T) {
	races := map[string]func(t *testing.T, db, mine *gorm.DB) error{
		"the other one committed after my snapshot": func(t *testing.T, db, mine *gorm.DB) error {
			enqueue(t, db, keyed("theirs", "t", "k"))
			_, err := outbox.Enqueue(mine, keyed("mine", "t", "k"))
			return err
		},
		"the other one commits while I wait": func(t *testing.T, db, mine *gorm.DB) error {
			theirs := begin(t, db)
			_, err := outbox.Enqueue(theirs, keyed("theirs", "t", "k"))
			require.NoError(t, err)
			result := make(chan error, 1)
			go func() {
				_, err := outbox.Enqueue(mine, keyed("mine", "t", "k"))
				result <- err
			}()
			waitsForLock(t, db)
			require.NoError(t, theirs.Commit().Error)
			return <-result
		},
	}
	for name, race := range races {
		t.Run(name, func(t *testing.T) {
			eachStrictLevel(t, func(t *testing.T, db *gorm.DB, level *sql.TxOptions) {
				mine := begin(t, db, level)
				require.EqualValues(t, 0, count(t, mine, "outbox")) // takes the snapshot
				err := race(t, db, mine)
				var refused *pgconn.PgError
				require.ErrorAs(t, err, &refused)
				require.Equal(t, "40001", refused.Code)
				require.NotErrorIs(t, err, outbox.ErrInvalid)
				require.NotErrorIs(t, err, outbox.ErrNoTransaction)
				require.NoError(t, mine.Rollback().Error)
				require.Equal(t, []string{"theirs"}, typesOf(records(t, db)))
			})
		})
	}
}

// TestEnqueueInATransactionWhoseContextEnded: it fails, whatever the error, and nothing is left behind.
func TestEnqueueInATransactionWhoseContextEnded(t *testing.T) {
	eachEngine(t, gorm.Config{}, func(t *testing.T, db *gorm.DB) {
		ctx, cancel := context.WithCancel(t.Context())
		tx := begin(t, db.WithContext(ctx))
		_, err := outbox.Enqueue(tx, mail("before"))
		require.NoError(t, err)
		cancel()
		_, err = outbox.Enqueue(tx, mail("after"))
		require.Error(t, err)
		require.NotErrorIs(t, err, outbox.ErrInvalid)
		require.Error(t, tx.Commit().Error)
		require.Zero(t, count(t, db, "outbox"))
	})
}

// TestEnqueueInAnAbortedTransaction shows the database's own refusal.
func TestEnqueueInAnAbortedTransaction(t *testing.T) {
	db := newPostgres(t, gorm.Config{})
	tx := begin(t, db)
	require.Error(t, tx.Exec("SELECT 1/0").Error)
	_, err := outbox.Enqueue(tx, mail("late"))
	var refused *pgconn.PgError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, "25P02", refused.Code)
}

// TestPlans_EnqueueNeverReadsTheWholeTable looks at the plans that a prepared statement keeps, and at those made for
// one execution, with statistics and without.
func TestPlans_EnqueueNeverReadsTheWholeTable(t *testing.T) {
	tenants := map[string]string{
		"text": "'t' || i % 50", "bigint": "i % 50", "uuid": "md5((i % 50)::text)::uuid",
	}
	examples := map[string]string{"text": "t1", "bigint": "1", "uuid": "c4ca4238-a0b9-2382-0dcc-509a6f75849b"}
	for kind, tenant := range tenants {
		t.Run(kind, func(t *testing.T) {
			db, log := openTraced(t, cluster.CreateDatabase(t), gorm.Config{}, nil)
			require.NoError(t, db.Use(outbox.Plugin{Tenant: outbox.TenantColumn{Type: kind}}))
			log.take()
			enqueue(t, db, keyed("x", examples[kind], "k"))
			enqueue(t, db, keyed("x", examples[kind], "k"), keyed("x", examples[kind], "k2"))
			statements := log.take()

			mustExec(t, db, "ALTER TABLE outbox SET (autovacuum_enabled = false)")
			mustExec(t, db, `INSERT INTO outbox (tenant_id, topic, type, recipient, payload, message_id, idempotency_key, status, attempts,
					max_attempts, due_at, created_at, updated_at, sent_at)
				SELECT `+tenant+`, 'email', 'x', 'r', '{}', gen_random_uuid(), CASE WHEN i % 2 = 0 THEN 'key-' || i END, 'sent', 1,
					8, now(), now(), now(), now() FROM generate_series(1, 200000) AS i`)
			for _, statistics := range []string{"SELECT 1", "ANALYZE outbox"} {
				mustExec(t, db, statistics)
				for _, mode := range []string{"force_generic_plan", "force_custom_plan"} {
					requireIndexed(t, db, mode, statements)
				}
			}
		})
	}
}

// requireIndexed looks at what Enqueue runs on the table: an insert may read nothing of it, and a lookup only by the key.
func requireIndexed(t *testing.T, db *gorm.DB, mode string, statements []pgx.TraceQueryStartData) {
	t.Helper()
	lookups := 0
	for _, s := range statements {
		if !strings.Contains(s.SQL, `"outbox"`) {
			continue // begin, commit
		}
		found := nodes(t, db, mode, s)
		require.NotContains(t, found, "Seq Scan on outbox", "%s: %s", mode, s.SQL)
		if !strings.Contains(s.SQL, "INSERT") {
			lookups++
			require.Contains(t, found, "outbox_key by tenant_id, idempotency_key", "%s: %s", mode, s.SQL)
		}
	}
	require.Positive(t, lookups)
}

// nodes lists the scans of a statement's plan as "kind on relation", and the indexes that they use with the columns by
// which they do.
func nodes(t *testing.T, db *gorm.DB, mode string, s pgx.TraceQueryStartData) (found []string) {
	t.Helper()
	var quoted []string
	for _, arg := range s.Args {
		switch arg.(type) {
		case pgx.QueryResultFormatsByOID: // database/sql's word to the driver
		case nil:
			quoted = append(quoted, "NULL")
		default:
			quoted = append(quoted, "'"+strings.ReplaceAll(fmt.Sprint(arg), "'", "''")+"'")
		}
	}
	pool, err := db.DB()
	require.NoError(t, err)
	conn, err := pool.Conn(t.Context()) // the setting and the prepared statement are a session's
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close()) }()
	for _, setUp := range []string{"SET plan_cache_mode = " + mode, "PREPARE q AS " + s.SQL} {
		_, err = conn.ExecContext(t.Context(), setUp)
		require.NoError(t, err)
	}
	var plan string
	explain := "EXPLAIN (FORMAT JSON) EXECUTE q(" + strings.Join(quoted, ", ") + ")"
	require.NoError(t, conn.QueryRowContext(t.Context(), explain).Scan(&plan), s.SQL)
	_, err = conn.ExecContext(t.Context(), "DEALLOCATE q")
	require.NoError(t, err)
	var tree any
	require.NoError(t, json.Unmarshal([]byte(plan), &tree))
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, inner := range v {
				walk(inner)
			}
		case map[string]any:
			if relation, ok := v["Relation Name"]; ok {
				found = append(found, fmt.Sprintf("%s on %s", v["Node Type"], relation))
			}
			if index, ok := v["Index Name"].(string); ok {
				var columns []string
				for _, column := range []string{"tenant_id", "idempotency_key"} {
					if strings.Contains(fmt.Sprint(v["Index Cond"]), column) {
						columns = append(columns, column)
					}
				}
				found = append(found, index+" by "+strings.Join(columns, ", "))
			}
			for _, inner := range v {
				walk(inner)
			}
		}
	}
	walk(tree)
	return found
}
