package tests

import (
	"context"
	"testing"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/stretchr/testify/require"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

// A worker stalls in the last attempt at a record, and another closes it since its lease ran out. The first one's write
// is refused once; tried again, it must not take the other's end of the record for its own: one of them counts it as
// failed, the other as lost.
func TestAnOutcomeIsNotTakenForAnothers(t *testing.T) {
	t.Parallel()
	for name, once := range map[string]bool{"delivered at least once": false, "delivered at most once": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.enqueue(1, outbox.Message{MaxAttempts: 1})
			pool, err := r.open().DB()
			require.NoError(t, err)
			faulty := &faultyPool{ConnPool: pool}
			db, err := gorm.Open(postgres.New(postgres.Config{Conn: faulty}), &gorm.Config{Logger: logger.Discard})
			require.NoError(t, err)
			require.NoError(t, db.Use(r.plugin))
			g := newGate(t, func(context.Context, outbox.Delivery) (string, error) {
				return "", policy.Failure{Category: policy.CategoryTimeout, Code: "504", OutcomeUnknown: true}
			})
			cfg := outbox.ProcessorConfig{Transports: map[string]outbox.Transport{orders: g}, AtMostOnce: map[string]bool{orders: once}}
			round := r.round(context.Background(), r.processor(db, cfg))
			wait(r, "a delivery", g.entered)
			r.endLeases()
			require.Equal(t, outbox.Summary{Claimed: 1, Failed: 1}, counts(r.processor(r.open(), cfg).ProcessOnce(t.Context())))
			before := r.record()
			faulty.set(writeRefused, nil)
			g.open()

			require.Equal(t, outbox.Summary{Claimed: 1, Lost: 1, LastError: string(passing)}, counts(wait(r, "the round", round)))
			require.Equal(t, before, r.record())
		})
	}
}
