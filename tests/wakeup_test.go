package tests

import (
	"context"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/pgwake"
	"github.com/libtnb/sqlite"
	"github.com/stretchr/testify/require"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

func openPool(t *testing.T, dsn string) *gorm.DB {
	t.Helper()
	db, err := gorm.Open(postgres.Open(dsn), &gorm.Config{Logger: logger.Discard})
	require.NoError(t, err)
	pool, err := db.DB()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pool.Close()) })
	return db
}

// TestWakeUpCrossesPools stands for two processes: one pool enqueues, another one delivers, and polls are too far apart
// to explain a delivery.
func TestWakeUpCrossesPools(t *testing.T) {
	dsn := cluster.CreateDatabase(t)
	shop, worker := openPool(t, dsn), openPool(t, dsn)
	require.NoError(t, shop.Use(outbox.Plugin{WakeUp: true}))
	require.NoError(t, worker.Use(outbox.Plugin{SkipMigrate: true}))
	listener, err := pgwake.New(worker)
	require.NoError(t, err)

	delivered := make(chan string, 10)
	p, err := outbox.NewProcessor(worker, outbox.ProcessorConfig{
		PollInterval: time.Minute,
		Listener:     listener,
		Transports: map[string]outbox.Transport{"orders": outbox.TransportFunc(func(_ context.Context, d outbox.Delivery) (string, error) {
			delivered <- d.Type
			return "", nil
		})},
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})

	requireDelivered := func(typ string) {
		t.Helper()
		require.NoError(t, shop.Transaction(func(tx *gorm.DB) error {
			_, err := outbox.Enqueue(tx, outbox.Message{Topic: "orders", Type: typ})
			return err
		}))
		select {
		case got := <-delivered:
			require.Equal(t, typ, got)
		case <-time.After(20 * time.Second):
			require.Fail(t, "not delivered", typ)
		}
	}
	requireListening(t, shop)
	requireDelivered("first")
	requireDelivered("second")
}

// requireListening waits until some session of the database has heard its own echo and waits for more.
func requireListening(t *testing.T, db *gorm.DB) {
	t.Helper()
	require.Eventually(t, func() bool {
		var n int64
		err := db.Raw(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle' AND query LIKE 'LISTEN%'`).Scan(&n).Error
		return err == nil && n == 1
	}, 20*time.Second, 10*time.Millisecond)
}

// TestListenerOutlivesItsConnection ends the listening session and expects a new one.
func TestListenerOutlivesItsConnection(t *testing.T) {
	db := openPool(t, cluster.CreateDatabase(t))
	listener, err := pgwake.New(db)
	require.NoError(t, err)
	for range 2 {
		heard, done := make(chan struct{}, 10), make(chan error, 1)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		go func() { done <- listener.Listen(ctx, "outbox", func() { heard <- struct{}{} }) }()
		<-heard // listening
		require.NoError(t, db.Exec(`SELECT pg_notify('outbox', '')`).Error)
		<-heard
		require.NoError(t, db.Exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = current_database()`).Error)
		require.Error(t, <-done)
	}
}

// TestListenerLeavesNothingBehind: a connection that has listened must not go back into the pool.
func TestListenerLeavesNothingBehind(t *testing.T) {
	db := openPool(t, cluster.CreateDatabase(t))
	listener, err := pgwake.New(db)
	require.NoError(t, err)
	heard, done := make(chan struct{}, 10), make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { done <- listener.Listen(ctx, "outbox", func() { heard <- struct{}{} }) }()
	<-heard
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	var channels []string
	require.NoError(t, db.Raw(`SELECT pg_listening_channels()`).Scan(&channels).Error)
	require.Empty(t, channels)
}

func TestListenerRefusesWhatCannotWork(t *testing.T) {
	_, err := pgwake.New(nil)
	require.ErrorContains(t, err, "nil")

	single := openPool(t, cluster.CreateDatabase(t))
	pool, err := single.DB()
	require.NoError(t, err)
	pool.SetMaxOpenConns(1)
	_, err = pgwake.New(single)
	require.ErrorContains(t, err, "only one connection")

	lite, err := gorm.Open(sqlite.Open("file::memory:"), &gorm.Config{})
	require.NoError(t, err)
	litePool, err := lite.DB()
	require.NoError(t, err)
	defer litePool.Close() //nolint:errcheck // in memory
	listener, err := pgwake.New(lite)
	require.NoError(t, err)
	require.ErrorContains(t, listener.Listen(context.Background(), "outbox", func() {}), "not pgx's")
}
