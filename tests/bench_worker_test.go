package tests

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/tests/internal/pgtest"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
)

// drained is how many messages a drain benchmark delivers.
const drained = 100_000

// durable starts a server that keeps its promises to the disk, as in production.
func durable(b *testing.B) *pgtest.Cluster {
	b.Helper()
	c, err := pgtest.Start(pgtest.Options{Durable: true, Settings: map[string]string{"shared_buffers": "512MB"}})
	require.NoError(b, err)
	b.Cleanup(c.Stop)
	return c
}

// BenchmarkDrain is the rate at which one worker delivers a backlog to a transport that costs nothing.
func BenchmarkDrain(b *testing.B) {
	c := durable(b)
	for _, batch := range []int{100, 1000} {
		b.Run(fmt.Sprint("batch=", batch), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				r := newRigOn(b, c, outbox.Plugin{})
				times := r.drain(b, batch)
				b.ReportMetric(rate(times), "msgs/s")
				r.reportHOT(b)
				b.StartTimer() // Loop wants it so
			}
		})
	}
}

// BenchmarkDrainUnderAnOldSnapshot is a drain while an open transaction keeps the database from cleaning up: its last
// tenth must not be much slower than its first.
func BenchmarkDrainUnderAnOldSnapshot(b *testing.B) {
	c := durable(b)
	for _, batch := range []int{100, 1000} {
		b.Run(fmt.Sprint("batch=", batch), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				r := newRigOn(b, c, outbox.Plugin{})
				release := r.holdSnapshot()
				times := r.drain(b, batch)
				release()
				first, last := rate(times[:drained/10]), rate(times[drained-drained/10:])
				b.ReportMetric(rate(times), "msgs/s")
				b.ReportMetric(first, "first-tenth-msgs/s")
				b.ReportMetric(last, "last-tenth-msgs/s")
				b.ReportMetric(last/first, "last/first")
				b.StartTimer()
			}
		})
	}
}

// drain has one worker deliver the backlog, under the timer, and gives when each delivery began.
func (r *rig) drain(b *testing.B, batch int) []time.Time {
	b.Helper()
	for range drained / 1000 {
		r.enqueue(1000, outbox.Message{
			Type: "order_confirmation", Recipient: "someone@example.test",
			Payload: map[string]any{"order": 7, "total": "12.50", "note": "as large as a small order, which is some 200 bytes of JSON"},
		})
	}
	r.exec("VACUUM (ANALYZE) outbox")
	r.exec("CHECKPOINT")
	var mu sync.Mutex
	times := make([]time.Time, 0, drained)
	all := make(chan struct{})
	p := r.processor(r.open(), outbox.ProcessorConfig{BatchSize: batch, Transports: only(
		func(context.Context, outbox.Delivery) (string, error) {
			mu.Lock()
			defer mu.Unlock()
			if times = append(times, time.Now()); len(times) == drained {
				close(all)
			}
			return "", nil
		},
	)})
	b.StartTimer()
	stop := r.start(p)
	select {
	case <-all:
	case <-time.After(10 * time.Minute):
		b.Fatal("not drained in 10 minutes")
	}
	stop() // with everything recorded
	b.StopTimer()
	require.Equal(b, drained, r.count("status = 'sent' AND attempts = 1 AND created_at > now() - interval '1 day'"))
	return times
}

// rate is how many of the deliveries began per second.
func rate(times []time.Time) float64 {
	return float64(len(times)-1) / times[len(times)-1].Sub(times[0]).Seconds()
}

// reportHOT tells how many of the updates were heap-only: of the claims, since no recording can be.
func (r *rig) reportHOT(b *testing.B) {
	b.Helper()
	var updates, hot float64
	require.NoError(b, r.db.Raw("SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'outbox'").Row().Scan(&updates, &hot))
	if updates > 0 { // the statistics of a backend may be a second late
		b.ReportMetric(100*hot/updates, "%HOT-of-all-updates")
	}
}

// BenchmarkEnqueueAll is a transaction that enqueues many messages.
func BenchmarkEnqueueAll(b *testing.B) {
	c := durable(b)
	for _, n := range []int{1, 100, 1000} {
		b.Run(fmt.Sprint("messages=", n), func(b *testing.B) {
			r := newRigOn(b, c, outbox.Plugin{})
			messages := make([]outbox.Message, n)
			for i := range messages {
				messages[i] = outbox.Message{
					Topic: orders, Type: "order_confirmation", Recipient: "someone@example.test",
					Payload: map[string]any{"order": i, "total": "12.50", "note": "as large as a small order, which is some 200 bytes of JSON"},
				}
			}
			for b.Loop() {
				if err := r.db.Transaction(func(tx *gorm.DB) error {
					_, err := outbox.EnqueueAll(tx, messages)
					return err
				}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportAllocs()
			b.ReportMetric(float64(n*b.N)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}

// BenchmarkClaimBehindMillions is the locking SELECT of a claim of 100 in a table of three million records, one million
// each due, due tomorrow and sent.
func BenchmarkClaimBehindMillions(b *testing.B) {
	const million = 1_000_000
	r := newRig(b)
	r.fill(orders, 20_000, "due")
	claim, record := r.capture()
	for _, kind := range []string{"sent", "future", "due"} {
		r.fill(orders, million, kind)
	}
	r.exec("VACUUM (ANALYZE) outbox")
	for _, planMode := range []string{"auto", "force_generic_plan"} {
		b.Run(planMode, func(b *testing.B) {
			for b.Loop() {
				buffers := claim.lockingBuffers(r, planMode)
				require.Less(b, buffers, claimBuffers)
				b.ReportMetric(float64(buffers), "buffers/claim")
				recording := record.explain(r, planMode)
				require.Nil(b, recording.find("Seq Scan"))
			}
		})
	}
}

// BenchmarkDrainBesideAPurge is a drain while a million old records are purged: the purge must leave the worker nine
// tenths of its rate.
func BenchmarkDrainBesideAPurge(b *testing.B) {
	c := durable(b)
	for b.Loop() {
		b.StopTimer()
		alone := rate(newRigOn(b, c, outbox.Plugin{}).drain(b, 1000))
		r := newRigOn(b, c, outbox.Plugin{})
		r.fillSent(1_000_000, "40 days")
		ctx, cancel := context.WithCancel(context.Background())
		purged := make(chan error, 1)
		go func() {
			_, err := outbox.Purge(r.open().WithContext(ctx), outbox.PurgeOptions{OlderThan: time.Hour})
			purged <- err
		}()
		beside := rate(r.drain(b, 1000))
		cancel()
		<-purged
		b.ReportMetric(beside, "msgs/s")
		b.ReportMetric(beside/alone, "beside/alone")
		b.StartTimer()
	}
}
