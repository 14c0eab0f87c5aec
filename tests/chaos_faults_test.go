package tests

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/gorm-outbox/outbox/tests/internal/chaos"
	"github.com/gorm-outbox/outbox/tests/internal/proxy"
)

// breakThings does what the schedule says, each fault at its time, and waits until all of them are over.
func (c *chaosRun) breakThings(ctx context.Context, faults []chaos.Fault) {
	var work sync.WaitGroup
	for _, f := range faults {
		c.until(ctx, f.At)
		work.Go(func() {
			if c.inject(f) {
				c.note(func() { c.injected[f.Kind]++ })
			}
		})
	}
	work.Wait()
}

// inject is one fault from its beginning to its end; false if it found nothing to hurt.
func (c *chaosRun) inject(f chaos.Fault) bool {
	if f.Kind == chaos.Crash || f.Kind == chaos.LoseCommit || f.Worker == chaos.Everybody {
		return c.injectEverywhere(f)
	}
	s := c.slots[f.Worker]
	began := time.Now()
	switch f.Kind {
	case chaos.Kill:
		s.kill()
		return true
	case chaos.Deploy:
		s.replace()
		return true
	case chaos.Stop:
		s.stopFor(f.For)
		return true
	case chaos.LoseClaim:
		return c.lose(s.proxy, f, fmt.Sprintf("w%d.", f.Worker))
	case chaos.LoseRecord:
		return c.lose(s.proxy, f, "record_id")
	case chaos.Terminate:
		defer c.outage(f.Worker, began)
		return c.terminateSessions(fmt.Sprintf("w%d.%%", f.Worker))
	case chaos.Cut:
		s.proxy.Cut()
	case chaos.Delay:
		s.proxy.Delay(time.Duration(20+f.For.Milliseconds()%80) * time.Millisecond)
		pass(f.For)
		s.proxy.Delay(0)
	case chaos.Refuse, chaos.Outage:
		s.proxy.Refuse(true)
		s.proxy.Cut()
		pass(f.For)
		s.proxy.Refuse(false)
	}
	c.outage(f.Worker, began)
	return true
}

// injectEverywhere is a fault that concerns all workers, or the producers.
func (c *chaosRun) injectEverywhere(f chaos.Fault) bool {
	if f.Kind == chaos.LoseCommit {
		return c.lose(c.door, f, "commit")
	}
	defer c.outage(chaos.Everybody, time.Now())
	if f.Kind == chaos.Terminate {
		return c.terminateSessions("%")
	}
	c.own.Crash()
	pass(f.For)
	if err := c.own.Restart(); err != nil {
		c.problem(err)
	}
	return true
}

// lose throws away the replies from the next request on that has the text in it, and then cuts the connections.
func (c *chaosRun) lose(p *proxy.Proxy, f chaos.Fault, text string) bool {
	const patience = 4 * time.Second
	fired := make(chan struct{})
	fire := sync.OnceFunc(func() {
		p.SwallowReplies(true)
		close(fired)
	})
	p.OnClient(func(chunk []byte) {
		if bytes.Contains(bytes.ToLower(chunk), []byte(text)) {
			fire()
		}
	})
	hit := true
	select {
	case <-fired:
	case <-time.After(patience):
		hit = false
		fire() // so that it does not come later
	}
	began := time.Now()
	if hit {
		pass(f.For)
	}
	p.OnClient(nil)
	p.SwallowReplies(false)
	p.Cut()
	if p != c.door {
		c.outage(f.Worker, began)
	}
	return hit
}

// terminateSessions ends the backends of the applications that are like the pattern.
func (c *chaosRun) terminateSessions(like string) bool {
	var ended int
	err := c.db.Raw(`SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
		WHERE application_name LIKE ? AND datname = current_database() AND pid <> pg_backend_pid()`, like).Scan(&ended).Error
	return err == nil && ended > 0 // the server may be down
}

// replace asks the worker of the slot to end, and starts another in its place.
func (s *chaosSlot) replace() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end()
	s.start()
}

// kill ends the worker of the slot in the middle of whatever it is about, and starts another in its place.
func (s *chaosSlot) kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	life := s.lives[len(s.lives)-1]
	life.Killed = time.Now()
	if err := life.cmd.Process.Kill(); err != nil {
		s.run.problem(fmt.Errorf("%s ended before it was killed: %w", life.Worker, err))
	}
	<-life.over
	life.Dead = time.Now()
	s.start()
}

// stopFor makes a zombie of the worker: it stands still for longer than its leases, and then goes on.
func (s *chaosSlot) stopFor(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	life := s.lives[len(s.lives)-1]
	from := time.Now()
	s.signal(life, syscall.SIGSTOP)
	pass(d)
	s.signal(life, syscall.SIGCONT)
	life.Stopped = append(life.Stopped, chaos.Span{Worker: life.Worker, From: from, To: time.Now()})
}

func (s *chaosSlot) signal(life *chaosLife, signal syscall.Signal) {
	if err := life.cmd.Process.Signal(signal); err != nil {
		s.run.problem(fmt.Errorf("%v to %s: %w", signal, life.Worker, err))
	}
}
