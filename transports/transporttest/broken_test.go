package transporttest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// broken is a transport with one flaw, and what of the contract has to fail for it.
type broken struct {
	name  string
	build func(t *testing.T, p *double) sendFunc
	fails []string
}

// after makes a flawed transport out of what the good one answers.
func after(change func(ctx context.Context, d outbox.Delivery, id string, err error) (string, error)) func(*testing.T, *double) sendFunc {
	return always(func(ctx context.Context, p *double, d outbox.Delivery) (string, error) {
		id, err := good(ctx, p, d)
		return change(ctx, d, id, err)
	})
}

// refusing makes a flawed transport out of what the good one says of a refusal.
func refusing(change func(d outbox.Delivery, f policy.Failure) error) func(*testing.T, *double) sendFunc {
	return after(func(_ context.Context, d outbox.Delivery, id string, err error) (string, error) {
		if f, ok := policy.AsFailure(err); ok && f.Code == "refused" {
			return "", change(d, f)
		}
		return id, err
	})
}

// keyed makes a flawed transport that hands over another key than the provider key.
func keyed(key func(d outbox.Delivery) string) func(*testing.T, *double) sendFunc {
	return always(func(ctx context.Context, p *double, d outbox.Delivery) (string, error) {
		d.ProviderKey = key(d)
		id, err := good(ctx, p, d)
		if err == nil {
			id = "id"
		}
		return id, err
	})
}

var answering = []broken{
	{"gives no id", after(func(_ context.Context, _ outbox.Delivery, _ string, err error) (string, error) { return "", err }), []string{"success"}},
	{"asks twice", always(func(ctx context.Context, p *double, d outbox.Delivery) (string, error) {
		if id, err := good(ctx, p, d); err != nil {
			return id, err
		}
		return good(ctx, p, d)
	}), []string{"success", "ended", "concurrent"}},
	{"ignores an ended context", always(func(ctx context.Context, p *double, d outbox.Delivery) (string, error) {
		if _, err := p.take(ctx, d.ProviderKey); ctx.Err() != nil || err != nil {
			return "", mark(ctx, cmpErr(err, ctx.Err()))
		}
		return "id", nil
	}), []string{"ended"}},
	{"takes an ended context for a refusal", after(func(ctx context.Context, _ outbox.Delivery, id string, err error) (string, error) {
		if errors.Is(err, context.Canceled) {
			err = mark(ctx, errRefused)
		}
		return id, err
	}), []string{"ended", "hang"}},
	{"swallows an ended context", after(func(ctx context.Context, _ outbox.Delivery, id string, err error) (string, error) {
		if ctx.Err() != nil {
			err = nil
		}
		return id, err
	}), []string{"ended", "hang"}},
	{"marks nothing", after(func(ctx context.Context, _ outbox.Delivery, id string, err error) (string, error) {
		if err != nil && ctx.Err() == nil {
			err = errors.New("something")
		}
		return id, err
	}), []string{"permanent", "transient"}},
	{"takes a refusal for a failure", refusing(func(_ outbox.Delivery, f policy.Failure) error { f.Category = policy.CategoryNetwork; return f }), []string{"permanent"}},
	{"gives no code", refusing(func(_ outbox.Delivery, f policy.Failure) error { f.Code = ""; return f }), []string{"permanent"}},
	{"gives a code of its own each time", refusing(func(_ outbox.Delivery, f policy.Failure) error {
		f.Code = fmt.Sprint(counter.Add(1))
		return f
	}), []string{"permanent"}},
	{"takes a failure for a refusal", after(func(_ context.Context, _ outbox.Delivery, id string, err error) (string, error) {
		if f, ok := policy.AsFailure(err); ok && f.Code == "busy" {
			f.Class = policy.Permanent
			return "", f
		}
		return id, err
	}), []string{"transient"}},
	{"never recovers", func(*testing.T, *double) sendFunc {
		var failed atomic.Bool
		return func(ctx context.Context, p *double, d outbox.Delivery) (string, error) {
			if failed.Load() {
				return "", mark(ctx, errBusy)
			}
			id, err := good(ctx, p, d)
			failed.Store(err != nil && ctx.Err() == nil)
			return id, err
		}
	}, []string{"permanent", "transient", "key"}},
}

var counter atomic.Int64

func cmpErr(first, second error) error {
	if first != nil {
		return first
	}
	return second
}

var behaving = []broken{
	{"is deaf for a while", after(func(ctx context.Context, _ outbox.Delivery, id string, err error) (string, error) {
		if errors.Is(err, context.DeadlineExceeded) {
			<-time.After(3 * Prompt)
		}
		return id, err
	}), []string{"hang"}},
	{"never returns", after(func(_ context.Context, _ outbox.Delivery, id string, err error) (string, error) {
		if errors.Is(err, context.DeadlineExceeded) {
			select {}
		}
		return id, err
	}), []string{"hang", "goroutines", "private"}},
	{"is sure of what it cannot know", after(func(_ context.Context, _ outbox.Delivery, id string, err error) (string, error) {
		if f, ok := policy.AsFailure(err); ok {
			f.OutcomeUnknown, f.Err = false, nil
			err = f
		}
		return id, err
	}), []string{"hang"}},
	{"serves one at a time", func(*testing.T, *double) sendFunc {
		var inside atomic.Int64
		return func(ctx context.Context, p *double, d outbox.Delivery) (string, error) {
			defer inside.Add(-1)
			if inside.Add(1) > 1 {
				return "", mark(ctx, errBusy)
			}
			<-time.After(time.Millisecond)
			return good(ctx, p, d)
		}
	}, []string{"concurrent"}},
	{"has a key for each attempt", keyed(func(d outbox.Delivery) string { return fmt.Sprint(d.ProviderKey, d.Attempt) }), []string{"key"}},
	{"has a key for each call", keyed(func(outbox.Delivery) string { return fmt.Sprint(counter.Add(1)) }), []string{"key"}},
	{"has one key", keyed(func(outbox.Delivery) string { return "key" }), []string{"concurrent", "key"}},
	{"has no key", keyed(func(outbox.Delivery) string { return "" }), []string{"concurrent", "key"}},
	{"has a key for each worker", func(*testing.T, *double) sendFunc {
		worker := fmt.Sprint(counter.Add(1))
		return func(ctx context.Context, p *double, d outbox.Delivery) (string, error) {
			d.ProviderKey += worker
			return good(ctx, p, d)
		}
	}, []string{"key"}},
	{"panics without a payload", after(func(_ context.Context, d outbox.Delivery, id string, err error) (string, error) {
		_ = d.Payload[0]
		return id, err
	}), []string{"garbage", "private"}},
	{"starts a goroutine that stays", always(func(ctx context.Context, p *double, d outbox.Delivery) (string, error) {
		go func() { select {} }()
		return good(ctx, p, d)
	}), []string{"goroutines"}},
	{"starts a goroutine that stays until the provider goes", always(func(ctx context.Context, p *double, d outbox.Delivery) (string, error) {
		id, err := good(ctx, p, d)
		if errors.Is(err, context.DeadlineExceeded) {
			go func() { <-p.gone }()
		}
		return id, err
	}), []string{"goroutines"}},
	{"has no end", func(*testing.T, *double) sendFunc {
		go func() { select {} }()
		return good
	}, []string{"goroutines"}},
}

var talking = []broken{
	{"quotes the payload", refusing(func(d outbox.Delivery, f policy.Failure) error {
		return fmt.Errorf("%w: %s", f, d.Payload)
	}), []string{"private"}},
	{"quotes a part of the payload in a cause", refusing(func(_ outbox.Delivery, f policy.Failure) error {
		f.Err = errors.Join(errors.New("no room for TWO left shoes"))
		return f
	}), []string{"private"}},
	{"quotes the recipient in an address", refusing(func(d outbox.Delivery, f policy.Failure) error {
		f.Err = &url.Error{Op: "Post", URL: "https://x.test/?to=" + url.QueryEscape(d.Recipient), Err: errRefused}
		return f
	}), []string{"private"}},
	{"quotes the API key when cut off", after(func(_ context.Context, _ outbox.Delivery, id string, err error) (string, error) {
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("with %s: %w", apiKey, err)
		}
		return id, err
	}), []string{"private"}},
	{"uses the recipient as a code", refusing(func(d outbox.Delivery, f policy.Failure) error {
		f.Code = policy.Clean(d.Recipient, 64)
		return f
	}), []string{"private"}},
}

var allBroken = map[string][]broken{"answering": answering, "behaving": behaving, "talking": talking}

const childMark = "TRANSPORTTEST_BROKEN"

// TestBrokenChild runs the contract on the broken transports, in a process of its own since it has to fail.
func TestBrokenChild(t *testing.T) {
	defer func(d time.Duration) { patience = d }(patience)
	patience = 500 * time.Millisecond
	for _, b := range allBroken[os.Getenv(childMark)] { // none unless TestBroken runs it
		t.Run(b.name, func(t *testing.T) { Run(t, caseOf(b.build)) })
	}
}

// TestBroken sees each flaw found by the checks that are there for it, and by no others.
func TestBroken(t *testing.T) {
	for which, list := range allBroken {
		t.Run(which, func(t *testing.T) {
			t.Parallel() // most of the time the children wait
			child := exec.Command(os.Args[0], "-test.run=^TestBrokenChild$", "-test.count=1")
			child.Env = append(os.Environ(), childMark+"="+which)
			out, err := child.CombinedOutput()
			var exit *exec.ExitError
			require.ErrorAs(t, err, &exit, "the broken transports pass")
			failed := map[string][]string{}
			for _, m := range regexp.MustCompile(`--- FAIL: TestBrokenChild/([^/ ]+)/([^/ ]+) \(`).FindAllSubmatch(out, -1) {
				failed[string(m[1])] = append(failed[string(m[1])], string(m[2]))
			}
			for _, b := range list {
				assert.ElementsMatch(t, b.fails, failed[strings.ReplaceAll(b.name, " ", "_")], b.name)
			}
			if t.Failed() {
				t.Logf("%s", out)
			}
		})
	}
}
