package outbox

import (
	"context"
	"fmt"
	"hash/fnv"
	"strconv"
	"sync"
	"time"

	"gorm.io/gorm"
)

// Listener hears when messages are enqueued elsewhere, so that Run need not wait for its next poll. Missing a call
// costs one PollInterval and never a message. The package pgwake has one for PostgreSQL.
type Listener interface {
	// Listen calls heard once as soon as it is listening, since what happened before went unheard, and then whenever
	// something is announced on the channel. It returns when ctx ends, or with the error that ended it; Run logs that
	// and calls Listen again after a pause.
	Listen(ctx context.Context, channel string, heard func()) error
}

// How announcements are spaced. A message is announced a moment after it was enqueued: by the time that a worker has
// heard of it and looks, its transaction has mostly committed. Announcements are far apart in a busy process, where workers are awake anyway.
const (
	announceAfter  = 250 * time.Microsecond
	announceEvery  = 5 * time.Millisecond
	announceWithin = time.Second // for the statement; a pool without a free connection must not pile them up
)

// How a woken Run looks for the message that it was woken for, which may be committed a little later: again and again
// after pauses that double up to the PollInterval.
const firstLook = 150 * time.Microsecond

// maxListenPause is the longest Run waits before it calls Listen again.
const maxListenPause = time.Minute

// bell wakes the processors of this process, and announces messages to those of others. It keeps nothing running: a
// timer is set only while an announcement is due.
type bell struct {
	mu    sync.Mutex
	set   bool      // an announcement is due
	busy  bool      // one is being made
	again bool      // another became due meanwhile
	rang  time.Time // when the last one was made
	awake sync.Map  // *Processor → struct{}, while it is in Run
}

// ring arranges for an announcement of what tx has enqueued. It happens outside tx: a NOTIFY inside a transaction
// makes its commit wait for every other one that does the same, and the business pays.
func (s *store) ring(tx *gorm.DB) {
	b := &s.bell
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.set {
		return
	}
	b.set = true
	after := announceAfter
	if time.Since(b.rang) < announceEvery {
		after = announceEvery
	}
	pool := tx.Config.ConnPool // of the database, also inside a transaction
	h := tx.Session(&gorm.Session{NewDB: true, Context: context.Background()})
	time.AfterFunc(after, func() { s.announce(h, pool) })
}

func (s *store) announce(h *gorm.DB, pool gorm.ConnPool) {
	s.bell.awake.Range(func(p, _ any) bool {
		p.(*Processor).Wake()
		return true
	})
	b := &s.bell
	b.mu.Lock()
	defer b.mu.Unlock()
	b.set, b.rang = false, time.Now()
	if b.busy { // on a pool without a free connection they would pile up
		b.again = true
		return
	}
	b.busy = true
	for b.again = true; b.again; {
		b.again = false
		b.mu.Unlock()
		s.sendNotify(h, pool)
		b.mu.Lock()
	}
	b.busy = false
}

// sendNotify announces to other processes, where the engine can.
func (s *store) sendNotify(h *gorm.DB, pool gorm.ConnPool) {
	if s.notify == "" || inTransaction(pool) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), announceWithin)
	defer cancel()
	db := session(ctx, h)
	db.Statement.ConnPool = unwrapPrepared(pool)
	db.Exec(s.notify, s.channel()) // whether it fails or not, the next poll finds the message
}

// channel is the name under which the outbox's messages are announced: PostgreSQL takes up to 63 bytes.
func (s *store) channel() string {
	name := s.Plugin.Name()
	if len(name) <= 63 {
		return name
	}
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(name))
	return "outbox:" + strconv.FormatUint(sum.Sum64(), 16)
}

// Wake makes Run look for due messages at once, and once more after short pauses, as Plugin.WakeUp does. For apps that
// know better than the clock, and for tests.
func (p *Processor) Wake() { tell(p.woken) } // if there is a signal, it is about to look already

// listen keeps the configured Listener listening until ctx ends.
func (p *Processor) listen(ctx context.Context) {
	for wait := p.cfg.PollInterval; ctx.Err() == nil; wait = min(2*wait, maxListenPause) {
		began := time.Now()
		err := p.listenOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		p.cfg.Logger.Warn("outbox: not listening, polling instead", "table", p.store.Table, "error", errorCode(err))
		if time.Since(began) > maxListenPause {
			wait = p.cfg.PollInterval
		}
		pause(ctx, wait)
	}
}

// listenOnce calls the Listener, whose panic is an error like any other.
func (p *Processor) listenOnce(ctx context.Context) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("the listener panicked with a %T", v)
		}
	}()
	return p.cfg.Listener.Listen(ctx, p.store.channel(), p.Wake)
}

// rest waits until the next look: for the given pause, or until woken, yet never so shortly that announcements of many
// processes make a worker spin. It gives the pause after that.
func (p *Processor) rest(ctx context.Context, wait time.Duration) time.Duration {
	pause(ctx, min(firstLook, wait))
	timer := time.NewTimer(wait - min(firstLook, wait))
	defer timer.Stop()
	select {
	case <-p.woken:
		return firstLook
	case <-timer.C:
		return min(2*wait, p.cfg.PollInterval)
	case <-ctx.Done():
		return wait
	}
}
