package transporttest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
)

func checkSuccess(t *testing.T, c Case) {
	transport, p := c.open(t)
	a := sendAccepted(t, transport, c.Delivery)
	if c.NoID != (a.id == "") {
		t.Errorf("the id is %q, but Case.NoID is %v", a.id, c.NoID)
	}
	if n := len(p.Keys()); n != 1 {
		t.Errorf("one call has become %d requests", n)
	}
}

// checkEnded proves that nothing was sent by sending something afterwards, which is then all that has arrived.
func checkEnded(t *testing.T, c Case) {
	transport, p := c.open(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	best := patience
	for range tries {
		began := time.Now()
		a := call(ctx, t, transport, c.Delivery)
		best = min(best, time.Since(began))
		if a.err == nil {
			t.Fatal("the context has ended, but Send gives no error")
		}
		if policy.Classify(a.err) != policy.Transient {
			t.Errorf("that the context has ended is %s, must be transient", policy.Classify(a.err))
		}
	}
	if best > Prompt {
		t.Errorf("the context has ended, but Send took %v", best)
	}
	sendAccepted(t, transport, c.Delivery)
	if n := len(p.Keys()); n != 1 {
		t.Errorf("the provider was called %d times although the context had ended", n-1)
	}
}

func checkPermanent(t *testing.T, c Case) {
	transport, p := c.open(t)
	p.Refuse()
	checkMarked(t, transport, c.Delivery, policy.Permanent)
}

func checkTransient(t *testing.T, c Case) {
	transport, p := c.open(t)
	p.Fail()
	checkMarked(t, transport, c.Delivery, policy.Transient)
	p.Accept()
	recovered := poll(func() bool { return send(t, transport, c.Delivery).err == nil })
	if !recovered {
		t.Error("the provider accepts again, but Send goes on failing")
	}
}

// checkMarked checks a failure of the class: named, and named alike each time.
func checkMarked(t *testing.T, transport outbox.Transport, d outbox.Delivery, class policy.Class) {
	t.Helper()
	first := failure(t, send(t, transport, d).err, class)
	if again := failure(t, send(t, transport, d).err, class); again.Category != first.Category || again.Code != first.Code {
		t.Errorf("the same failure is %s/%s and then %s/%s", first.Category, first.Code, again.Category, again.Code)
	}
}

func failure(t *testing.T, err error, class policy.Class) policy.Failure {
	t.Helper()
	f, ok := policy.AsFailure(err)
	switch {
	case err == nil:
		t.Fatal("the provider does not accept, but Send gives no error")
	case !ok:
		t.Fatalf("the error holds no policy.Failure: %v", err)
	case policy.Classify(err) != class:
		t.Errorf("%v is %s, must be %s", err, policy.Classify(err), class)
	case f.Category == "" || f.Code == "":
		t.Errorf("%v needs a category and a code", err)
	case policy.Clean(f.Code, 64) != f.Code || policy.Clean(string(f.Category), 64) != string(f.Category):
		t.Errorf("%v: category and code must be printable and at most 64 characters", err)
	}
	return f
}

// checkHang ends contexts both ways, since clients tell them apart.
func checkHang(t *testing.T, c Case) {
	transport, p := c.open(t)
	p.Hang()
	for name, hang := range map[string]func(*testing.T, outbox.Transport, *Provider, outbox.Delivery) answer{
		"deadline": hangToDeadline, "cancelled": hangUntilCancelled,
	} {
		best := patience
		for range tries {
			reached := len(p.Keys())
			a := hang(t, transport, p, c.Delivery)
			best = min(best, a.late)
			checkUnanswered(t, a.err, len(p.Keys()) > reached)
		}
		if best > Prompt {
			t.Errorf("%s: Send returned %v after its context ended, must be within %v", name, best, Prompt)
		}
	}
}

// checkUnanswered checks an error for a provider that was not waited for. The processor itself makes an unknown
// outcome of the bare error of an ended context; a Failure has to say so.
func checkUnanswered(t *testing.T, err error, reached bool) {
	t.Helper()
	f, said := policy.AsFailure(err)
	switch {
	case err == nil:
		t.Error("the provider has not answered, but Send gives no error")
	case policy.Classify(err) != policy.Transient:
		t.Errorf("%v is %s, must be transient", err, policy.Classify(err))
	case reached && said && !f.OutcomeUnknown && !errors.Is(err, context.DeadlineExceeded):
		t.Errorf("%v: the provider may have accepted, so the outcome must be unknown", err)
	}
}

func hangToDeadline(t *testing.T, transport outbox.Transport, _ *Provider, d outbox.Delivery) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Prompt)
	defer cancel()
	return call(ctx, t, transport, d)
}

// hangUntilCancelled cancels when the provider has been reached, or after a while.
func hangUntilCancelled(t *testing.T, transport outbox.Transport, p *Provider, d outbox.Delivery) answer {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	before, stop := len(p.Keys()), make(chan struct{})
	var watcher sync.WaitGroup
	watcher.Add(1)
	go func() {
		defer watcher.Done()
		defer cancel()
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for end := time.Now().Add(3 * Prompt); len(p.Keys()) == before && time.Now().Before(end); {
			select {
			case <-tick.C:
			case <-stop:
				return
			}
		}
	}()
	defer watcher.Wait()
	defer close(stop)
	return call(ctx, t, transport, d)
}

// callers is how many call a transport at once.
const callers = 32

func checkConcurrent(t *testing.T, c Case) {
	transport, p := c.open(t)
	ctx, cancel := context.WithTimeout(context.Background(), usual)
	defer cancel()
	errs := make([]error, callers)
	var all sync.WaitGroup
	for i := range callers {
		all.Add(1)
		go func() {
			defer all.Done()
			_, errs[i] = transport.Send(ctx, another(c.Delivery, i))
		}()
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatalf("the provider accepts, but of %d concurrent calls some failed:\n%v", callers, err)
	}
	keys := p.Keys()
	if len(keys) != callers {
		t.Errorf("%d concurrent calls have become %d requests", callers, len(keys))
	}
	if slices.Sort(keys); !c.NoKey && len(slices.Compact(keys)) != callers {
		t.Errorf("%d messages were sent with fewer keys: one was sent as another", callers)
	}
}

// checkKey follows a message over attempts and workers.
func checkKey(t *testing.T, c Case) {
	var keys []string
	for range 2 {
		transport, p := c.open(t)
		d := c.Delivery
		p.Fail()
		send(t, transport, d)
		p.Accept()
		if !poll(func() bool { d.Attempt++; return send(t, transport, d).err == nil }) {
			t.Fatal("the provider accepts again, but Send goes on failing")
		}
		if keys = append(keys, p.Keys()...); len(keys) == 0 {
			t.Fatal("transporttest: Provider.Keys gives none although a message was accepted")
		}
		sendAccepted(t, transport, another(c.Delivery, 1))
		if all := p.Keys(); slices.Contains(keys, all[len(all)-1]) {
			t.Errorf("two messages have the same key, %q", keys[0])
		}
	}
	if slices.Sort(keys); keys[0] == "" || len(slices.Compact(keys)) != 1 {
		t.Errorf("the keys of one message are %q, must be the same on every attempt and not empty", slices.Compact(keys))
	}
}
