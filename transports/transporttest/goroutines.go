package transporttest

import (
	"context"
	"runtime"
	"strings"
	"testing"

	"github.com/gorm-outbox/outbox"
)

// checkGoroutines looks twice: after many calls there may be no more goroutines than after a few, and after the end of
// the transport and its double there may be none.
func checkGoroutines(t *testing.T, c Case) {
	before := goroutines()
	t.Run("calls", func(t *testing.T) {
		transport, p := c.open(t)
		const warmUp, calls = 3, 12
		exercise(t, c, transport, p, warmUp)
		few := origins(goroutines())
		exercise(t, c, transport, p, calls)
		// A pool that grows by one is no leak. One for each of the calls is, also if only one way to end leaves it behind.
		var grown string
		settled := poll(func() bool {
			grown = ""
			for origin, n := range origins(goroutines()) {
				if n-few[origin] >= calls/2 {
					grown = origin
				}
			}
			return grown == ""
		})
		if !settled {
			t.Errorf("Send leaves goroutines behind: there are more and more that were\n%s", grown)
		}
	})
	var left string
	ended := poll(func() bool {
		left = ""
		for name, stack := range goroutines() {
			if _, old := before[name]; !old {
				left = stack
			}
		}
		return left == ""
	})
	if !ended {
		t.Errorf("a goroutine is left after the transport's end:\n%s", left)
	}
}

// exercise makes n calls of each kind.
func exercise(t *testing.T, c Case, transport outbox.Transport, p *Provider, n int) {
	t.Helper()
	kinds := []func(){p.Accept, p.Fail}
	if !c.NoRefusal {
		kinds = append(kinds, p.Refuse)
	}
	for _, behave := range kinds {
		behave()
		for range n {
			send(t, transport, c.Delivery)
		}
	}
	if c.NoHang {
		return
	}
	p.Hang()
	for range n {
		brief(t, transport, c.Delivery)
	}
}

// brief calls the transport with hardly any time.
func brief(t *testing.T, transport outbox.Transport, d outbox.Delivery) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Prompt/4)
	defer cancel()
	return call(ctx, t, transport, d)
}

// goroutines gives the stacks of all other goroutines by their names, which are never used twice.
func goroutines() map[string]string {
	stacks := make([]byte, 1<<20)
	n := runtime.Stack(stacks, true)
	for ; n == len(stacks); n = runtime.Stack(stacks, true) {
		stacks = make([]byte, 2*len(stacks))
	}
	found := map[string]string{}
	for i, stack := range strings.Split(string(stacks[:n]), "\n\n") {
		if i == 0 {
			continue // this one
		}
		name, _, _ := strings.Cut(stack, " [") // goroutine 7 [running]:
		found[name] = strings.TrimSpace(stack)
	}
	return found
}

// origins counts goroutines by where they were started.
func origins(stacks map[string]string) map[string]int {
	counted := map[string]int{}
	for _, stack := range stacks {
		_, origin, _ := strings.Cut(stack, "\ncreated by ")
		function, place, _ := strings.Cut(origin, " in goroutine ")
		_, place, _ = strings.Cut(place, "\n")
		counted[function+"\n"+place]++
	}
	return counted
}
