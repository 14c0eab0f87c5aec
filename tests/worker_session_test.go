package tests

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/gorm-outbox/outbox/tests/internal/pgtest"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
)

func TestC27_NoTransactionIsOpenDuringADelivery(t *testing.T) {
	t.Parallel()
	const application = "worker under watch"
	r := newRig(t)
	r.enqueue(3, outbox.Message{})
	j := newJournal(t)
	stop := r.start(r.processor(r.open(setting("application_name", application), setting("idle_in_transaction_session_timeout", "1s")),
		outbox.ProcessorConfig{
			Transports:   map[string]outbox.Transport{orders: j.transport("worker", slow(3*time.Second))},
			PollInterval: 100 * time.Millisecond,
		}))
	r.await("the deliveries have begun", func() bool { return len(j.begun(t)) == 3 })
	pids := r.backends(application, "true")
	require.NotEmpty(t, pids)

	looks := 0
	for ; len(j.events(t)) < 6; looks++ {
		require.Empty(t, r.backends(application, "state LIKE 'idle in transaction%' OR state = 'idle' AND backend_xmin IS NOT NULL"))
		pass(10 * time.Millisecond)
	}

	require.Greater(t, looks, 50, "looked all along")
	r.await("sent", func() bool { return r.count("status = 'sent' AND attempts = 1") == 3 })
	require.Subset(t, r.backends(application, "true"), pids, "no backend was killed")
	stop()
	require.Len(t, j.events(t), 6)
}

// backends gives the process ids of an application's sessions that fulfil a condition.
func (r *rig) backends(application, where string) []int {
	r.Helper()
	var pids []int
	require.NoError(r, r.db.Raw(`SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = ?
		AND (`+where+`)`, application).Scan(&pids).Error)
	return pids
}

// A pooler that gives every transaction another backend: nothing may be left behind in a session, nor expected there.
func TestC28_NothingIsKeptInASession(t *testing.T) {
	t.Parallel()
	own, err := pgtest.Start(pgtest.Options{Settings: map[string]string{
		"logging_collector": "on", "log_min_duration_statement": "0", "log_statement": "all", "log_line_prefix": "%%|%a|%p|",
	}})
	require.NoError(t, err)
	t.Cleanup(own.Stop)
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		t.Run(mode.String(), func(t *testing.T) {
			r := newRigOn(t, own, outbox.Plugin{})
			application := "pooled, " + mode.String()
			db := r.open(setting("application_name", application), execMode(mode))
			pool, err := db.DB()
			require.NoError(t, err)
			pool.SetMaxIdleConns(0)
			pool.SetConnMaxLifetime(time.Millisecond)

			liveALife(r, db)

			backends := map[string]bool{}
			statements := r.logged(application)
			for _, s := range statements {
				backends[s.backend] = true
				requireFreeOfSession(t, s.text)
			}
			require.Greater(t, len(statements), 30)
			require.Greater(t, len(backends), 15, "each transaction had a backend of its own")
		})
	}
}

// liveALife has everything happen to messages that can, on one pool.
func liveALife(r *rig, db *gorm.DB) {
	r.Helper()
	require.NoError(r, outbox.Migrate(db))
	enqueue := func(ms ...outbox.Message) {
		require.NoError(r, db.Transaction(func(tx *gorm.DB) error {
			_, err := outbox.EnqueueAll(tx, ms)
			return err
		}))
	}
	once := outbox.Message{Topic: orders, Type: "good", IdempotencyKey: "once", Payload: map[string]int{"n": 1}}
	enqueue(once)
	enqueue(once)
	enqueue(
		outbox.Message{Topic: orders, Type: "bad", Headers: map[string]string{"a": "b"}},
		outbox.Message{Topic: orders, Type: "bad", MaxAttempts: 1},
		outbox.Message{Topic: orders, Type: "hopeless"},
		outbox.Message{Topic: orders, Type: "good", Delay: time.Hour},
	)
	ctx, cancel := context.WithCancel(context.Background())
	config := outbox.ProcessorConfig{
		PollInterval: 20 * time.Millisecond,
		Transports: only(func(_ context.Context, d outbox.Delivery) (string, error) {
			switch d.Type {
			case "good":
				return "id", nil
			case "hopeless":
				return "", policy.Failure{Category: policy.CategoryRejected}
			case "last":
				cancel()
			}
			return "", errors.New("down")
		}),
	}
	require.Equal(r, outbox.Summary{Claimed: 4, Sent: 1, Retried: 1, Failed: 1, Discarded: 1}, r.processor(db, config).ProcessOnce(ctx))

	enqueue(outbox.Message{Topic: orders, Type: "last"}, outbox.Message{Topic: orders, Type: "released"})
	config.Concurrency = 1
	require.Equal(r, outbox.Summary{Claimed: 2, Retried: 1, Released: 1}, counts(r.processor(db, config).ProcessOnce(ctx)))

	r.makeDue()
	stop := r.start(r.processor(db, config))
	r.await("Run delivers what is left", func() bool { return r.count("status = 'sent'") == 2 && r.count("attempts = 2") == 2 })
	stop()
	manage(r, db)
}

// manage does what operators and consumers do.
func manage(r *rig, db *gorm.DB) {
	r.Helper()
	n, err := outbox.Redrive(db, outbox.Filter{Statuses: []outbox.Status{outbox.StatusFailed}})
	require.NoError(r, err)
	require.EqualValues(r, 1, n)
	_, err = outbox.Stats(db)
	require.NoError(r, err)
	_, err = outbox.List(db, outbox.ListOptions{Filter: outbox.Filter{All: true}})
	require.NoError(r, err)
	for range 2 {
		require.NoError(r, db.Transaction(func(tx *gorm.DB) error {
			_, err := outbox.ConsumeOnce(tx, "credits", "m1", func(tx *gorm.DB) error { return nil })
			return err
		}))
	}
	require.NoError(r, db.Transaction(func(tx *gorm.DB) error {
		_, err := outbox.Cancel(tx, outbox.Filter{Topic: orders})
		return err
	}))
	n, err = outbox.Purge(db, outbox.PurgeOptions{OlderThan: time.Microsecond})
	require.NoError(r, err)
	require.Positive(r, n)
	_, err = outbox.PurgeConsumed(db, time.Microsecond)
	require.NoError(r, err)
}

// loggedStatement is one line of the server's log.
type loggedStatement struct{ backend, text string }

// logged gives what the server has logged of an application's statements: as they were executed and, with how long it
// took, as they were parsed, bound and executed.
func (r *rig) logged(application string) (statements []loggedStatement) {
	r.Helper()
	var log string
	require.NoError(r, r.db.Raw("SELECT pg_read_file(pg_current_logfile())").Scan(&log).Error)
	for _, entry := range strings.Split(log, "%|")[1:] {
		fields := strings.SplitN(entry, "|", 3)
		if fields[0] == application {
			statements = append(statements, loggedStatement{fields[1], fields[2]})
		}
	}
	return statements
}

var (
	namedStatement = regexp.MustCompile(`(?i)^LOG:\s+(duration: [0-9.]+ ms\s+)?(parse|bind|execute) [^<\s]`)
	loggedText     = regexp.MustCompile(`(?is)^LOG:\s+(?:duration: [0-9.]+ ms\s+)?(?:statement|parse <unnamed>|bind <unnamed>|execute <unnamed>): (.*)`)
	sessionState   = regexp.MustCompile(`(?i)^\s*(listen|unlisten|prepare|execute|deallocate|discard|declare|create\s+(local\s+|global\s+)?temp|set\s+session|load)\b` +
		`|\bpg_(try_)?advisory_(lock|unlock)|\bset_config\s*\(`)
	set      = regexp.MustCompile(`(?i)^\s*set\s`)
	setLocal = regexp.MustCompile(`(?i)^\s*set\s+(local|transaction|constraints)\s`)
)

func requireFreeOfSession(t *testing.T, line string) {
	t.Helper()
	require.NotRegexp(t, namedStatement, line)
	found := loggedText.FindStringSubmatch(line)
	if found == nil {
		return
	}
	require.NotRegexp(t, sessionState, found[1])
	if set.MatchString(found[1]) {
		require.Regexp(t, setLocal, found[1])
	}
}
