package outboxtest

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
)

var receiptChecks = []check{
	{"is noted on its record", checkReceipt},
	{"may come before the send is recorded", checkReceiptEarly},
	{"of somebody else finds nothing", checkReceiptForeign},
	{"that is bad is refused", checkReceiptInvalid},
	{"is forgotten by a redrive", checkReceiptRedriven},
}

// receive notes a receipt in a transaction of its own.
func receive(t *testing.T, db *gorm.DB, r outbox.ProviderReceipt) (found bool) {
	t.Helper()
	require.NoError(t, db.Transaction(func(tx *gorm.DB) (err error) {
		found, err = outbox.RecordReceipt(tx, r)
		return err
	}))
	return found
}

func checkReceipt(t *testing.T, db *gorm.DB) {
	install(t, db)
	enqueue(t, db, mail("one"), mail("other"))
	rec := NewRecorder()
	rec.For(OfType("one"), Accept("provider-1"))
	rec.For(OfType("other"), Accept("provider-2"))
	once(t, db, configure(rec))
	one, other := records(t, db)[0], records(t, db)[1]
	reference := outbox.Delivery{ID: one.ID, MessageID: one.MessageID}.Reference()
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, step := range []struct {
		receipt outbox.ProviderReceipt
		want    outbox.ReceiptStatus
		code    string
		at      time.Time
	}{
		{outbox.ProviderReceipt{ExternalID: "provider-1", Status: outbox.ReceiptDelivered, At: at}, "delivered", "", at},
		{outbox.ProviderReceipt{Reference: reference, Status: outbox.ReceiptFailed, Code: "131026", At: at.Add(-time.Second)}, "delivered", "", at},
		{outbox.ProviderReceipt{Reference: reference, ExternalID: "provider-2", Status: outbox.ReceiptComplained, Code: "a\x00b" + strings.Repeat("x", 99), At: at.Add(time.Hour)}, "complained", "a?b" + strings.Repeat("x", 61), at.Add(time.Hour)},
	} {
		require.True(t, receive(t, db, step.receipt))
		require.True(t, receive(t, db, step.receipt), "twice is as good as once")
		r := records(t, db)[0]
		require.Equal(t, step.want, *r.ReceiptStatus)
		require.Equal(t, step.code, text(r.ReceiptCode))
		require.True(t, r.ReceiptAt.Equal(step.at), r.ReceiptAt)
		require.Equal(t, outbox.StatusSent, r.Status)
	}
	require.Equal(t, other, records(t, db)[1])
	why, err := outbox.Explain(db, records(t, db)[0].ID)
	require.NoError(t, err)
	require.Contains(t, why, "; the provider reported it complained at 2026-03-01T13:00:00Z, code a?b")
}

func checkReceiptEarly(t *testing.T, db *gorm.DB) {
	install(t, db)
	enqueue(t, db, mail("one"))
	rec := NewRecorder(Do(func(_ context.Context, d outbox.Delivery) (string, error) {
		return "provider-1", db.Transaction(func(tx *gorm.DB) error {
			_, err := outbox.RecordReceipt(tx, outbox.ProviderReceipt{Reference: d.Reference(), Status: outbox.ReceiptDelivered, At: time.Now()})
			return err
		})
	}))
	requireSummary(t, outbox.Summary{Claimed: 1, Sent: 1}, once(t, db, configure(rec)))
	r := records(t, db)[0]
	require.Equal(t, outbox.ReceiptDelivered, *r.ReceiptStatus)
	require.Equal(t, "provider-1", text(r.ExternalID))
}

func checkReceiptForeign(t *testing.T, db *gorm.DB) {
	install(t, db)
	receipts := enqueue(t, db, mail("one"))
	before := records(t, db)
	reference := outbox.Delivery{ID: receipts[0].ID, MessageID: receipts[0].MessageID}.Reference()
	for _, foreign := range []string{"x", "-", "1", reference + "x", "9" + reference, strings.Repeat("9", 400), "1-\x00", reference[:len(reference)-1]} {
		require.False(t, receive(t, db, outbox.ProviderReceipt{Reference: foreign, Status: outbox.ReceiptFailed, At: time.Now()}), "%q", foreign)
	}
	for _, foreign := range []string{"provider-9", "a\x00b", strings.Repeat("ñ", 1000)} {
		require.False(t, receive(t, db, outbox.ProviderReceipt{ExternalID: foreign, Status: outbox.ReceiptFailed, At: time.Now()}), "%q", foreign)
	}
	require.Equal(t, before, records(t, db))
}

func checkReceiptInvalid(t *testing.T, db *gorm.DB) {
	install(t, db)
	good := outbox.ProviderReceipt{ExternalID: "x", Status: outbox.ReceiptDelivered, At: time.Now()}
	_, err := outbox.RecordReceipt(db, good)
	require.ErrorIs(t, err, outbox.ErrNoTransaction)
	for name, spoil := range map[string]func(*outbox.ProviderReceipt){
		"no id":          func(r *outbox.ProviderReceipt) { r.ExternalID = "" },
		"no status":      func(r *outbox.ProviderReceipt) { r.Status = "" },
		"unknown status": func(r *outbox.ProviderReceipt) { r.Status = "read" },
		"no time":        func(r *outbox.ProviderReceipt) { r.At = time.Time{} },
		"absurd time":    func(r *outbox.ProviderReceipt) { r.At = time.Unix(1e15, 0) },
	} {
		bad := good
		spoil(&bad)
		require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
			_, err := outbox.RecordReceipt(tx, bad)
			require.ErrorIs(t, err, outbox.ErrInvalid, name)
			_, err = outbox.Enqueue(tx, mail("after"))
			return err // the transaction is none the worse
		}), name)
	}
}

func checkReceiptRedriven(t *testing.T, db *gorm.DB) {
	install(t, db)
	enqueue(t, db, mail("one"))
	var reference string
	rec := NewRecorder(Do(func(_ context.Context, d outbox.Delivery) (string, error) {
		reference = d.Reference()
		panic("x")
	}))
	cfg := configureOnce(rec)
	once(t, db, cfg)
	require.True(t, receive(t, db, outbox.ProviderReceipt{Reference: reference, Status: outbox.ReceiptFailed, At: time.Now()}))
	n, err := outbox.Redrive(db, outbox.Filter{All: true})
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
	r := records(t, db)[0]
	require.Nil(t, r.ReceiptStatus)
	require.Nil(t, r.ReceiptAt)
	require.Nil(t, r.UnknownSince)
}
