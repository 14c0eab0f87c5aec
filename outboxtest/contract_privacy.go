package outboxtest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

var privacyChecks = []check{
	{"of messages holds in every log", checkPrivacy},
}

// notes is a log that everything is written to.
type notes struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write implements io.Writer.
func (n *notes) Write(p []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.text.Write(p)
}

// Printf implements GORM's log writer.
func (n *notes) Printf(format string, args ...any) { _, _ = fmt.Fprintf(n, format+"\n", args...) }

// String is all that has been logged.
func (n *notes) String() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.text.String()
}

// checkPrivacy has GORM log every statement and the outbox log everything, and lets all go wrong: neither log, no
// column and no error holds what the message holds.
func checkPrivacy(t *testing.T, db *gorm.DB) {
	install(t, db)
	var sql, log notes
	loud := db.Session(&gorm.Session{Logger: logger.New(&sql, logger.Config{LogLevel: logger.Info, SlowThreshold: 1})})
	leak := errors.New("mailbox " + secret + "@example.test is full")
	kinds := map[string]Result{
		"sent": Accept("1"), "failed": Fail(leak), "discarded": Fail(&policy.Failure{Category: "rejected", Code: "550", Err: leak}),
		"panic": Panic(leak), "hang": Hang(),
	}
	rec := NewRecorder()
	require.NoError(t, loud.Transaction(func(tx *gorm.DB) error {
		for kind, result := range kinds {
			m := private()
			m.Type, m.IdempotencyKey = kind, secret+kind
			enqueueIn(t, tx, m)
			require.False(t, enqueueIn(t, tx, m).New)
			rec.For(OfType(kind), result)
		}
		return nil
	}))
	cfg := configure(rec)
	cfg.Timeout = time.Second
	cfg.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	once(t, loud, cfg)
	for _, r := range records(t, db) {
		require.NotContains(t, text(r.LastErrorCategory)+text(r.LastErrorCode)+text(r.ExternalID), secret)
	}

	back := away(t, db) // and every statement fails
	require.Error(t, loud.Transaction(func(tx *gorm.DB) error {
		_, err := outbox.Enqueue(tx, private())
		require.NotContains(t, err.Error(), secret)
		return err
	}))
	newProcessor(t, loud, cfg).ProcessOnce(context.Background())
	back()
	require.NotContains(t, sql.String(), secret)
	require.NotContains(t, log.String(), secret)
	require.Contains(t, log.String(), "topic=email", "the log was written")
}
