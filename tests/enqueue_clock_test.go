package tests

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/jackc/pgx/v5"
	"github.com/libtnb/sqlite"
	"github.com/stretchr/testify/require"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

func init() { workers["zone"] = zoneWorker }

// wrongClocks are what the clocks of two machines may say.
var wrongClocks = map[string]time.Duration{"fast": 10 * time.Minute, "slow": -10 * time.Minute}

func wrongClock(by time.Duration) gorm.Config {
	return gorm.Config{NowFunc: func() time.Time { return time.Now().Add(by) }}
}

// beside opens a second pool, with settings of its own, on the database of the first.
func beside(t *testing.T, db *gorm.DB, cfg gorm.Config) *gorm.DB {
	t.Helper()
	other := openGorm(t, db.Dialector, cfg)
	require.NoError(t, other.Use(outbox.Plugin{SkipMigrate: true}))
	return other
}

func TestC22_AWrongClockNeitherDelaysNorHurries(t *testing.T) {
	for name, by := range wrongClocks {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // with its twin: they do nothing but wait
			eachEngine(t, gorm.Config{}, func(t *testing.T, right *gorm.DB) {
				wrong := beside(t, right, wrongClock(by))
				began := time.Now().Truncate(time.Millisecond)
				delayed := mail("in 2 s")
				delayed.Delay = 2 * time.Second
				enqueue(t, wrong, mail("now"), delayed)
				ended := time.Now()
				for _, r := range records(t, right) {
					require.WithinRange(t, r.CreatedAt, began, ended)
					require.Equal(t, r.CreatedAt, r.UpdatedAt)
				}
				box := &mailbox{}
				require.Equal(t, outbox.Summary{Claimed: 1, Sent: 1}, drain(t, right, box))
				require.Equal(t, []string{"now"}, box.types(), "delivered at once by a worker with a right clock")
				require.Zero(t, drain(t, wrong, box).Claimed)

				require.Eventually(t, func() bool { return drain(t, wrong, box).Sent == 1 }, patience, glance)
				require.WithinRange(t, time.Now(), began.Add(2*time.Second), ended.Add(3*time.Second))
				require.WithinDuration(t, time.Now(), *records(t, right)[1].SentAt, time.Second)
			})
		})
	}
}

func TestC22_AWrongClockNeitherTakesNorShortensALease(t *testing.T) {
	const lease = time.Minute
	eachEngine(t, gorm.Config{}, func(t *testing.T, db *gorm.DB) {
		fast, slow := beside(t, db, wrongClock(wrongClocks["fast"])), beside(t, db, wrongClock(wrongClocks["slow"]))
		for _, holder := range []*gorm.DB{fast, slow} {
			enqueue(t, db, mail("held"))
			held, letGo := make(chan struct{}), make(chan struct{})
			transport := outbox.TransportFunc(func(context.Context, outbox.Delivery) (string, error) {
				close(held)
				<-letGo
				return "", errors.New("try again")
			})
			p, err := outbox.NewProcessor(holder, outbox.ProcessorConfig{
				Transports: map[string]outbox.Transport{"email": transport}, Lease: lease, BatchSize: 1,
				Backoff: policy.Backoff{Base: 30 * time.Second, Jitter: 0.01},
			})
			require.NoError(t, err)
			round := make(chan outbox.Summary, 1)
			go func() { round <- p.ProcessOnce(context.Background()) }()
			<-held
			found := records(t, db)
			require.WithinDuration(t, time.Now().Add(lease), *found[len(found)-1].LeasedUntil, 2*time.Second)
			for _, other := range []*gorm.DB{db, fast, slow} {
				require.Zero(t, drain(t, other, &mailbox{}).Claimed, "a live lease was taken")
			}
			close(letGo)
			require.Equal(t, outbox.Summary{Claimed: 1, Retried: 1}, <-round)
			found = records(t, db)
			require.WithinDuration(t, time.Now().Add(30*time.Second), found[len(found)-1].DueAt, 2*time.Second)
		}
	})
}

// TestC22_TimesCountFromTheCall and not from when the caller's transaction began, which may be long ago.
func TestC22_TimesCountFromTheCall(t *testing.T) {
	db := newPostgres(t, gorm.Config{})
	tx := begin(t, db)
	require.NoError(t, tx.Exec("SELECT pg_sleep(0.3)").Error)
	began := time.Now()
	delayed := mail("delayed")
	delayed.Delay = time.Hour
	for _, m := range [][]outbox.Message{{mail("now")}, {delayed, delayed}} {
		_, err := outbox.EnqueueAll(tx, m)
		require.NoError(t, err)
	}
	require.NoError(t, tx.Commit().Error)
	for _, r := range records(t, db) {
		require.WithinRange(t, r.CreatedAt, began.Truncate(time.Microsecond), time.Now())
		require.WithinDuration(t, r.CreatedAt, r.UpdatedAt, 0)
		if r.Type == "delayed" {
			r.DueAt = r.DueAt.Add(-time.Hour)
		}
		require.WithinDuration(t, r.CreatedAt, r.DueAt, 0)
	}
}

// TestC22_NoStatementCarriesAClientsTime looks at every parameter of a whole life. Two instants may cross: the one the
// app schedules for, and the floor of a claim, which the database gave itself.
func TestC22_NoStatementCarriesAClientsTime(t *testing.T) {
	db, log := openTraced(t, cluster.CreateDatabase(t), wrongClock(wrongClocks["fast"]), nil)
	require.NoError(t, db.Use(outbox.Plugin{}))
	scheduled := mail("scheduled")
	scheduled.ScheduledFor = time.Date(2020, 2, 2, 2, 2, 2, 222222999, time.FixedZone("somewhere", 3600))
	delayed := keyed("delayed", "t", "k")
	delayed.Delay = time.Hour
	lastTry := mail("failed")
	lastTry.MaxAttempts = 1
	messages := []outbox.Message{scheduled, delayed, delayed, mail("retried"), mail("discarded"), lastTry}
	for range 20 {
		messages = append(messages, mail("sent"))
	}
	enqueue(t, db, messages...)
	enqueue(t, db, delayed)
	enqueue(t, db, scheduled)

	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	var attempts atomic.Int64
	p, err := outbox.NewProcessor(db, outbox.ProcessorConfig{
		Transports: andIdle(outcomes), BatchSize: 2, Concurrency: 1,
		OnAttempt: func(context.Context, outbox.Attempt) {
			if attempts.Add(1) == 25 {
				stop()
			}
		},
	})
	require.NoError(t, err)
	require.NoError(t, p.Run(ctx))
	require.EqualValues(t, 25, attempts.Load())

	statements, floors := log.take(), 0
	due := map[int64]bool{}
	for _, r := range records(t, db) {
		due[r.DueAt.UnixMicro()] = true
	}
	for _, s := range statements {
		require.NotRegexp(t, dateLike, s.SQL)
		for _, arg := range s.Args {
			if floor, ok := arg.(time.Time); ok && strings.Contains(s.SQL, "due_at >= ") {
				if floor.IsZero() { // a claim from the beginning
					continue
				}
				floors++
				require.True(t, due[floor.UnixMicro()], "the floor %v is no record's due time", floor)
				continue
			}
			if at, ok := arg.(time.Time); !ok || !at.Equal(scheduled.ScheduledFor.Truncate(time.Microsecond)) {
				requireNoTime(t, s, arg)
			}
		}
	}
	require.Positive(t, floors, "the run was to have claims with a floor")
}

var dateLike = regexp.MustCompile(`\d{4}-\d{2}-\d{2}`)

// requireNoTime refuses what looks like an instant, in a parameter or inside its JSON.
func requireNoTime(t *testing.T, s pgx.TraceQueryStartData, arg any) {
	t.Helper()
	const year2020 = 1_577_836_800 // in seconds; the longest duration here, an hour in microseconds, is twice as much
	switch v := arg.(type) {
	case time.Time, *time.Time:
		require.Fail(t, "a time for a parameter", "%v in %s", v, s.SQL)
	case int64:
		requireNoTime(t, s, float64(v))
	case float64: // as seconds, milliseconds or finer
		require.False(t, v > year2020 && v < 2*year2020 || v > 1000*year2020, "%v in %s", v, s.SQL)
	case []any:
		for _, inner := range v {
			requireNoTime(t, s, inner)
		}
	case map[string]any:
		for name, inner := range v {
			if name != "due_at" || inner != "2020-02-02T01:02:02.222222Z" {
				requireNoTime(t, s, inner)
			}
		}
	case string:
		v = strings.ReplaceAll(v, "2020-02-02T01:02:02.222222Z", "") // the instant that the app gave, also in an array
		var inner any
		if strings.HasPrefix(v, "[") && json.Unmarshal([]byte(v), &inner) == nil {
			requireNoTime(t, s, inner)
			return
		}
		require.NotRegexp(t, dateLike, v, s.SQL)
	}
}

// zoneWorker enqueues and drains in a time zone of its own. It first says how far that is from UTC.
func zoneWorker() error {
	dialector := postgres.Open(os.Getenv("OUTBOX_TEST_DSN"))
	if strings.HasPrefix(os.Getenv("OUTBOX_TEST_DSN"), "file:") {
		dialector = sqlite.Open(os.Getenv("OUTBOX_TEST_DSN"))
	}
	db, err := gorm.Open(dialector, &gorm.Config{Logger: logger.Discard})
	if err == nil {
		err = db.Use(outbox.Plugin{SkipMigrate: true})
	}
	if err != nil {
		return err
	}
	_, offset := time.Now().Zone()
	fmt.Println(time.Duration(offset) * time.Second)
	return listen(func(line string) string {
		switch line {
		case "drain":
			box := &mailbox{}
			return zoneDrain(db, box, box)
		case "die":
			return zoneDrain(db, nil, outbox.TransportFunc(func(context.Context, outbox.Delivery) (string, error) {
				fmt.Println("inside")
				os.Exit(0)
				return "", nil
			}))
		case "delayed":
			return oneLine(zoneEnqueue(db, outbox.Message{Topic: "email", Type: line, Delay: 2 * time.Second}))
		case "scheduled":
			return oneLine(zoneEnqueue(db, outbox.Message{Topic: "email", Type: line, ScheduledFor: time.Now().Add(2 * time.Second)}))
		default:
			return oneLine(zoneEnqueue(db, mail(line)))
		}
	})
}

func zoneEnqueue(db *gorm.DB, m outbox.Message) error {
	return db.Transaction(func(tx *gorm.DB) error {
		_, err := outbox.Enqueue(tx, m)
		return err
	})
}

// zoneDrain runs a round and tells what came, and when that was enqueued.
func zoneDrain(db *gorm.DB, box *mailbox, transport outbox.Transport) string {
	p, err := outbox.NewProcessor(db, outbox.ProcessorConfig{
		Transports: map[string]outbox.Transport{"email": transport}, Lease: 5 * time.Second,
	})
	if err != nil {
		return oneLine(err)
	}
	if summary := p.ProcessOnce(context.Background()); summary.Errors > 0 {
		return "error: " + summary.LastError
	}
	var told []string
	for _, d := range box.deliveries() {
		told = append(told, fmt.Sprintf("%s %d", d.Type, d.EnqueuedAt.UnixMicro()))
	}
	return strings.Join(told, ", ")
}

func TestC23_TimeZonesDoNotMatter(t *testing.T) {
	t.Run("postgres", func(t *testing.T) {
		t.Parallel() // with its twin: they do nothing but wait
		db := newPostgres(t, gorm.Config{})
		mustExec(t, db, "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET timezone = ''America/New_York''', current_database()); END $$")
		dsn := cluster.DSN(scalar[string](t, db, "SELECT current_database()"))
		fresh := openGorm(t, postgres.Open(dsn), gorm.Config{})
		require.Equal(t, "America/New_York", scalar[string](t, fresh, "SHOW timezone"))
		zones(t, fresh, dsn)
	})
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		dsn := sqliteDSN(filepath.Join(t.TempDir(), "app.db"))
		db := openGorm(t, sqlite.Open(dsn), gorm.Config{})
		require.NoError(t, db.Use(outbox.Plugin{}))
		zones(t, db, dsn)
	})
}

func zones(t *testing.T, db *gorm.DB, dsn string) {
	west := startChild(t, "zone", "TZ=America/Argentina/Buenos_Aires", "OUTBOX_TEST_DSN="+dsn)
	require.Equal(t, "-3h0m0s", west.hear(t))
	east := startChild(t, "zone", "TZ=Asia/Tokyo", "OUTBOX_TEST_DSN="+dsn)
	require.Equal(t, "9h0m0s", east.hear(t))

	told := func() string { // what the record says must be what the worker in the east is told, to the microsecond
		found := records(t, db)
		last := found[len(found)-1]
		return fmt.Sprintf("%s %d", last.Type, last.CreatedAt.UnixMicro())
	}
	require.Equal(t, "ok", west.ask(t, "plain"))
	require.Equal(t, told(), east.ask(t, "drain"), "delivered at once")

	for _, kind := range []string{"delayed", "scheduled"} {
		began := time.Now().Truncate(time.Millisecond)
		require.Equal(t, "ok", west.ask(t, kind))
		require.Eventually(t, func() bool { return east.ask(t, "drain") == told() }, patience, glance)
		require.WithinRange(t, time.Now(), began.Add(2*time.Second), began.Add(4*time.Second))
	}

	require.Equal(t, "ok", west.ask(t, "leased"))
	began := time.Now().Truncate(time.Millisecond)
	require.Equal(t, "inside", east.ask(t, "die"))
	claimed := time.Now()
	require.Eventually(t, func() bool { return west.ask(t, "drain") == told() }, patience, glance)
	require.WithinRange(t, time.Now(), began.Add(5*time.Second), claimed.Add(7*time.Second))
}

func TestC23_EveryTimeColumnHasATimeZone(t *testing.T) {
	db := newPostgres(t, gorm.Config{})
	var types []string
	require.NoError(t, db.Raw(`SELECT DISTINCT data_type FROM information_schema.columns
		WHERE table_name LIKE 'outbox%' AND (data_type LIKE '%time%' OR data_type LIKE '%date%')`).Scan(&types).Error)
	require.Equal(t, []string{"timestamp with time zone"}, types)
}
