package outboxtest

import (
	"context"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
)

// maxRounds ends a Drain whose messages never stop coming, as from a transport that enqueues.
const maxRounds = 1000

// Drain delivers what is due now, and what becomes due by it, through the given transports, and gives the counts of all
// rounds together. Retries wait for their time; see [Elapse]. With a plugin it drains that plugin's outbox. The test
// fails if the database refuses anything.
func Drain(t testing.TB, db *gorm.DB, transports map[string]outbox.Transport, plugin ...outbox.Plugin) outbox.Summary {
	t.Helper()
	p := chosen(db, plugin)
	processor, err := p.NewProcessor(db, outbox.ProcessorConfig{Transports: transports, Owner: "outboxtest"})
	require.NoError(t, err)
	var total outbox.Summary
	for range maxRounds {
		s := processor.ProcessOnce(context.Background())
		require.Zero(t, s.Errors, "the database refused something: %s", s.LastError)
		if s.Claimed == 0 {
			return total
		}
		add(&total, s)
	}
	require.FailNow(t, "the outbox does not run dry", "after %d rounds: %v", maxRounds, total)
	return total
}

func add(total *outbox.Summary, s outbox.Summary) {
	total.Claimed += s.Claimed
	total.Sent += s.Sent
	total.Retried += s.Retried
	total.Failed += s.Failed
	total.Discarded += s.Discarded
	total.Expired += s.Expired
	total.Lost += s.Lost
	total.Released += s.Released
}

// Elapse has d pass for the records that have not ended: due times, leases and expiries come that much nearer. A test
// of retries needs no waiting.
func Elapse(t testing.TB, db *gorm.DB, d time.Duration, plugin ...outbox.Plugin) {
	t.Helper()
	require.Positive(t, d, "time does not go backwards")
	p := chosen(db, plugin)
	records, err := readRecords(db, p)
	require.NoError(t, err)
	for _, r := range records {
		if r.Status.Terminal() {
			continue
		}
		times := map[string]any{"due_at": r.DueAt.Add(-d).UTC()}
		if r.LeasedUntil != nil {
			times["leased_until"] = r.LeasedUntil.Add(-d).UTC()
		}
		if r.ExpiresAt != nil {
			times["expires_at"] = r.ExpiresAt.Add(-d).UTC()
		}
		require.NoError(t, plain(db).Table(p.Table).Where("id = ?", r.ID).UpdateColumns(times).Error)
	}
}

// chosen is the plugin given, or the outbox that the package's functions mean.
func chosen(db *gorm.DB, plugin []outbox.Plugin) outbox.Plugin {
	if len(plugin) > 0 {
		return locate(db, plugin[0])
	}
	return locate(db, outbox.Plugin{})
}
