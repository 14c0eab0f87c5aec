package tests

import (
	"context"
	"database/sql"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/tests/internal/chaos"
	"github.com/stretchr/testify/require"
)

// sink is where deliveries are noted: a database on a server that no fault reaches, so that a delivery stays known
// whatever becomes of its worker.
type sink struct{ *sql.DB }

// sinkSchema has the rows of a delivery's begin and of its end apart: a row says what was known at its time.
const sinkSchema = `
CREATE TABLE begun (id text PRIMARY KEY, worker text, record bigint, fact text, topic text, attempt int, behaviour text,
	at timestamptz DEFAULT clock_timestamp());
CREATE TABLE ended (id text PRIMARY KEY, outcome text, at timestamptz DEFAULT clock_timestamp());
CREATE TABLE stalls (worker text, since timestamptz, until timestamptz)`

func openSink(dsn string) (*sink, error) {
	db, err := sql.Open("pgx", dsn)
	if err == nil {
		db.SetMaxOpenConns(12)
		db.SetMaxIdleConns(12)
	}
	return &sink{db}, err
}

func (s *sink) begin(ctx context.Context, id, worker string, d outbox.Delivery, fact string, b chaos.Behaviour) error {
	_, err := s.ExecContext(ctx, `INSERT INTO begun VALUES ($1, $2, $3, $4, $5, $6, $7)`, id, worker, d.ID, fact, d.Topic, d.Attempt, string(b))
	return err
}

// end is noted also when the transport's context has ended. Without its row the run fails, so the error says no more.
func (s *sink) end(id string, o chaos.Outcome) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, _ = s.ExecContext(ctx, `INSERT INTO ended VALUES ($1, $2)`, id, string(o))
}

// stall is noted by the database's clock: the worker's may be wrong.
func (s *sink) stall(worker string, lasted time.Duration) {
	_, _ = s.Exec(`INSERT INTO stalls VALUES ($1, clock_timestamp() - $2::bigint * interval '1 microsecond', clock_timestamp())`,
		worker, lasted.Microseconds())
}

// clockOff is how far this process's clock is from the database's.
func (s *sink) clockOff() (time.Duration, error) {
	var now time.Time
	err := s.QueryRow(`SELECT clock_timestamp()`).Scan(&now)
	return time.Now().Round(0).Sub(now), err
}

// open counts the deliveries of a worker that have not ended.
func (s *sink) open(worker string) (n int, err error) {
	err = s.QueryRow(`SELECT count(*) FROM begun WHERE worker = $1 AND id NOT IN (SELECT id FROM ended)`, worker).Scan(&n)
	return n, err
}

func (s *sink) deliveries(r *rig) (all []chaos.Delivery) {
	rows, err := s.Query(`
		SELECT b.id, b.worker, b.record, b.fact, b.topic, b.attempt, b.behaviour, b.at, coalesce(e.outcome, ''), coalesce(e.at, b.at)
		FROM begun b LEFT JOIN ended e ON e.id = b.id ORDER BY b.at`)
	require.NoError(r, err)
	defer rows.Close()
	for rows.Next() {
		var d chaos.Delivery
		require.NoError(r, rows.Scan(&d.ID, &d.Worker, &d.Record, &d.Fact, &d.Topic, &d.Attempt, &d.Behaviour, &d.Begun, &d.Outcome, &d.Ended))
		all = append(all, d)
	}
	require.NoError(r, rows.Err())
	return all
}

func (s *sink) stalls(r *rig) (all []chaos.Span) {
	rows, err := s.Query(`SELECT worker, since, until FROM stalls`)
	require.NoError(r, err)
	defer rows.Close()
	for rows.Next() {
		var span chaos.Span
		require.NoError(r, rows.Scan(&span.Worker, &span.From, &span.To))
		all = append(all, span)
	}
	require.NoError(r, rows.Err())
	return all
}
