package tests

import (
	"bytes"
	"encoding/json"
	"errors"
	"math/big"
	"path/filepath"
	"testing"

	"github.com/gorm-outbox/outbox"
	"github.com/libtnb/sqlite"
	"github.com/stretchr/testify/require"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

// FuzzEnqueue: whatever a message holds, it is either refused before any SQL, so that the caller's transaction can still
// commit, or stored and delivered as it was enqueued. On both engines, which disagree about what a text may hold.
func FuzzEnqueue(f *testing.F) {
	f.Add("email", "order", "ana@example.test", "acme", "order-7", []byte(`{"total":"12.50"}`), "trace", "00-1")
	f.Add("\x00", "\xff", "\u2028", "a:b", "%3A", []byte(`"\u0000"`), "", "\x00")
	f.Add("t", "", "", "", "", []byte(`[1e400,-0.0,"\ud83d\ude00"]`), "a\"b", "\\u0000")
	f.Add("t", "ñ", "", "", "k", []byte(`{"a":1,"a":2, "b" : []}`), "X", "\ufffd")
	databases := map[string]*gorm.DB{
		"postgres": openFuzz(f, postgres.Open(cluster.CreateDatabase(f))),
		"sqlite":   openFuzz(f, sqlite.Open(sqliteDSN(filepath.Join(f.TempDir(), "fuzz.db")))),
	}
	f.Fuzz(func(t *testing.T, topic, kind, recipient, tenant, key string, payload []byte, header, value string) {
		m := outbox.Message{
			Topic: topic, Type: kind, Recipient: recipient, TenantID: tenant, IdempotencyKey: key,
			Payload: json.RawMessage(payload), Headers: map[string]string{header: value},
		}
		for engine, db := range databases {
			require.NoError(t, db.Exec("DELETE FROM outbox").Error)
			stored := false
			require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
				_, err := outbox.Enqueue(tx, m)
				require.True(t, err == nil || errors.Is(err, outbox.ErrInvalid), "%s: %v", engine, err)
				stored = err == nil
				return tx.Exec("SELECT 1").Error
			}))
			if stored {
				requireDeliveredAs(t, db, m)
			}
		}
	})
}

func openFuzz(f *testing.F, dialector gorm.Dialector) *gorm.DB {
	f.Helper()
	db, err := gorm.Open(dialector, &gorm.Config{Logger: logger.Discard})
	require.NoError(f, err)
	require.NoError(f, db.Use(outbox.Plugin{}))
	pool, err := db.DB()
	require.NoError(f, err)
	f.Cleanup(func() { _ = pool.Close() })
	return db
}

// requireDeliveredAs delivers the only message there is.
func requireDeliveredAs(t *testing.T, db *gorm.DB, m outbox.Message) {
	t.Helper()
	box := &mailbox{}
	p, err := outbox.NewProcessor(db, outbox.ProcessorConfig{Transports: map[string]outbox.Transport{m.Topic: box}})
	require.NoError(t, err)
	require.Equal(t, outbox.Summary{Claimed: 1, Sent: 1}, counts(p.ProcessOnce(t.Context())))
	d := box.deliveries()[0]
	require.Equal(t, []string{m.Topic, m.Type, m.Recipient, m.TenantID}, []string{d.Topic, d.Type, d.Recipient, d.TenantID})
	require.Equal(t, m.Headers, d.Headers)
	if text := m.Payload.(json.RawMessage); len(text) > 0 { // nothing is null, by definition
		require.Equal(t, meaning(t, text), meaning(t, d.Payload))
	}
	require.Regexp(t, `^[!-~]{1,256}$`, d.ProviderKey)
}

// meaning is what a JSON text says, however it is written: PostgreSQL keeps neither spaces nor the order of keys nor the
// form of numbers.
func meaning(t *testing.T, text []byte) any {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var v any
	require.NoError(t, decoder.Decode(&v))
	return exactly(v)
}

// exactly gives numbers as fractions.
func exactly(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name, inner := range v {
			v[name] = exactly(inner)
		}
	case []any:
		for i, inner := range v {
			v[i] = exactly(inner)
		}
	case json.Number:
		number, _ := new(big.Rat).SetString(v.String())
		return number.String()
	}
	return v
}
