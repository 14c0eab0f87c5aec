package pgtest

import (
	"context"
	"database/sql"
	"net"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"
)

func TestStart(t *testing.T) {
	conn := connect(t, shared.DSN(maintenance))

	require.Equal(t, map[string]string{
		"server_encoding":         "UTF8",
		"lc_collate":              "C",
		"max_connections":         "200",
		"fsync":                   "off",
		"full_page_writes":        "off",
		"timezone":                "UTC",
		"listen_addresses":        "127.0.0.1",
		"unix_socket_directories": "",
	}, settings(t, conn, "server_encoding", "lc_collate", "max_connections", "fsync", "full_page_writes", "timezone",
		"listen_addresses", "unix_socket_directories"))
}

func TestStartWithOptions(t *testing.T) {
	c := start(t, Options{Durable: true, Settings: map[string]string{"max_connections": "17", "cluster_name": "it's"}})

	require.Equal(t, map[string]string{
		"fsync":            "on",
		"full_page_writes": "on",
		"max_connections":  "17",
		"cluster_name":     "it's",
	}, settings(t, connect(t, c.DSN(maintenance)), "fsync", "full_page_writes", "max_connections", "cluster_name"))
}

func TestStartFailureTellsWhatTheServerSaid(t *testing.T) {
	_, err := Start(Options{Settings: map[string]string{"max_connections": "many"}})

	require.ErrorContains(t, err, `invalid value for parameter "max_connections": "many"`)
}

func TestVersion(t *testing.T) {
	var want int
	err := connect(t, shared.DSN(maintenance)).QueryRow(t.Context(), "SELECT current_setting('server_version_num')::int").Scan(&want)

	require.NoError(t, err)
	require.Equal(t, want, shared.Version())
	require.GreaterOrEqual(t, want, 13_00_00)
}

func TestCreateDatabase(t *testing.T) {
	const count = "SELECT count(*) FROM pg_database WHERE datname = current_database() OR datname = $1"
	var first string
	t.Run("in use", func(t *testing.T) {
		dsn := shared.CreateDatabase(t)
		require.NotEqual(t, dsn, shared.CreateDatabase(t), "each one is new")
		db, err := sql.Open("pgx", dsn) // never closed: a forgotten connection must not keep the database
		require.NoError(t, err)
		require.NoError(t, db.QueryRow("SELECT current_database()").Scan(&first))
		var tables int
		require.NoError(t, db.QueryRow("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").Scan(&tables))
		require.Zero(t, tables)
		t.Cleanup(func() { _ = db.Close() })
	})

	var left int
	require.NoError(t, connect(t, shared.DSN(maintenance)).QueryRow(t.Context(), count, first).Scan(&left))
	require.Equal(t, 1, left, "only the maintenance database is left of the two")
}

func TestCrashAndRestart(t *testing.T) {
	c := start(t, Options{})
	dsn := c.CreateDatabase(t)
	conn := connect(t, dsn)
	run(t, conn, "CREATE TABLE kept (n int)")
	run(t, conn, "INSERT INTO kept VALUES (1)")
	run(t, conn, "BEGIN")
	run(t, conn, "INSERT INTO kept VALUES (2)")

	c.Crash()
	c.Crash() // a server that is down stays down
	_, err := conn.Exec(t.Context(), "COMMIT")
	require.Error(t, err)
	_, err = pgx.Connect(t.Context(), dsn)
	require.Error(t, err)

	require.NoError(t, c.Restart())
	var rows int
	require.NoError(t, connect(t, dsn).QueryRow(t.Context(), "SELECT sum(n) FROM kept").Scan(&rows))
	require.Equal(t, 1, rows, "the same port and data, without what was not committed")
}

func TestRestartOfARunningServer(t *testing.T) {
	c := start(t, Options{})
	before := connect(t, c.DSN(maintenance))

	require.NoError(t, c.Restart())

	require.Error(t, before.Ping(t.Context()))
	require.NoError(t, connect(t, c.DSN(maintenance)).Ping(t.Context()))
}

func TestRestartOnATakenPort(t *testing.T) {
	c := start(t, Options{})
	c.Crash()
	taken, err := net.Listen("tcp", c.addr())
	require.NoError(t, err)

	require.ErrorIs(t, c.Restart(), errPortTaken)

	require.NoError(t, taken.Close())
	require.NoError(t, c.Restart())
}

func TestStop(t *testing.T) {
	c := start(t, Options{})

	c.Stop()
	c.Stop()

	require.NoDirExists(t, c.dir)
	require.ErrorContains(t, c.Restart(), "stopped")
	_, err := os.Stat(c.dir)
	require.ErrorIs(t, err, os.ErrNotExist, "a refused restart leaves nothing behind")
}

func TestDSNEscapesTheName(t *testing.T) {
	conf, err := pgx.ParseConfig(shared.DSN("a b?/ü"))

	require.NoError(t, err)
	require.Equal(t, "a b?/ü", conf.Database)
	require.Equal(t, superuser, conf.User)
	require.Nil(t, conf.TLSConfig)
}

func TestTail(t *testing.T) {
	require.Equal(t, "b\nc", string(tail([]byte("a\nb\nc\n"), 2)))
	require.Equal(t, "a", string(tail([]byte("a\n"), 2)))
	require.Empty(t, tail(nil, 2))
}

func start(t *testing.T, o Options) *Cluster {
	t.Helper()
	c, err := Start(o)
	require.NoError(t, err)
	t.Cleanup(c.Stop)
	return c
}

func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func run(t *testing.T, conn *pgx.Conn, statement string) {
	t.Helper()
	_, err := conn.Exec(t.Context(), statement)
	require.NoError(t, err)
}

func settings(t *testing.T, conn *pgx.Conn, names ...string) map[string]string {
	t.Helper()
	values := map[string]string{}
	for _, name := range names {
		var value string
		require.NoError(t, conn.QueryRow(t.Context(), "SELECT current_setting($1)", name).Scan(&value))
		values[name] = value
	}
	return values
}
