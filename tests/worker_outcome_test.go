package tests

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/stretchr/testify/require"
)

func TestC14_MessagesThatFailTogetherComeBackApart(t *testing.T) {
	t.Parallel()
	const n, delay = 1000, time.Minute
	r := newRig(t)
	r.enqueue(n, outbox.Message{})
	p := r.processor(r.open(), outbox.ProcessorConfig{
		BatchSize: n, Concurrency: 50, Backoff: policy.Backoff{Base: delay},
		Transports: only(func(context.Context, outbox.Delivery) (string, error) { return "", errors.New("503") }),
	})

	require.Equal(t, outbox.Summary{Claimed: n, Retried: n}, counts(p.ProcessOnce(t.Context())))

	var earliest, latest time.Time
	distinct, seconds := map[time.Time]bool{}, map[int64]int{}
	for _, record := range r.records() {
		require.InDelta(t, delay.Seconds(), record.DueAt.Sub(record.UpdatedAt).Seconds(), 0.2*delay.Seconds()+0.001)
		if earliest.IsZero() || record.DueAt.Before(earliest) {
			earliest = record.DueAt
		}
		if record.DueAt.After(latest) {
			latest = record.DueAt
		}
		distinct[record.DueAt] = true
		seconds[record.DueAt.Unix()]++
	}
	require.Greater(t, latest.Sub(earliest), delay*3/10)
	require.Greater(t, len(distinct), 500)
	for second, messages := range seconds {
		require.LessOrEqual(t, messages, n/10, "come back in second %d", second)
	}
}

func TestC15_APermanentErrorIsNotRetried(t *testing.T) {
	t.Parallel()
	refusal := policy.Failure{Category: policy.CategoryTemplate, Code: "132001", Err: errors.New("for ana@example.test")}
	for name, err := range map[string]error{
		"pointer":      &refusal,
		"value":        refusal,
		"wrapped":      fmt.Errorf("send: %w", &refusal),
		"joined":       errors.Join(errors.New("close failed"), refusal),
		"deep":         fmt.Errorf("a: %w", errors.Join(errors.New("b"), fmt.Errorf("c: %w", &refusal))),
		"by its class": policy.Failure{Category: policy.CategoryTemplate, Code: "132001", Class: policy.Permanent},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.enqueue(1, outbox.Message{})
			p := r.processor(r.open(), outbox.ProcessorConfig{
				Transports: only(func(context.Context, outbox.Delivery) (string, error) { return "", err }),
			})

			require.Equal(t, outbox.Summary{Claimed: 1, Discarded: 1}, p.ProcessOnce(t.Context()))

			record := r.record()
			require.Equal(t, outbox.StatusDiscarded, record.Status)
			require.Equal(t, 1, record.Attempts)
			require.Equal(t, "template", *record.LastErrorCategory)
			require.Equal(t, "132001", *record.LastErrorCode)
			require.NotNil(t, record.DeadAt)
			require.Nil(t, record.SentAt)
			require.Nil(t, record.LeaseToken)
			require.Equal(t, outbox.Summary{}, p.ProcessOnce(t.Context()))
		})
	}
}

func TestC15_AnyOtherErrorIsRetriedUntilTheAttemptsAreSpent(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueue(1, outbox.Message{MaxAttempts: 3})
	var attempts []int
	p := r.processor(r.open(), outbox.ProcessorConfig{
		Backoff: policy.Backoff{Base: 300 * time.Millisecond},
		Transports: only(func(_ context.Context, d outbox.Delivery) (string, error) {
			attempts = append(attempts, d.Attempt)
			return "", errors.New("connection reset")
		}),
	})
	for n := 1; n <= 2; n++ {
		require.Equal(t, outbox.Summary{Claimed: 1, Retried: 1}, p.ProcessOnce(t.Context()))
		record := r.record()
		delay := 0.3 * float64(n)
		require.InDelta(t, delay, record.DueAt.Sub(record.UpdatedAt).Seconds(), 0.2*delay+0.001)
		require.Equal(t, outbox.StatusPending, record.Status)
		require.Equal(t, n, record.Attempts)
		require.Equal(t, outbox.Summary{}, p.ProcessOnce(t.Context()), "not before its time")
		r.await("it is due again", func() bool { return r.count("due_at <= statement_timestamp()") == 1 })
	}

	require.Equal(t, outbox.Summary{Claimed: 1, Failed: 1}, p.ProcessOnce(t.Context()))

	record := r.record()
	require.Equal(t, []int{1, 2, 3}, attempts)
	require.Equal(t, outbox.StatusFailed, record.Status)
	require.Equal(t, 3, record.Attempts)
	require.Equal(t, "unknown", *record.LastErrorCategory)
	require.NotNil(t, record.DeadAt)
}

// panickyError is an error whose every method panics.
type panickyError struct{}

func (panickyError) Error() string   { panic("Error") }
func (panickyError) Is(error) bool   { panic("Is") }
func (panickyError) As(any) bool     { panic("As") }
func (panickyError) Unwrap() []error { panic("Unwrap") }

func TestC16_AnErrorThatCannotBeStoredIsRecordedAllTheSame(t *testing.T) {
	t.Parallel()
	huge := strings.Repeat("ñ", 5<<19)
	var typedNil *policy.Failure
	hostile := []error{
		errors.New("a\x00b"), errors.New("\xe9\xff"), errors.New(huge), panickyError{}, typedNil,
		fmt.Errorf("wrapped: %w", panickyError{}), errors.Join(panickyError{}),
		policy.Failure{Category: "a\x00b", Code: "a\x00b"},
		policy.Failure{Category: "\xe9\xff", Code: "\xe9\xff\xed\xa0\x80"},
		policy.Failure{Category: policy.Category(huge), Code: huge},
		&policy.Failure{Category: policy.CategoryNetwork, Code: `"\u0000'); DROP TABLE outbox; --`},
		&policy.Failure{Category: policy.CategoryNetwork, RetryAfter: 1<<63 - 1},
	}
	r := newRig(t)
	r.enqueue(len(hostile)+3, outbox.Message{})
	var calls atomic.Int64
	p := r.processor(r.open(), outbox.ProcessorConfig{Concurrency: 1, Transports: only(
		func(context.Context, outbox.Delivery) (string, error) {
			if n := calls.Add(1) - 1; n < int64(len(hostile)) {
				return "", hostile[n]
			}
			return []string{"id\x00", "\xe9", huge}[calls.Load()-1-int64(len(hostile))], nil
		},
	)})

	s := p.ProcessOnce(t.Context())

	require.Equal(t, outbox.Summary{Claimed: len(hostile) + 3, Retried: len(hostile), Sent: 3}, counts(s))
	for i, record := range r.records() {
		require.Equal(t, 1, record.Attempts)
		if i >= len(hostile) {
			require.Equal(t, outbox.StatusSent, record.Status)
			require.LessOrEqual(t, utf8.RuneCountInString(*record.ExternalID), 255)
			continue
		}
		require.Equal(t, outbox.StatusPending, record.Status)
		require.NotEmpty(t, *record.LastErrorCategory, "error %d", i)
		require.LessOrEqual(t, utf8.RuneCountInString(*record.LastErrorCategory), 64)
		if record.LastErrorCode != nil {
			require.LessOrEqual(t, utf8.RuneCountInString(*record.LastErrorCode), 64)
		}
		require.Greater(t, record.DueAt.Sub(record.UpdatedAt), 20*time.Second, "error %d: a next time is set", i)
		require.Nil(t, record.LeaseToken)
	}
}

// revivals send dead messages round again.
var revivals = map[string]func(r *rig) int64{
	"by SQL": func(r *rig) int64 {
		return r.db.Exec(`UPDATE outbox SET status = 'pending', attempts = 0, due_at = statement_timestamp(), dead_at = NULL
			WHERE dead_at IS NOT NULL`).RowsAffected
	},
	"by Redrive": func(r *rig) int64 {
		n, err := outbox.Redrive(r.db, outbox.Filter{Topic: orders})
		require.NoError(r, err)
		return n
	},
}

func TestC17_ADeadMessageSentRoundAgainHasAllItsAttempts(t *testing.T) {
	t.Parallel()
	for name, revive := range revivals {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			receipts := r.enqueue(1, outbox.Message{MaxAttempts: 3})
			heal := false
			var attempts []int
			p := r.processor(r.open(), outbox.ProcessorConfig{Transports: only(func(_ context.Context, d outbox.Delivery) (string, error) {
				attempts = append(attempts, d.Attempt)
				require.Equal(t, receipts[0].MessageID, d.ProviderKey, "the provider key outlives it")
				if heal && d.Attempt == 3 {
					return "late", nil
				}
				return "", errors.New("down")
			})})
			fail := func() {
				for range 3 {
					r.makeDue()
					p.ProcessOnce(t.Context())
				}
			}
			fail()
			require.Equal(t, outbox.StatusFailed, r.record().Status)

			require.EqualValues(t, 1, revive(r))
			require.Equal(t, 1, r.count("due_at <= statement_timestamp() AND lease_token IS NULL AND lease_owner IS NULL AND leased_until IS NULL"))
			heal = true
			fail()

			record := r.record()
			require.Equal(t, []int{1, 2, 3, 1, 2, 3}, attempts)
			require.Equal(t, outbox.StatusSent, record.Status)
			require.Equal(t, 3, record.Attempts)
			require.Equal(t, "late", *record.ExternalID)
			require.Nil(t, record.DeadAt)
		})
	}
}

func TestC18_FailuresAtTheHeadStarveNobody(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	bad := r.enqueue(100, outbox.Message{Type: "bad"})
	good := r.enqueue(5, outbox.Message{Type: "good"})
	j := newJournal(t)
	statements := &tape{}
	p := r.processor(r.open(statements.record), outbox.ProcessorConfig{
		BatchSize: 10, PollInterval: 100 * time.Millisecond,
		Transports: map[string]outbox.Transport{orders: j.transport("worker", func(_ context.Context, d outbox.Delivery) (string, error) {
			if d.Type == "bad" {
				return "", errors.New("always")
			}
			return "", nil
		})},
	})
	sent := 0
	for range 12 {
		sent += p.ProcessOnce(t.Context()).Sent
	}
	require.Equal(t, 5, sent, "within 12 rounds")
	j.requireOnceEach(t, append(bad, good...))
	require.Equal(t, outbox.Summary{}, p.ProcessOnce(t.Context()))

	statements.all()
	stop := r.start(p)
	pass(time.Second)
	stop()
	j.requireOnceEach(t, append(bad, good...)) // still: none was called again in its first backoff
	asked := len(statements.all())
	require.LessOrEqual(t, asked, 13, "claims of an idle Run in ten poll intervals")
	require.GreaterOrEqual(t, asked, 2)
}

var panics = map[string]outbox.TransportFunc{
	"with an error": func(context.Context, outbox.Delivery) (string, error) { panic(errors.New("secret")) },
	"with a string": func(context.Context, outbox.Delivery) (string, error) { panic("secret") },
	"nil map": func(_ context.Context, d outbox.Delivery) (string, error) {
		d.Headers["secret"] = "1" // a message without headers has no map
		return "", nil
	},
	"nil pointer": func(context.Context, outbox.Delivery) (string, error) { var d *outbox.Delivery; return d.Type, nil },
	"with nil":    func(context.Context, outbox.Delivery) (string, error) { panic(nil) },
	"Goexit":      func(context.Context, outbox.Delivery) (string, error) { runtime.Goexit(); return "", nil },
}

func TestC24_APanicIsAFailedAttemptOfItsMessageOnly(t *testing.T) { // not parallel: it counts goroutines
	r := newRig(t)
	transports := map[string]outbox.Transport{orders: outbox.TransportFunc(accept)}
	for name, f := range panics {
		transports[name] = f
	}
	var seen atomic.Int64
	p := r.processor(r.open(), outbox.ProcessorConfig{
		Transports: transports, PollInterval: 20 * time.Millisecond, Backoff: policy.Backoff{Base: time.Millisecond},
		OnAttempt: func(_ context.Context, a outbox.Attempt) {
			if seen.Add(1); a.Status != outbox.StatusSent && (a.Err == nil || a.Err.Error() == "") {
				panic("an attempt failed without an error")
			}
			panic("metrics are down")
		},
	})
	enqueue := func() {
		for name := range panics {
			r.enqueue(1, outbox.Message{Topic: name, MaxAttempts: 3})
		}
		r.enqueue(20, outbox.Message{})
	}
	enqueue()
	require.Equal(t, outbox.Summary{Claimed: 26, Retried: 6, Sent: 20}, p.ProcessOnce(t.Context()))
	require.EqualValues(t, 26, seen.Load())
	for _, record := range r.records() {
		if record.Topic != orders {
			require.Equal(t, "panic", *record.LastErrorCategory)
			require.NotEmpty(t, *record.LastErrorCode)
			require.NotContains(t, *record.LastErrorCode, "secret")
			require.Equal(t, 1, record.Attempts)
		}
	}

	before := runtime.NumGoroutine()
	stop := r.start(p)
	enqueue()
	r.await("the loop goes on", func() bool { return r.count("status = 'sent'") == 40 && r.count("status = 'failed'") == 12 })
	stop()
	r.await("the goroutines are gone", func() bool { return runtime.NumGoroutine() <= before })
	require.Equal(t, 12, r.count("attempts = 3 AND last_error_category = 'panic'"))
}

// refusals have the database refuse the recording of one message: an app's own rules on the table, or their faults.
var refusals = map[string]string{
	"a check, 23514": `ALTER TABLE outbox ADD CONSTRAINT no_third CHECK (external_id <> 'third')`,
	"a trigger's RAISE with a class 23 code": `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN IF NEW.external_id = 'third' THEN RAISE EXCEPTION 'no' USING ERRCODE = 'check_violation'; END IF; RETURN NEW; END $$;
		CREATE TRIGGER refuse BEFORE UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION refuse()`,
	"a trigger's plain RAISE, P0001": `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN IF NEW.external_id = 'third' THEN RAISE EXCEPTION 'no'; END IF; RETURN NEW; END $$;
		CREATE TRIGGER refuse BEFORE UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION refuse()`,
	"a trigger that fails, 42P01": `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN IF NEW.external_id = 'third' THEN DELETE FROM not_there; END IF; RETURN NEW; END $$;
		CREATE TRIGGER refuse BEFORE UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION refuse()`,
}

func TestARefusedOutcomeTakesNoOtherWithIt(t *testing.T) {
	t.Parallel()
	for name, ddl := range refusals {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.exec(ddl)
			r.enqueue(20, outbox.Message{})
			g := newGate(t, func(_ context.Context, d outbox.Delivery) (string, error) {
				return map[bool]string{true: "third", false: "fine"}[d.ID == 3], nil
			})
			p := r.processor(r.open(), outbox.ProcessorConfig{
				Transports: map[string]outbox.Transport{orders: g}, Lease: shortLease, Timeout: shortLease / 2,
			})

			round := r.round(t.Context(), p)
			for range 20 {
				wait(r, "a delivery", g.entered)
			}
			g.open() // all at once: the outcomes are written together
			s := wait(r, "the round", round)

			require.Equal(t, 20, s.Claimed)
			require.Equal(t, 19, s.Sent)
			require.Equal(t, 1, s.Errors)
			require.NotEmpty(t, s.LastError)
			require.Equal(t, 19, r.count("status = 'sent' AND attempts = 1 AND external_id = 'fine'"))
			require.Equal(t, 1, r.count("id = 3 AND status = 'processing'"))
		})
	}
}

// Where sent records are deleted, outcomes are written by two statements. If the second is refused, what the first did
// is done all the same.
func TestARefusedOutcomeMakesNoDeletionLookLost(t *testing.T) {
	t.Parallel()
	r := newRigOn(t, cluster, outbox.Plugin{DeleteSent: true})
	r.exec("ALTER TABLE outbox ADD CONSTRAINT no_third CHECK (last_error_code <> 'third')")
	r.enqueue(20, outbox.Message{})
	g := newGate(t, func(_ context.Context, d outbox.Delivery) (string, error) {
		if d.ID == 3 {
			return "", policy.Failure{Category: policy.CategoryRejected, Code: "third"}
		}
		return "", nil
	})
	round := r.round(t.Context(), r.processor(r.open(), outbox.ProcessorConfig{Transports: map[string]outbox.Transport{orders: g}}))
	for range 20 {
		wait(r, "a delivery", g.entered)
	}
	g.open()

	s := wait(r, "the round", round)

	require.Equal(t, outbox.Summary{Claimed: 20, Sent: 19, Errors: 1, LastError: "23514"}, s)
	require.EqualValues(t, 3, r.record().ID, "the others are gone")
}
