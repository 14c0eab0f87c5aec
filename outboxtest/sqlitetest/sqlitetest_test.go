package sqlitetest_test

import (
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/outboxtest"
	"github.com/gorm-outbox/outbox/outboxtest/sqlitetest"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
)

// TestOneLine is a unit test as an app would write it: a retry and its success, without waiting.
func TestOneLine(t *testing.T) {
	db := sqlitetest.Open(t)
	require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
		_, err := outbox.Enqueue(tx, outbox.Message{Topic: "email", Type: "welcome"})
		return err
	}))
	outboxtest.RequireEnqueued(t, db, outboxtest.Match{Topic: "email", Type: "welcome"})

	email := outboxtest.NewRecorder(outboxtest.Fail(policy.Failure{Category: policy.CategoryNetwork}), outboxtest.Accept("id-1"))
	transports := map[string]outbox.Transport{"email": email}
	require.Equal(t, outbox.Summary{Claimed: 1, Retried: 1}, outboxtest.Drain(t, db, transports))
	require.Equal(t, outbox.Summary{}, outboxtest.Drain(t, db, transports), "it waits for its time")
	outboxtest.Elapse(t, db, time.Minute)
	require.Equal(t, outbox.Summary{Claimed: 1, Sent: 1}, outboxtest.Drain(t, db, transports))
	require.Len(t, email.Deliveries(), 2)
}

// TestDatabasesAreApart also drains an outbox of another name, with tenants of another type.
func TestDatabasesAreApart(t *testing.T) {
	notices := outbox.Plugin{Table: "notices", Tenant: outbox.TenantColumn{Name: "club_id", Type: "bigint"}}
	one, other := sqlitetest.Open(t, notices), sqlitetest.Open(t, notices)
	require.NoError(t, one.Transaction(func(tx *gorm.DB) error {
		_, err := notices.EnqueueAll(tx, []outbox.Message{
			{Topic: "sms", TenantID: "7", Delay: time.Hour}, {Topic: "sms", TenantID: "7", Delay: time.Hour, ExpiresAt: time.Now().Add(time.Minute)},
		})
		return err
	}))
	sms := map[string]outbox.Transport{"sms": outboxtest.NewRecorder()}
	outboxtest.Elapse(t, one, 2*time.Hour, notices)
	require.Equal(t, outbox.Summary{Claimed: 2, Sent: 1, Expired: 1}, outboxtest.Drain(t, one, sms, notices))
	require.Equal(t, outbox.Summary{}, outboxtest.Drain(t, other, sms, notices))
}
