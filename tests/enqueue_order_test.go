package tests

import (
	"bytes"
	"context"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/tests/internal/pgtest"
	"github.com/stretchr/testify/require"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
)

func TestC33_ALowerIDThatCommitsLaterIsDeliveredNextRound(t *testing.T) {
	db := newPostgres(t, gorm.Config{})
	t1 := begin(t, db)
	low, err := outbox.Enqueue(t1, mail("low"))
	require.NoError(t, err)
	high := enqueue(t, db, mail("high"))[0]
	require.Less(t, low.ID, high.ID)

	box := &mailbox{}
	require.Equal(t, outbox.Summary{Claimed: 1, Sent: 1}, drain(t, db, box))
	require.Equal(t, []string{"high"}, box.types())
	require.NoError(t, t1.Commit().Error)
	require.Equal(t, outbox.Summary{Claimed: 1, Sent: 1}, drain(t, db, box))
	require.Equal(t, []string{"low", "high"}, box.types())
}

// TestC33_ALateCommitBelowTheFloorIsDelivered: Run claims from where it has got to while there is a backlog.
func TestC33_ALateCommitBelowTheFloorIsDelivered(t *testing.T) {
	db := newPostgres(t, gorm.Config{})
	t1 := begin(t, db)
	_, err := outbox.Enqueue(t1, mail("low"))
	require.NoError(t, err)

	box, reached, low := &mailbox{}, make(chan struct{}), make(chan struct{})
	transport := outbox.TransportFunc(func(ctx context.Context, d outbox.Delivery) (string, error) {
		switch d.Type {
		case "low":
			close(low)
		case "reached":
			close(reached)
		default: // the backlog never ends
			if err := zoneEnqueue(db, mail("more")); err != nil {
				return "", err
			}
		}
		return box.Send(ctx, d)
	})
	for range 20 {
		enqueue(t, db, mail("more"))
	}
	enqueue(t, db, mail("reached"))
	p, err := outbox.NewProcessor(db, outbox.ProcessorConfig{
		Transports: map[string]outbox.Transport{"email": transport}, BatchSize: 4, Concurrency: 4,
	})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	await(t, reached)
	require.NoError(t, t1.Commit().Error)
	await(t, low)
	stop()
	require.NoError(t, <-ended)
}

// await waits for a channel to be closed.
func await(t *testing.T, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(patience):
		require.FailNow(t, "it did not happen")
	}
}

func TestC33_ARestoredDumpGoesOn(t *testing.T) {
	dsn := cluster.CreateDatabase(t)
	db := openGorm(t, postgres.Open(dsn), gorm.Config{})
	require.NoError(t, db.Use(outbox.Plugin{}))
	mustExec(t, db, "DO $$ BEGIN FOR i IN 1..100 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$")
	before := enqueue(t, db, keyed("sent before", "t", "k1"))[0]
	require.Equal(t, 1, drain(t, db, &mailbox{}).Sent)
	pending := enqueue(t, db, keyed("pending", "t", "k2"), mail("claimed"))
	later := mail("later")
	later.Delay = time.Hour
	last := enqueue(t, db, later)[0]
	mustExec(t, db, "UPDATE outbox SET status = 'processing', lease_token = 'dead worker', lease_owner = 'x', attempts = 1, "+
		"leased_until = now() - interval '1 s' WHERE id = ?", pending[1].ID)

	dump, err := exec.CommandContext(t.Context(), clientProgram(t, "pg_dump"), "--dbname", dsn).Output()
	require.NoError(t, err)
	restored := cluster.CreateDatabase(t)
	psql := exec.CommandContext(t.Context(), clientProgram(t, "psql"), "--dbname", restored, "--no-psqlrc", "--quiet",
		"--set", "ON_ERROR_STOP=1")
	psql.Stdin = bytes.NewReader(dump)
	said, err := psql.CombinedOutput()
	require.NoError(t, err, "%s", said)

	other := openGorm(t, postgres.Open(restored), gorm.Config{})
	require.NoError(t, other.Use(outbox.Plugin{}))
	require.Equal(t, describePostgres(t, db, "public", "outbox"), describePostgres(t, other, "public", "outbox"))
	box := &mailbox{}
	require.Equal(t, outbox.Summary{Claimed: 2, Sent: 2}, drain(t, other, box))
	require.Equal(t, []string{"pending", "claimed"}, box.types())
	require.Equal(t, pending[0].MessageID, box.deliveries()[0].MessageID)
	require.Equal(t, 2, box.deliveries()[1].Attempt)

	again := enqueue(t, other, keyed("again", "t", "k1"), mail("new"))
	require.Equal(t, before.ID, again[0].ID, "keys hold across a restore")
	require.Greater(t, again[1].ID, last.ID, "the sequence goes on")
}

// clientProgram finds a program of PostgreSQL's beside the server's, whose directory may hold links only to those.
func clientProgram(t *testing.T, name string) string {
	t.Helper()
	bin, err := pgtest.BinDir()
	require.NoError(t, err)
	server, err := filepath.EvalSymlinks(filepath.Join(bin, "postgres"))
	require.NoError(t, err)
	for _, dir := range []string{bin, filepath.Dir(server), ""} {
		if program, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return program
		}
	}
	require.FailNow(t, "PostgreSQL's client programs are missing: "+name)
	return ""
}
