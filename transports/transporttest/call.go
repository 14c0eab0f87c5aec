package transporttest

import (
	"context"
	"fmt"
	"runtime/debug"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
)

// Prompt is within which a call must return once its context has ended. The processor gives up a transport soon after.
const Prompt = 100 * time.Millisecond

const (
	usual = 20 * time.Second // the context of a call that is expected to be answered
	tries = 3                // what a busy machine may delay is measured so often, and the best counts
)

// patience is how long a call is waited for after the end of its context, and anything else that should be at once.
var patience = 10 * time.Second

// answer is what came of a call.
type answer struct {
	id    string
	err   error
	late  time.Duration // since the context ended, zero if it had not
	ended bool          // whether the context had ended
}

// call calls the transport once, in a goroutine of its own so that one that never returns ends the test instead of
// hanging it. A panic fails the test.
func call(ctx context.Context, t *testing.T, transport outbox.Transport, d outbox.Delivery) answer {
	t.Helper()
	type result struct {
		id    string
		err   error
		panic string
	}
	done := make(chan result, 1)
	go func() {
		var r result
		defer func() {
			if v := recover(); v != nil {
				r.panic = fmt.Sprintf("%v\n%s", v, debug.Stack())
			}
			done <- r
		}()
		r.id, r.err = transport.Send(ctx, d)
	}()
	var a answer
	var r result
	select {
	case r = <-done:
	case <-ctx.Done():
		ended := time.Now()
		select {
		case r = <-done:
			a.late, a.ended = time.Since(ended), true
		case <-time.After(patience):
			t.Fatalf("Send has not returned %v after its context ended", patience)
		}
	}
	if r.panic != "" {
		t.Fatalf("Send panicked: %s", r.panic)
	}
	a.id, a.err = r.id, r.err
	return a
}

// send calls the transport with all the time it may need.
func send(t *testing.T, transport outbox.Transport, d outbox.Delivery) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), usual)
	defer cancel()
	a := call(ctx, t, transport, d)
	if a.ended {
		t.Fatalf("Send has not returned within %v", usual)
	}
	return a
}

// sendAccepted calls the transport for a delivery that the provider takes.
func sendAccepted(t *testing.T, transport outbox.Transport, d outbox.Delivery) answer {
	t.Helper()
	a := send(t, transport, d)
	if a.err != nil {
		t.Fatalf("the provider accepts, but Send gives: %v", a.err)
	}
	return a
}

// another gives a delivery of another message, the n-th after d.
func another(d outbox.Delivery, n int) outbox.Delivery {
	d.ID += int64(n)
	d.MessageID = fmt.Sprintf("0190b5a4-7c1e-7d2a-9f00-%012x", n)
	d.ProviderKey = fmt.Sprintf("tenant:other-key-%d", n)
	return d
}

// poll asks until it is so, for as long as patience lasts.
func poll(so func() bool) bool {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); !so(); <-tick.C {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}
