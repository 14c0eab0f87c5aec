package transporttest

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/stretchr/testify/require"
)

const apiKey = "key-of-the-account"

var valid = outbox.Delivery{
	ID: 7, Topic: "push", Type: "order_shipped", Recipient: "ana@example.test", TenantID: "shop",
	Payload: json.RawMessage(`{"text":"your parcel","lines":["two left shoes"]}`), Headers: map[string]string{"lang": "en"},
	MessageID: "0190b5a4-7c1e-7d2a-8b00-1f2e3d4c5b6a", ProviderKey: "shop:order-7", Attempt: 1, MaxAttempts: 8,
}

// double is a provider inside this process.
type double struct {
	mu   sync.Mutex
	mode string
	keys []string
	gone chan struct{} // closed at the end of the test
}

var (
	errRefused = errors.New("refused")
	errBusy    = errors.New("busy")
)

// take is the provider's side of a call.
func (p *double) take(ctx context.Context, key string) (string, error) {
	p.mu.Lock()
	p.keys = append(p.keys, key)
	mode := p.mode
	p.mu.Unlock()
	switch mode {
	case "refuse":
		return "", errRefused
	case "fail":
		return "", errBusy
	case "hang":
		<-ctx.Done()
		return "", ctx.Err()
	default:
		return "id-" + key, nil
	}
}

func (p *double) set(mode string) func() {
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.mode = mode
	}
}

func (p *double) provider() *Provider {
	return &Provider{
		Accept: p.set("accept"), Refuse: p.set("refuse"), Fail: p.set("fail"), Hang: p.set("hang"),
		Keys: func() []string {
			p.mu.Lock()
			defer p.mu.Unlock()
			return append([]string(nil), p.keys...)
		},
	}
}

// good is a transport without a flaw.
func good(ctx context.Context, p *double, d outbox.Delivery) (string, error) {
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	id, err := p.take(ctx, d.ProviderKey)
	return id, mark(ctx, err)
}

func mark(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errRefused):
		return &policy.Failure{Category: policy.CategoryRejected, Code: "refused", Err: err}
	case ctx.Err() != nil:
		return &policy.Failure{Category: policy.CategoryTimeout, Code: "timeout", OutcomeUnknown: true, Err: err}
	default:
		return &policy.Failure{Category: policy.CategoryNetwork, Code: "busy", Err: err}
	}
}

type sendFunc func(ctx context.Context, p *double, d outbox.Delivery) (string, error)

// caseOf makes a case of what a transport does; build is called for each new one.
func caseOf(build func(t *testing.T, p *double) sendFunc) Case {
	return Case{
		New: func(t *testing.T) (outbox.Transport, *Provider) {
			p := &double{gone: make(chan struct{})}
			t.Cleanup(func() { close(p.gone) })
			send := build(t, p)
			return outbox.TransportFunc(func(ctx context.Context, d outbox.Delivery) (string, error) {
				return send(ctx, p, d)
			}), p.provider()
		},
		Delivery: valid, Secrets: []string{apiKey},
	}
}

func always(send sendFunc) func(*testing.T, *double) sendFunc {
	return func(*testing.T, *double) sendFunc { return send }
}

func TestRunPassesAGoodTransport(t *testing.T) { Run(t, caseOf(always(good))) }

func TestRunTakesTheCaseAtItsWord(t *testing.T) {
	c := caseOf(always(func(ctx context.Context, p *double, d outbox.Delivery) (string, error) {
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		_, err := p.take(ctx, "")
		return "", mark(ctx, err)
	}))
	inner := c.New
	c.New = func(t *testing.T) (outbox.Transport, *Provider) {
		transport, p := inner(t)
		p.Refuse, p.Hang = nil, nil
		return transport, p
	}
	c.NoID, c.NoKey, c.NoRefusal, c.NoHang = true, true, true, true
	Run(t, c)
}

func TestProblem(t *testing.T) {
	sound := caseOf(always(good))
	require.Empty(t, sound.problem())
	require.Contains(t, Case{Delivery: valid}.problem(), "New")
	require.Contains(t, Case{New: sound.New}.problem(), "ProviderKey")
}

func TestTextsOfADelivery(t *testing.T) {
	require.ElementsMatch(t, []string{"ana@example.test", "your parcel", "two left shoes"}, texts(valid))
	require.Empty(t, texts(outbox.Delivery{Payload: json.RawMessage(`{`), Recipient: "ab"}))
}

func TestSayingsReadTheWholeTree(t *testing.T) {
	deep := errors.Join(errors.New("left"), &policy.Failure{Err: errors.New("right")})
	require.Contains(t, sayings(&policy.Failure{Err: deep}), "left")
	require.Contains(t, sayings(&policy.Failure{Err: deep}), "right")
	require.Empty(t, sayings(nil))
}

func TestPollGivesUp(t *testing.T) {
	defer func(d time.Duration) { patience = d }(patience)
	patience = time.Millisecond
	require.False(t, poll(func() bool { return false }))
	require.True(t, poll(func() bool { return true }))
}
