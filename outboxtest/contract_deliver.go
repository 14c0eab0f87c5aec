package outboxtest

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
)

var deliverChecks = []check{
	{"gives the whole message", checkDelivery},
	{"gives the provider a key of its own", checkProviderKeys},
	{"says the same on every attempt", checkDeliveryRepeated},
	{"gives typed handlers their payload", checkHandle},
	{"keeps to its concurrency", checkConcurrency},
	{"shares the table between workers", checkWorkers},
	{"overlaps rounds of one processor", checkOverlap},
	{"reports attempts", checkOnAttempt},
	{"is not changed by its transport", checkDeliveryIsCopy},
	{"does nothing without time", checkEndedContext},
	{"can forget what is sent", checkDeleteSent},
}

func checkDelivery(t *testing.T, db *gorm.DB) {
	install(t, db, outbox.Plugin{Headers: func(context.Context) map[string]string {
		return map[string]string{"trace": "t-1", "lang": "en"}
	}})
	m := outbox.Message{
		Topic: topic, Type: "order_confirmation", Recipient: "ana@example.test", TenantID: "t1", IdempotencyKey: "order-7",
		Payload: map[string]any{"order": 7}, Headers: map[string]string{"lang": "es"}, MaxAttempts: 4,
	}
	receipt := enqueue(t, db, m)[0]
	rec := NewRecorder(Accept("provider-1"))
	requireSummary(t, outbox.Summary{Claimed: 1, Sent: 1}, once(t, db, configure(rec)))

	d := rec.Deliveries()[0]
	r := record(t, db, receipt.ID)
	require.JSONEq(t, `{"order":7}`, string(d.Payload))
	require.True(t, d.EnqueuedAt.Equal(r.CreatedAt))
	d.Payload, d.EnqueuedAt = nil, time.Time{}
	require.Equal(t, outbox.Delivery{
		ID: receipt.ID, TenantID: "t1", Topic: topic, Type: "order_confirmation", Recipient: "ana@example.test",
		Headers: map[string]string{"trace": "t-1", "lang": "es"}, MessageID: receipt.MessageID, ProviderKey: "t1:order-7",
		Attempt: 1, MaxAttempts: 4,
	}, d)
	requireSound(t, r)
	require.Equal(t, outbox.StatusSent, r.Status)
	require.Equal(t, "provider-1", text(r.ExternalID))
	require.Equal(t, 1, r.Attempts)

	requireSummary(t, outbox.Summary{}, once(t, db, configure(rec)))
	require.Equal(t, 1, rec.Count(), "what is sent is sent")
}

func checkProviderKeys(t *testing.T, db *gorm.DB) {
	install(t, db)
	long := strings.Repeat("k", 200)
	const none, hashed = "the message id", "a hash"
	cases := []struct{ tenant, key, want string }{
		{"", "", none},
		{"t1", "", none},
		{"t1", "order-7", "t1:order-7"},
		{"", "order-7", ":order-7"},
		{"a:b", "c", "a%3Ab:c"},
		{"a", "b:c", "a:b:c"},
		{"a%3Ab", "c", "a%253Ab:c"},
		{"t1", "order 7", hashed},
		{"t1", "pedido-ñ", hashed},
		{"t1", long, "t1:" + long},
		{strings.Repeat("t", 55), long, strings.Repeat("t", 55) + ":" + long},
		{strings.Repeat("t", 56), long, hashed},
		{strings.Repeat(":", 100), "k", hashed},
	}
	var ms []outbox.Message
	for _, c := range cases {
		ms = append(ms, outbox.Message{Topic: topic, TenantID: c.tenant, IdempotencyKey: c.key})
	}
	receipts := enqueue(t, db, ms...)
	rec := NewRecorder()
	cfg := configure(rec)
	cfg.Concurrency = 1
	once(t, db, cfg)
	seen := map[string]bool{}
	for i, d := range rec.Deliveries() {
		require.Regexp(t, `^[!-~]{1,256}$`, d.ProviderKey)
		require.False(t, seen[d.ProviderKey])
		seen[d.ProviderKey] = true
		switch want := cases[i].want; want {
		case none:
			require.Equal(t, receipts[i].MessageID, d.ProviderKey)
		case hashed:
			require.Regexp(t, `^[0-9a-f]{64}$`, d.ProviderKey)
		default:
			require.Equal(t, want, d.ProviderKey)
		}
	}
	require.Len(t, seen, len(cases))
}

func checkDeliveryRepeated(t *testing.T, db *gorm.DB) {
	install(t, db)
	enqueue(t, db, mail("bare"), keyed("clave 7", "keyed"))
	rec := NewRecorder()
	for _, kind := range []string{"bare", "keyed"} {
		rec.For(OfType(kind), Fail(errContract), Panic("x"), Hang())
	}
	for attempt := 1; attempt <= 4; attempt++ {
		cfg := configure(rec) // another worker each time
		cfg.Timeout = time.Second
		once(t, db, cfg)
		change(t, db, dueNow)
	}
	attempts := map[string]int{}
	first := map[string]outbox.Delivery{}
	for _, d := range rec.Deliveries() {
		attempts[d.Type]++
		require.Equal(t, attempts[d.Type], d.Attempt)
		if d.Attempt == 1 {
			first[d.Type] = d
		}
		before := d.Attempt > 2
		require.Equal(t, before, !d.UnknownSince.IsZero(), "unknown from the panic on")
		d.Attempt, d.UnknownSince = 1, time.Time{}
		require.Equal(t, first[d.Type], d, "the same but for the attempt")
	}
	require.Equal(t, map[string]int{"bare": 4, "keyed": 4}, attempts)
}

func checkHandle(t *testing.T, db *gorm.DB) {
	install(t, db)
	type order struct{ ID int }
	var got []int
	handler := outbox.Handle(func(_ context.Context, o order, d outbox.Delivery) error {
		got = append(got, o.ID)
		return nil
	})
	receipts := enqueue(t, db, outbox.Message{Topic: topic, Payload: order{7}}, outbox.Message{Topic: topic, Payload: "no order"})
	requireSummary(t, outbox.Summary{Claimed: 2, Sent: 1, Discarded: 1}, once(t, db, configure(handler)))
	require.Equal(t, []int{7}, got)
	refused := record(t, db, receipts[1].ID)
	require.Equal(t, outbox.StatusDiscarded, refused.Status)
	require.Equal(t, string(policy.CategoryPayload), text(refused.LastErrorCategory))
}

func checkConcurrency(t *testing.T, db *gorm.DB) {
	install(t, db)
	enqueue(t, db, mails(12)...)
	var mu sync.Mutex
	inside, most := 0, 0
	full := make(chan struct{})
	transport := outbox.TransportFunc(func(ctx context.Context, _ outbox.Delivery) (string, error) {
		mu.Lock()
		inside++
		most = max(most, inside)
		if inside == 3 && most == 3 {
			select {
			case <-full:
			default:
				close(full)
			}
		}
		mu.Unlock()
		select {
		case <-full: // there have been three inside
		case <-ctx.Done():
		}
		mu.Lock()
		inside--
		mu.Unlock()
		return "", nil
	})
	cfg := configure(transport)
	cfg.Concurrency, cfg.Timeout = 3, 5*time.Second
	requireSummary(t, outbox.Summary{Claimed: 12, Sent: 12}, once(t, db, cfg))
	require.Equal(t, 3, most)
}

func checkWorkers(t *testing.T, db *gorm.DB) {
	install(t, db)
	enqueue(t, db, mails(200)...)
	rec := NewRecorder()
	cfg := configure(rec)
	cfg.BatchSize = 7
	requireEachOnce(t, rec, 200, func() *outbox.Processor { return newProcessor(t, db, cfg) })
}

func checkOverlap(t *testing.T, db *gorm.DB) {
	install(t, db)
	enqueue(t, db, mails(100)...)
	rec := NewRecorder()
	cfg := configure(rec)
	cfg.BatchSize = 7
	p := newProcessor(t, db, cfg)
	requireEachOnce(t, rec, 100, func() *outbox.Processor { return p })
}

// requireEachOnce runs rounds in four goroutines until nothing is left.
func requireEachOnce(t *testing.T, rec *Recorder, n int, processor func() *outbox.Processor) {
	t.Helper()
	var all sync.WaitGroup
	summaries := make(chan outbox.Summary, 4*(n+1))
	for i := 0; i < 4; i++ {
		p := processor()
		all.Add(1)
		go func() {
			defer all.Done()
			for round := 0; round <= n; round++ {
				s := p.ProcessOnce(context.Background())
				summaries <- s
				if s.Claimed == 0 {
					return
				}
			}
		}()
	}
	all.Wait()
	close(summaries)
	sent := 0
	for s := range summaries {
		requireClean(t, s)
		sent += s.Sent
	}
	require.Equal(t, n, sent)
	require.Equal(t, n, rec.Count())
	require.Equal(t, 1, rec.Concurrent())
	seen := map[int64]bool{}
	for _, d := range rec.Deliveries() {
		require.False(t, seen[d.ID], "delivered twice")
		seen[d.ID] = true
		require.Equal(t, 1, d.Attempt)
	}
}

func checkOnAttempt(t *testing.T, db *gorm.DB) {
	install(t, db)
	enqueue(t, db, mail("sent"), mail("retried"), mail("discarded"), mail("panic"))
	refusal := &policy.Failure{Category: policy.CategoryNumber, Code: "131026", Err: errContract}
	rec := NewRecorder().For(OfType("retried"), Fail(errContract)).For(OfType("discarded"), Fail(refusal)).
		For(OfType("panic"), Panic(errContract))
	var mu sync.Mutex
	attempts := map[string]outbox.Attempt{}
	cfg := configure(rec)
	cfg.OnAttempt = func(_ context.Context, a outbox.Attempt) {
		mu.Lock()
		attempts[a.Delivery.Type] = a
		mu.Unlock()
		panic("a hook's own fault")
	}
	requireSummary(t, outbox.Summary{Claimed: 4, Sent: 1, Retried: 2, Discarded: 1}, once(t, db, cfg))

	require.Equal(t, outbox.StatusSent, attempts["sent"].Status)
	require.NoError(t, attempts["sent"].Err)
	require.Equal(t, outbox.StatusPending, attempts["retried"].Status)
	require.ErrorIs(t, attempts["retried"].Err, errContract, "the raw error")
	require.InDelta(t, 10*time.Second, attempts["retried"].RetryIn, float64(time.Second))
	require.Equal(t, outbox.StatusDiscarded, attempts["discarded"].Status)
	require.Equal(t, policy.CategoryNumber, attempts["discarded"].Category)
	require.Equal(t, "131026", attempts["discarded"].Code)
	require.ErrorIs(t, attempts["panic"].Err, errContract, "what was panicked with")
	for _, d := range rec.Deliveries() {
		require.Equal(t, d, attempts[d.Type].Delivery)
	}
}

func checkDeliveryIsCopy(t *testing.T, db *gorm.DB) {
	install(t, db)
	m := mail("one")
	m.Headers = map[string]string{"lang": "es"}
	enqueue(t, db, m)
	spoil := Do(func(_ context.Context, d outbox.Delivery) (string, error) {
		d.Headers["lang"] = "spoilt"
		d.Payload[0] = '!'
		return "", errContract
	})
	var reported outbox.Delivery
	rec := NewRecorder(spoil)
	cfg := configure(rec)
	cfg.OnAttempt = func(_ context.Context, a outbox.Attempt) { reported = clone(a.Delivery) }
	once(t, db, cfg)
	change(t, db, dueNow)
	require.Equal(t, rec.Deliveries()[0], reported, "what the hook is told")
	once(t, db, cfg)
	require.Equal(t, rec.Deliveries()[0].Headers, rec.Deliveries()[1].Headers)
	require.Equal(t, rec.Deliveries()[0].Payload, rec.Deliveries()[1].Payload)
}

func checkEndedContext(t *testing.T, db *gorm.DB) {
	install(t, db)
	enqueue(t, db, mails(3)...)
	before := records(t, db)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	rec := NewRecorder()
	p := newProcessor(t, db, configure(rec))
	requireSummary(t, outbox.Summary{}, p.ProcessOnce(ctx))
	require.NoError(t, p.Run(ctx))
	require.Zero(t, rec.Count())
	require.Equal(t, before, records(t, db))
}

func checkDeleteSent(t *testing.T, db *gorm.DB) {
	install(t, db, outbox.Plugin{DeleteSent: true})
	receipts := enqueue(t, db, mail("sent"), mail("retried"), mail("discarded"), keyed("k", "sent"))
	rec := NewRecorder().For(OfType("retried"), Fail(errContract)).For(OfType("discarded"), Refuse("rejected", ""))
	requireSummary(t, outbox.Summary{Claimed: 4, Sent: 2, Retried: 1, Discarded: 1}, once(t, db, configure(rec)))
	left := records(t, db)
	require.Equal(t, []int64{receipts[1].ID, receipts[2].ID}, []int64{left[0].ID, left[1].ID})
	require.True(t, enqueue(t, db, keyed("k", "again"))[0].New, "the key went with its record")
}
