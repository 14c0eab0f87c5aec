package tests

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox/tests/internal/chaos"
	"github.com/stretchr/testify/require"
)

const (
	chaosProducers = 3
	chaosPace      = 125 // messages a second
)

// TestChaos has worker processes, producers and a database go through faults that really happen, and then holds every
// message's history against what the outbox promises. A run is made of its seed: CHAOS_SEED repeats one. It is as long
// as CHAOS_MESSAGES makes it, and is done CHAOS_ROUNDS times and for CHAOS_FOR at least, each time with the next seed,
// until one fails. CHAOS_LOG=1 shows the workers' logs.
func TestChaos(t *testing.T) {
	t.Parallel() // it mostly waits
	seed := uint64(chaosEnv(t, "CHAOS_SEED", int(rand.Uint32())))
	messages := chaosEnv(t, "CHAOS_MESSAGES", 2250)
	rounds := chaosEnv(t, "CHAOS_ROUNDS", 1)
	atLeast, err := time.ParseDuration("0" + os.Getenv("CHAOS_FOR"))
	require.NoError(t, err, "CHAOS_FOR")
	for began := time.Now(); rounds > 0 || time.Since(began) < atLeast; rounds-- {
		name := fmt.Sprintf("CHAOS_SEED=%d CHAOS_MESSAGES=%d", seed, messages)
		if !t.Run(name, func(t *testing.T) { chaosRound(t, seed, messages) }) {
			return
		}
		seed++
	}
}

func chaosEnv(t *testing.T, name string, otherwise int) int {
	text, given := os.LookupEnv(name)
	if !given || text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err, name)
	return n
}

func chaosRound(t *testing.T, seed uint64, messages int) {
	over := time.Duration(messages) * time.Second / chaosPace
	faults := chaos.Schedule(seed, len(chaosWorkers), int((over+chaos.Cycle-1)/chaos.Cycle))
	c := newChaos(t)
	c.play(seed, messages, over, faults)

	result := c.collect().Check()

	total, text := c.faults()
	t.Logf("seed %d, %v: %d messages of %d facts committed, %d rolled back; %d faults:%s\n%s", seed, time.Since(c.began).Round(time.Second),
		len(c.history.Records), len(c.history.Facts), len(c.history.RolledBack), total, text, result)
	if len(result.Violations) > 0 || len(c.problems) > 0 {
		for _, f := range faults {
			t.Log(f)
		}
	}
	require.Empty(t, c.problems)
	require.Empty(t, result.Violations)
	require.GreaterOrEqual(t, len(c.history.Records), messages*9/10)
	require.GreaterOrEqual(t, total, len(faults)*2/3, "faults that hurt")
}

// play is the run, until every message has ended.
func (c *chaosRun) play(seed uint64, messages int, over time.Duration, faults []chaos.Fault) {
	ctx, cancel := context.WithTimeout(c.Context(), over+2*workerPatience)
	defer cancel()
	db := c.open(through(c.door.Addr()), setting("application_name", producerName))
	c.began = time.Now()
	for _, s := range c.slots {
		s.start()
		c.Cleanup(func() { _ = s.lives[len(s.lives)-1].cmd.Process.Kill() }) // fails when it has ended as it should
	}
	var work sync.WaitGroup
	for n := range chaosProducers {
		work.Go(func() { c.produce(ctx, db, chaos.Blocks(seed, n, messages/chaosProducers+1), over) })
	}
	c.breakThings(ctx, faults)
	work.Wait()
	c.awaitEnd(ctx)
	for _, s := range c.slots {
		s.end()
	}
}

// awaitEnd waits until every message has ended and every transport has returned, or it has taken too long, which will
// show.
func (c *chaosRun) awaitEnd(ctx context.Context) {
	db := c.open()
	for ctx.Err() == nil {
		var left, open int
		err := db.Raw(`SELECT count(*) FROM outbox WHERE sent_at IS NULL AND dead_at IS NULL`).Scan(&left).Error
		for _, s := range c.slots {
			n, failed := c.sink.open(s.lives[len(s.lives)-1].Worker)
			if open += n; failed != nil {
				err = failed
			}
		}
		if err == nil && left == 0 && open == 0 {
			return
		}
		pass(50 * time.Millisecond)
	}
}
