package outboxtest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
)

var outcomeChecks = []check{
	{"is recorded, whatever it is", checkOutcomes},
	{"counts as many attempts as there may be", checkAttemptsExhausted},
	{"after failures can be success", checkSuccessAfterFailures},
	{"of a transport that ignores its context", checkDeaf},
	{"of many failures starves nobody", checkFailuresStarveNobody},
}

// outcome is what a transport does and what must become of the record.
type outcome struct {
	name        string
	result      Result
	attempts    int // that the message may have; zero: 3
	status      outbox.Status
	category    policy.Category
	code        string
	least, most time.Duration // pending: the wait
	external    string
}

// retried is a transient failure after whose first time the record waits as long as the backoff says.
func retried(name string, result Result, category policy.Category, code string) outcome {
	return outcome{
		name: name, result: result, status: outbox.StatusPending, category: category, code: code,
		least: 9 * time.Second, most: 11 * time.Second,
	}
}

// delayed is one with a wait of its own.
func delayed(name string, f policy.Failure, least, most time.Duration) outcome {
	o := retried(name, Fail(f), f.Category, f.Code)
	o.least, o.most = least, most
	return o
}

func discarded(name string, err error, category policy.Category, code string) outcome {
	return outcome{name: name, result: Fail(err), status: outbox.StatusDiscarded, category: category, code: code}
}

func exhausted(name string, result Result, category policy.Category, code string) outcome {
	return outcome{name: name, result: result, attempts: 1, status: outbox.StatusFailed, category: category, code: code}
}

func acceptances() []outcome {
	long := strings.Repeat("ñ", 300)
	return []outcome{
		{name: "accepted", result: Accept("provider-7"), status: outbox.StatusSent, external: "provider-7"},
		{name: "accepted without id", result: Accept(""), status: outbox.StatusSent},
		{name: "accepted on the last attempt", result: Accept("x"), attempts: 1, status: outbox.StatusSent, external: "x"},
		{name: "id of bytes", result: Accept("a\x00b\xffc\n"), status: outbox.StatusSent, external: "a?b?c?"},
		{name: "long id", result: Accept(long), status: outbox.StatusSent, external: long[:2*255]},
		{name: "no error, twice wrapped", result: Fail(nil), status: outbox.StatusSent},
	}
}

func failures() []outcome {
	rejected := policy.Failure{Category: policy.CategoryRejected, Code: "550"}
	network := policy.Failure{Category: policy.CategoryNetwork, Code: "502"}
	outcomes := []outcome{
		retried("plain error", Fail(errContract), policy.CategoryUnknown, ""),
		retried("context's error", Fail(context.Canceled), policy.CategoryUnknown, ""),
		retried("empty failure", Fail(policy.Failure{}), policy.CategoryUnknown, ""),
		retried("by value", Fail(network), policy.CategoryNetwork, "502"),
		retried("by pointer", Fail(&network), policy.CategoryNetwork, "502"),
		retried("own category", Fail(policy.Failure{Category: "moon_phase", Code: "x"}), "moon_phase", "x"),
		discarded("permanent by value", rejected, policy.CategoryRejected, "550"),
		discarded("permanent by pointer", &rejected, policy.CategoryRejected, "550"),
		discarded("permanent, wrapped", fmt.Errorf("send: %w", fmt.Errorf("smtp: %w", rejected)), policy.CategoryRejected, "550"),
		discarded("permanent, joined", errors.Join(errContract, &rejected), policy.CategoryRejected, "550"),
		discarded("class overrides category", policy.Failure{Category: policy.CategoryNetwork, Class: policy.Permanent}, policy.CategoryNetwork, ""),
		retried("category overridden", Fail(policy.Failure{Category: policy.CategoryRejected, Class: policy.Transient}), policy.CategoryRejected, ""),
		retried("an error that says ok", Fail(policy.Failure{Class: policy.OK}), policy.CategoryUnknown, ""),
		{name: "refused", result: Refuse("moon_phase", "x"), status: outbox.StatusDiscarded, category: "moon_phase", code: "x"},
		exhausted("last attempt", Fail(errContract), policy.CategoryUnknown, ""),
		exhausted("conflict on the last attempt", Fail(policy.Failure{Category: policy.CategoryIdempotencyConflict, Code: "409"}), policy.CategoryIdempotencyConflict, "409"),
		exhausted("panic on the last attempt", Panic("x"), policy.CategoryPanic, "string"),
	}
	last := discarded("permanent on the last attempt", rejected, policy.CategoryRejected, "550")
	last.attempts = 1
	outcomes = append(outcomes, last)
	for _, c := range policy.PermanentCategories() {
		outcomes = append(outcomes, discarded("category "+string(c), policy.Failure{Category: c, Code: "1"}, c, "1"))
	}
	for _, c := range policy.TransientCategories() {
		o := retried("category "+string(c), Fail(policy.Failure{Category: c, Code: "1"}), c, "1")
		if c == policy.CategoryIdempotencyConflict {
			o.least, o.most = time.Minute, time.Minute
		}
		outcomes = append(outcomes, o)
	}
	return outcomes
}

func waits() []outcome {
	const limited, conflict = policy.CategoryRateLimited, policy.CategoryIdempotencyConflict
	return []outcome{
		delayed("asked to wait", policy.Failure{Category: limited, RetryAfter: 5 * time.Minute}, 5*time.Minute, 5*time.Minute),
		delayed("asked to wait less", policy.Failure{Category: limited, RetryAfter: time.Second}, 9*time.Second, 11*time.Second),
		delayed("asked for the past", policy.Failure{Category: limited, RetryAfter: math.MinInt64}, 9*time.Second, 11*time.Second),
		delayed("asked for centuries", policy.Failure{Category: limited, RetryAfter: math.MaxInt64}, time.Hour, 366*24*time.Hour),
		delayed("conflict", policy.Failure{Category: conflict, Code: "409"}, time.Minute, time.Minute),
		delayed("conflict, asked to wait", policy.Failure{Category: conflict, RetryAfter: 2 * time.Minute}, 2*time.Minute, 2*time.Minute),
	}
}

// disasters are transports that do anything but answer, and answers that are made to do harm.
func disasters() []outcome {
	const panicked, timeout = policy.CategoryPanic, policy.CategoryTimeout
	writeToNil := Do(func(context.Context, outbox.Delivery) (string, error) {
		fill := func(m map[string]int) { m["x"] = 1 }
		fill(nil)
		return "", nil
	})
	// late answers when its context has ended.
	late := func(externalID string, answer func(cause error) error) Result {
		return Do(func(ctx context.Context, _ outbox.Delivery) (string, error) {
			<-ctx.Done()
			return externalID, answer(ctx.Err())
		})
	}
	lateFailure := func(category policy.Category, code string) Result {
		return late("", func(error) error { return policy.Failure{Category: category, Code: code} })
	}
	fault := late("", func(cause error) error { return policy.Failure{Category: policy.CategoryNetwork, Err: cause} })
	return []outcome{
		retried("panic with an error", Panic(errContract), panicked, "*errors.errorString"),
		retried("panic with a text", Panic("a\x00b"), panicked, "string"),
		retried("panic with nothing", Panic(nil), panicked, "*runtime.PanicNilError"),
		retried("write to a nil map", writeToNil, panicked, "runtime.plainError"),
		retried("exit", Exit(), panicked, "goexit"),
		retried("hang", Hang(), timeout, "timeout"),
		retried("hang, then say why", lateFailure(policy.CategoryNetwork, "504"), policy.CategoryNetwork, "504"),
		retried("hang, then call it a fault of the network", fault, timeout, "timeout"),
		{
			name: "hang, then refuse", result: lateFailure(policy.CategoryRejected, "550"),
			status: outbox.StatusDiscarded, category: policy.CategoryRejected, code: "550",
		},
		{name: "hang, then accept", result: late("late", func(error) error { return nil }), status: outbox.StatusSent, external: "late"},
		retried("text of bytes", Fail(errors.New("a\x00b\xff\xed\xa0\x80")), policy.CategoryUnknown, ""),
		retried("5 MB of text", Fail(errors.New(strings.Repeat("x", 5<<20))), policy.CategoryUnknown, ""),
		retried("code of bytes", Fail(policy.Failure{Category: "net\x00work\xff", Code: "a\x00b\xff\r\n\t"}), "net?work?", "a?b????"),
		retried("long code", Fail(policy.Failure{Category: policy.Category(strings.Repeat("ñ", 100)), Code: strings.Repeat("😀", 1<<20)}),
			policy.Category(strings.Repeat("ñ", 64)), strings.Repeat("😀", 64)),
		retried("Error that panics", Fail(hostile{}), policy.CategoryUnknown, ""),
		retried("Error that panics, wrapped", Fail(fmt.Errorf("send: %w", hostile{})), policy.CategoryUnknown, ""),
		retried("Unwrap that panics", Fail(hostileUnwrap{}), panicked, "string"),
		retried("As that panics", Fail(hostileAs{}), panicked, "string"),
		retried("nil failure", Fail((*policy.Failure)(nil)), policy.CategoryUnknown, ""),
	}
}

// hostile is an error whose text cannot be had.
type hostile struct{}

func (hostile) Error() string { panic("Error") }

// hostileUnwrap is an error whose cause cannot be had.
type hostileUnwrap struct{ hostile }

// Unwrap panics.
func (hostileUnwrap) Unwrap() error { panic("Unwrap") }

// hostileAs is an error that cannot be examined.
type hostileAs struct{ hostile }

// As panics.
func (hostileAs) As(any) bool { panic("As") }

func checkOutcomes(t *testing.T, db *gorm.DB) {
	install(t, db)
	var outcomes []outcome
	for _, group := range [][]outcome{acceptances(), failures(), waits(), disasters()} {
		outcomes = append(outcomes, group...)
	}
	rec := NewRecorder()
	var ms []outbox.Message
	want := outbox.Summary{Claimed: len(outcomes)}
	for _, o := range outcomes {
		m := mail(o.name)
		if m.MaxAttempts = o.attempts; o.attempts == 0 {
			m.MaxAttempts = 3
		}
		ms = append(ms, m)
		rec.For(OfType(o.name), o.result)
		*map[outbox.Status]*int{
			outbox.StatusSent: &want.Sent, outbox.StatusPending: &want.Retried,
			outbox.StatusDiscarded: &want.Discarded, outbox.StatusFailed: &want.Failed,
		}[o.status]++
	}
	receipts := enqueue(t, db, ms...)
	cfg := configure(rec)
	cfg.BatchSize, cfg.Concurrency, cfg.Timeout = len(outcomes), len(outcomes), time.Second
	requireSummary(t, want, once(t, db, cfg))
	for i, o := range outcomes {
		t.Run(o.name, func(t *testing.T) { o.require(t, record(t, db, receipts[i].ID)) })
	}
	requireSummary(t, outbox.Summary{}, once(t, db, cfg))
	require.Equal(t, len(outcomes), rec.Count())
}

func (o outcome) require(t *testing.T, r outbox.Record) {
	t.Helper()
	requireSound(t, r)
	require.Equal(t, o.status, r.Status)
	require.Equal(t, 1, r.Attempts)
	require.Equal(t, string(o.category), text(r.LastErrorCategory))
	require.Equal(t, o.code, text(r.LastErrorCode))
	require.Equal(t, o.external, text(r.ExternalID))
	if o.status != outbox.StatusPending {
		require.True(t, r.DueAt.Equal(r.CreatedAt), "a lease or an end moves no due time")
		return
	}
	// Both were written by one statement, so the database's clock read the same for both. Engines round.
	wait := r.DueAt.Sub(r.UpdatedAt)
	require.GreaterOrEqual(t, wait, o.least-2*time.Millisecond)
	require.LessOrEqual(t, wait, o.most+2*time.Millisecond)
}

func checkAttemptsExhausted(t *testing.T, db *gorm.DB) {
	install(t, db)
	m := mail("fails")
	m.MaxAttempts = 4
	id := enqueue(t, db, m)[0].ID
	rec := NewRecorder(Fail(errContract), Panic("x"), Fail(&policy.Failure{Category: "own", Code: "3"}), Fail(errContract))
	for attempt, wait := range []time.Duration{10 * time.Second, 30 * time.Second, 90 * time.Second, 0} {
		s := once(t, db, configure(rec))
		r := record(t, db, id)
		requireSound(t, r)
		require.Equal(t, attempt+1, r.Attempts)
		if wait == 0 {
			requireSummary(t, outbox.Summary{Claimed: 1, Failed: 1}, s)
			require.Equal(t, outbox.StatusFailed, r.Status)
			break
		}
		requireSummary(t, outbox.Summary{Claimed: 1, Retried: 1}, s)
		require.InDelta(t, wait, r.DueAt.Sub(r.UpdatedAt), float64(wait/10+2*time.Millisecond))
		requireSummary(t, outbox.Summary{}, once(t, db, configure(rec)))
		change(t, db, dueNow)
	}
	requireSummary(t, outbox.Summary{}, once(t, db, configure(rec)))
	require.Equal(t, 4, rec.Count())
}

func checkSuccessAfterFailures(t *testing.T, db *gorm.DB) {
	install(t, db)
	id := enqueue(t, db, mail("one"))[0].ID
	rec := NewRecorder(Fail(errContract), Fail(errContract), Accept("third"))
	for i := 0; i < 3; i++ {
		once(t, db, configure(rec))
		change(t, db, dueNow)
	}
	r := record(t, db, id)
	requireSound(t, r)
	require.Equal(t, outbox.StatusSent, r.Status)
	require.Equal(t, 3, r.Attempts)
	require.Equal(t, "third", text(r.ExternalID))
}

// checkDeaf: such a transport costs its attempt, not the round, and is never called a second time for a record that it
// is still busy with.
func checkDeaf(t *testing.T, db *gorm.DB) {
	install(t, db)
	before := workers()
	receipts := enqueue(t, db, mail("deaf"), mail("other"))
	until := make(chan struct{})
	leave := sync.OnceFunc(func() { close(until) })
	defer leave()
	rec := NewRecorder().For(OfType("deaf"), Deaf(until))
	cfg := configure(rec)
	cfg.Timeout = time.Second
	p := newProcessor(t, db, cfg)
	requireSummary(t, outbox.Summary{Claimed: 2, Sent: 1, Retried: 1}, p.ProcessOnce(context.Background()))
	retried("", Result{}, policy.CategoryTimeout, "timeout").require(t, record(t, db, receipts[0].ID))

	change(t, db, dueNow, receipts[0].ID)
	requireSummary(t, outbox.Summary{Claimed: 1, Retried: 1}, p.ProcessOnce(context.Background()))
	require.Equal(t, 2, rec.Count(), "it is still inside")
	r := record(t, db, receipts[0].ID)
	requireSound(t, r)
	require.Equal(t, 2, r.Attempts)
	require.Equal(t, string(policy.CategoryTimeout), text(r.LastErrorCategory))

	leave()
	requireNoWorkers(t, before)
	require.Equal(t, r, record(t, db, receipts[0].ID), "what it says too late does not count")
	change(t, db, dueNow, receipts[0].ID)
	requireSummary(t, outbox.Summary{Claimed: 1, Sent: 1}, p.ProcessOnce(context.Background()))
	require.Equal(t, 1, rec.Concurrent())
}

func checkFailuresStarveNobody(t *testing.T, db *gorm.DB) {
	install(t, db)
	enqueue(t, db, mails(50)...)
	enqueue(t, db, mail("good"), mail("good"), mail("good"))
	bad := func(d outbox.Delivery) bool { return d.Type != "good" }
	rec := NewRecorder()
	for i := 0; i < 60; i++ {
		rec.For(bad, Fail(errContract))
	}
	cfg := configure(rec)
	cfg.BatchSize = 10
	var sum outbox.Summary
	for round := 0; round < 6; round++ {
		s := once(t, db, cfg)
		sum.Claimed, sum.Sent, sum.Retried = sum.Claimed+s.Claimed, sum.Sent+s.Sent, sum.Retried+s.Retried
	}
	requireSummary(t, outbox.Summary{Claimed: 53, Sent: 3, Retried: 50}, sum)
}
