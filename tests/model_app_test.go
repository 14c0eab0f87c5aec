package tests

import (
	"fmt"
	"strings"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
	"pgregory.net/rapid"
)

// onceTopic is the topic that is delivered at most once; "email" is the other.
const onceTopic = "once"

// maxModelRecords keeps the table small enough for a round of both topics to take all that is due.
const maxModelRecords = 40

// appSteps are what the app does in a transaction, and how often.
var appSteps = []string{"enqueue", "enqueue", "enqueue", "enqueue", "enqueue", "enqueue", "cancel", "receipt", "receipt", "consume"}

// transaction is the app's: a few steps, then a commit or a rollback, of all or of a savepoint.
func (m *machine) transaction(t *rapid.T) {
	ending := rapid.SampledFrom([]string{"commit", "commit", "commit", "roll back", "roll back to a savepoint"}).Draw(t, "ending")
	m.note(ending, 1)
	before := m.oracle.clone()
	err := m.g.app.Transaction(func(tx *gorm.DB) error {
		if ending == "roll back to a savepoint" {
			m.savepoint(t, tx)
		}
		for range rapid.IntRange(1, 3).Draw(t, "steps") {
			m.appStep(t, tx)
		}
		if ending == "roll back" {
			return errUndo
		}
		return nil
	})
	if ending == "roll back" {
		require.ErrorIs(t, err, errUndo)
		m.oracle = before
		return
	}
	require.NoError(t, err)
}

// savepoint is a part of a transaction that comes to nothing.
func (m *machine) savepoint(t *rapid.T, tx *gorm.DB) {
	before := m.oracle.clone()
	require.ErrorIs(t, tx.Transaction(func(inner *gorm.DB) error {
		m.appStep(t, inner)
		return errUndo
	}), errUndo)
	m.oracle = before
}

func (m *machine) appStep(t *rapid.T, tx *gorm.DB) {
	switch rapid.SampledFrom(appSteps).Draw(t, "step") {
	case "enqueue":
		m.enqueue(t, tx)
	case "cancel":
		m.cancel(t, tx)
	case "receipt":
		m.receipt(t, tx)
	case "consume":
		m.consume(t, tx)
	}
}

// enqueue writes up to three messages in one call.
func (m *machine) enqueue(t *rapid.T, tx *gorm.DB) {
	if len(m.oracle.records) >= maxModelRecords {
		return
	}
	messages := make([]outbox.Message, rapid.IntRange(1, 3).Draw(t, "messages"))
	shadows := make([]*modelRecord, len(messages))
	for i := range messages {
		messages[i], shadows[i] = m.message(t)
	}
	receipts, err := outbox.EnqueueAll(tx, messages)
	require.NoError(t, err)
	require.Len(t, receipts, len(messages))
	for i, r := range shadows {
		if first := m.oracle.byKey(r.tenant, r.key); first != nil {
			require.Equal(t, outbox.Receipt{ID: first.receipt.ID, MessageID: first.receipt.MessageID}, receipts[i])
			m.note("repeated", 1)
			continue
		}
		require.True(t, receipts[i].New)
		r.receipt = receipts[i]
		if n := len(m.oracle.records); n > 0 {
			require.Greater(t, r.receipt.ID, m.oracle.records[n-1].receipt.ID, "ids are in the order of enqueue")
		}
		m.oracle.records = append(m.oracle.records, r)
		m.note("enqueued", 1)
	}
}

// message draws a message, and the record that it would make.
func (m *machine) message(t *rapid.T) (outbox.Message, *modelRecord) {
	m.names++
	msg := outbox.Message{
		Topic:          rapid.SampledFrom([]string{"email", onceTopic}).Draw(t, "topic"),
		Type:           fmt.Sprint("message-", m.names),
		TenantID:       rapid.SampledFrom([]string{"", "a", "a:b"}).Draw(t, "tenant"),
		IdempotencyKey: rapid.SampledFrom([]string{"", "", "k1", "k2"}).Draw(t, "key"),
		MaxAttempts:    rapid.IntRange(0, 3).Draw(t, "max attempts"),
	}
	now := m.oracle.now
	r := &modelRecord{
		topic: msg.Topic, once: msg.Topic == onceTopic, kind: msg.Type, tenant: msg.TenantID, key: msg.IdempotencyKey,
		status: outbox.StatusPending, most: msg.MaxAttempts, due: now, created: now, moved: true,
		expires: never, ended: never, claimed: never, leasedUntil: never, unknownSince: never,
	}
	if r.most == 0 {
		r.most = modelAttempts
	}
	switch wait := hours(t, "wait", 0, 0, 0, 1, 3); rapid.IntRange(0, 3).Draw(t, "schedule") {
	case 0:
		msg.ScheduledFor, r.due = time.Now().Add(wait), now+wait
	case 1:
		msg.ScheduledFor, r.due = time.Now().Add(-2*time.Hour), now-2*time.Hour
	default:
		msg.Delay, r.due = wait, now+wait
	}
	if life := hours(t, "life", 0, 0, 0, -0.5, 1.5, 3.5); life != 0 {
		msg.ExpiresAt, r.expires = time.Now().Add(life), now+life
	}
	return msg, r
}

// hours draws one of several durations.
func hours(t *rapid.T, label string, choices ...float64) time.Duration {
	return time.Duration(rapid.SampledFrom(choices).Draw(t, label) * float64(time.Hour))
}

// filter draws a filter, and what it selects.
func (m *machine) filter(t *rapid.T) (outbox.Filter, func(*modelRecord) bool) {
	topic := rapid.SampledFrom([]string{"email", onceTopic}).Draw(t, "topic")
	tenant := rapid.SampledFrom([]string{"", "a", "a:b"}).Draw(t, "tenant")
	switch rapid.SampledFrom([]string{"ids", "ids", "ids", "key", "category", "topic", "all"}).Draw(t, "filter") {
	case "all":
		return outbox.Filter{All: true}, func(*modelRecord) bool { return true }
	case "topic":
		return outbox.Filter{Topic: topic}, func(r *modelRecord) bool { return r.topic == topic }
	case "key":
		return outbox.Filter{IdempotencyKey: "k1", TenantID: tenant}, func(r *modelRecord) bool {
			return r.key == "k1" && (tenant == "" || r.tenant == tenant)
		}
	case "category":
		category := rapid.SampledFrom([]string{"timeout", "credentials", "outcome_unknown", "lease_expired"}).Draw(t, "category")
		return outbox.Filter{Category: category}, func(r *modelRecord) bool { return r.category == category }
	}
	ids := map[int64]bool{}
	f := outbox.Filter{}
	for range rapid.IntRange(1, 4).Draw(t, "ids") {
		id := m.anyID(t)
		ids[id], f.IDs = true, append(f.IDs, id)
	}
	return f, func(r *modelRecord) bool { return ids[r.receipt.ID] }
}

// anyID draws the id of a record, or one that there is not.
func (m *machine) anyID(t *rapid.T) int64 {
	i := rapid.IntRange(0, maxModelRecords).Draw(t, "record")
	if n := len(m.oracle.records); n > 0 && i < maxModelRecords {
		return m.oracle.records[i%n].receipt.ID
	}
	return 1 << 40
}

// cancel withdraws waiting messages.
func (m *machine) cancel(t *rapid.T, tx *gorm.DB) {
	filter, selects := m.filter(t)
	want := m.oracle.cancel(selects)
	got, err := outbox.Cancel(tx, filter)
	require.NoError(t, err)
	require.Equal(t, want, got)
	m.note("cancelled", int(got))
}

// receipt is a provider's report, on a record of ours or another's.
func (m *machine) receipt(t *rapid.T, tx *gorm.DB) {
	p := outbox.ProviderReceipt{
		Status: rapid.SampledFrom([]outbox.ReceiptStatus{outbox.ReceiptDelivered, outbox.ReceiptBounced}).Draw(t, "status"),
		Code:   rapid.SampledFrom([]string{"", "550"}).Draw(t, "code"),
		At:     time.Date(2026, 3, 1, rapid.IntRange(0, 3).Draw(t, "hour"), 0, 0, 0, time.UTC),
	}
	var selects func(*modelRecord) bool
	if rapid.Bool().Draw(t, "by reference") {
		id, messageID := m.anyID(t), "01930000-0000-7000-8000-000000000000"
		if r := m.oracle.find(id); r != nil {
			messageID = r.receipt.MessageID
		}
		p.Reference = outbox.Delivery{ID: id, MessageID: messageID}.Reference()
		selects = func(r *modelRecord) bool { return r.receipt.ID == id }
	} else {
		p.ExternalID = rapid.SampledFrom([]string{"x1", "x2", "another's"}).Draw(t, "external id")
		selects = func(r *modelRecord) bool { return r.external == p.ExternalID }
	}
	want := m.oracle.report(selects, p)
	found, err := outbox.RecordReceipt(tx, p)
	require.NoError(t, err)
	require.Equal(t, want, found)
	m.note("receipts", 1)
}

// consume is the inbox at the other end.
func (m *machine) consume(t *rapid.T, tx *gorm.DB) {
	message := rapid.SampledFrom([]string{"m1", "m2", "m3"}).Draw(t, "message")
	fails := rapid.Bool().Draw(t, "fails")
	_, before := m.oracle.consumed[message]
	ran := false
	result, err := outbox.ConsumeOnce(tx, "credits", message, func(*gorm.DB) error {
		ran = true
		if fails {
			return errUndo
		}
		return nil
	})
	require.Equal(t, !before, ran)
	require.Equal(t, ran && !fails, result)
	require.Equal(t, ran && fails, err != nil, "%v", err)
	if ran && !fails {
		m.oracle.consumed[message] = m.oracle.now
	}
	m.note("consumed", 1)
}

// providerKeyOf is what the provider must be handed for a message, each time.
func providerKeyOf(r *modelRecord) string {
	if r.key == "" {
		return r.receipt.MessageID
	}
	return strings.ReplaceAll(r.tenant, ":", "%3A") + ":" + r.key
}
