package proxy_test

import (
	"bytes"
	"context"
	"net/url"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox/tests/internal/pgtest"
	"github.com/gorm-outbox/outbox/tests/internal/proxy"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// TestLostAnswerToCommit holds the promise of the package comment against a real server and client.
func TestLostAnswerToCommit(t *testing.T) {
	cluster, err := pgtest.Start(pgtest.Options{})
	require.NoError(t, err)
	t.Cleanup(cluster.Stop)
	direct, err := url.Parse(cluster.CreateDatabase(t))
	require.NoError(t, err)
	p := start(t, direct.Host)
	viaProxy := *direct
	viaProxy.Host = p.Addr()

	conn := connect(t, viaProxy.String())
	_, err = conn.Exec(t.Context(), "CREATE TABLE orders (id int)")
	require.NoError(t, err)
	tx, err := conn.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "INSERT INTO orders VALUES (7)")
	require.NoError(t, err)

	swallowOnCommit(p)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, tx.Commit(ctx), context.DeadlineExceeded)

	witness := connect(t, direct.String())
	require.Eventually(t, func() bool {
		var orders int
		err := witness.QueryRow(t.Context(), "SELECT count(*) FROM orders").Scan(&orders)
		return err == nil && orders == 1
	}, patience, 20*time.Millisecond, "the server committed what the client was told had failed")
}

func swallowOnCommit(p *proxy.Proxy) {
	p.OnClient(func(chunk []byte) {
		if bytes.Contains(bytes.ToLower(chunk), []byte("commit")) {
			p.SwallowReplies(true)
		}
	})
}

func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}
