package outboxtest

import (
	"testing"

	"github.com/gorm-outbox/outbox"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
)

var tenantChecks = []check{
	{"of type text", func(t *testing.T, db *gorm.DB) { checkTenants(t, db, tenantsAsText) }},
	{"of type uuid", func(t *testing.T, db *gorm.DB) { checkTenants(t, db, tenantsAsUUID) }},
	{"of type bigint", func(t *testing.T, db *gorm.DB) { checkTenants(t, db, tenantsAsNumber) }},
}

// tenants is what a type of tenant column must do.
type tenants struct {
	column outbox.TenantColumn
	given  map[string]string // what a message may say → what is stored
	same   [][2]string       // two ways to say the same tenant
	bad    []string          // what is refused
}

var tenantsAsText = tenants{
	column: outbox.TenantColumn{Name: "Club_ID", Type: "text"},
	given:  map[string]string{"": "", "t1": "t1", "T1": "T1", " t1": " t1", "ñ'\"%": "ñ'\"%"},
	bad:    []string{"\x00"},
}

var tenantsAsUUID = tenants{
	column: outbox.TenantColumn{Name: "club_id", Type: "uuid"},
	given: map[string]string{
		"0197e5a0-7c1e-7abc-8def-0123456789ab": "0197e5a0-7c1e-7abc-8def-0123456789ab",
		"AAAAAAAA-BBBB-CCCC-DDDD-EEEEEEEEEEEE": "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee",
		"00000000-0000-0000-0000-000000000000": "00000000-0000-0000-0000-000000000000",
	},
	same: [][2]string{{"ABCDEF00-0000-0000-0000-000000000001", "abcdef00-0000-0000-0000-000000000001"}},
	bad:  []string{"", "t1", "42", "0197e5a0-7c1e-7abc-8def-0123456789a", "0197e5a0-7c1e-7abc-8def-0123456789ag"},
}

var tenantsAsNumber = tenants{
	column: outbox.TenantColumn{Name: "account", Type: "bigint"},
	given: map[string]string{
		"42": "42", "-1": "-1", "0": "0", "9223372036854775807": "9223372036854775807", "-9223372036854775808": "-9223372036854775808",
	},
	same: [][2]string{{"7", "007"}, {"8", "+8"}},
	bad:  []string{"", "t1", "1.5", "9223372036854775808", " 1", "0x10", "1e3"},
}

func checkTenants(t *testing.T, db *gorm.DB, c tenants) {
	install(t, db, outbox.Plugin{Tenant: c.column})
	send := func(tenant, kind string) outbox.Receipt {
		m := keyed("k", kind)
		m.TenantID = tenant
		return enqueue(t, db, m)[0]
	}
	for given, stored := range c.given {
		first := send(given, "one")
		require.True(t, first.New, "%q", given)
		require.Equal(t, repeat(first), send(given, "again"), "%q", given)
		require.Equal(t, stored, record(t, db, first.ID).TenantID)
	}
	for _, same := range c.same {
		first := send(same[0], "one")
		require.True(t, first.New)
		require.Equal(t, repeat(first), send(same[1], "again"), "%q is %q", same[1], same[0])
	}
	require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
		for _, bad := range c.bad {
			_, err := outbox.Enqueue(tx, outbox.Message{Topic: topic, TenantID: bad})
			require.ErrorIs(t, err, outbox.ErrInvalid, "%q", bad)
		}
		return tx.Create(&contractOrder{ID: 7}).Error
	}))
	requireOrders(t, db, 7)

	rec := NewRecorder()
	once(t, db, configure(rec))
	require.Len(t, rec.Deliveries(), len(c.given)+len(c.same))
	for _, d := range rec.Deliveries() {
		require.Equal(t, record(t, db, d.ID).TenantID, d.TenantID)
	}
}
