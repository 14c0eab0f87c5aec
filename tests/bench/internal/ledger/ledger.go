// Package ledger counts handled messages in a file that all processes of a measurement map into their memory. Handlers
// pay one or two atomic additions for it, so that counting costs next to nothing beside any contender.
package ledger

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// Tenths is how many marks of progress a ledger keeps.
const Tenths = 10

// The words at the head of the file; behind them come three words for each message.
const (
	handled  = iota // messages handled for the first time
	repeated        // and those handled again
	strange         // and numbers that nobody enqueued
	marks           // when each tenth was handled, from here on
	header   = marks + Tenths
)

const wordSize = 8

// Ledger is one mapped file. Messages are numbered from 0.
type Ledger struct {
	memory []byte
	words  []atomic.Int64
	size   int
}

// Create makes the file for so many messages.
func Create(path string, size int) (*Ledger, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	defer f.Close()
	if err := f.Truncate(wordSize * int64(header+3*size)); err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	return mapped(f)
}

// Open maps the file that another process made.
func Open(path string) (*Ledger, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	defer f.Close()
	return mapped(f)
}

func mapped(f *os.File) (*Ledger, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	memory, err := syscall.Mmap(int(f.Fd()), 0, int(info.Size()), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("ledger: map %s: %w", f.Name(), err)
	}
	// Atomic operations on shared memory are as good between processes as between goroutines.
	words := unsafe.Slice((*atomic.Int64)(unsafe.Pointer(unsafe.SliceData(memory))), len(memory)/wordSize)
	return &Ledger{memory: memory, words: words, size: (len(words) - header) / 3}, nil
}

// Close unmaps the file. No handler may run any more.
func (l *Ledger) Close() error { return syscall.Munmap(l.memory) }

func (l *Ledger) seen(n int) *atomic.Int64      { return &l.words[header+n] }
func (l *Ledger) committed(n int) *atomic.Int64 { return &l.words[header+l.size+n] }
func (l *Ledger) started(n int) *atomic.Int64   { return &l.words[header+2*l.size+n] }

// Handle notes that message n was handled.
func (l *Ledger) Handle(n int) {
	if n < 0 || n >= l.size {
		l.words[strange].Add(1)
		return
	}
	if l.seen(n).Add(1) > 1 {
		l.words[repeated].Add(1)
		return
	}
	count, tenth := l.words[handled].Add(1), int64(max(l.size/Tenths, 1))
	if mark := count/tenth - 1; count%tenth == 0 && mark < Tenths {
		l.words[marks+mark].Store(time.Now().UnixNano())
	}
}

// Start notes when message n reached its handler; the first time counts.
func (l *Ledger) Start(n int) {
	if n >= 0 && n < l.size {
		l.started(n).CompareAndSwap(0, time.Now().UnixNano())
	}
}

// Commit notes when the transaction of message n was known to have committed.
func (l *Ledger) Commit(n int) { l.committed(n).Store(time.Now().UnixNano()) }

// Wait returns when so many messages have been handled, and reports false when ctx ended before that.
func (l *Ledger) Wait(ctx context.Context, count int) bool {
	const look = 2 * time.Millisecond // half a thousandth of a core
	tick := time.NewTicker(look)
	defer tick.Stop()
	for l.Handled() < count {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// Handled is how many messages were handled at least once.
func (l *Ledger) Handled() int { return int(l.words[handled].Load()) }

// Mark is when the given tenth of all messages was handled, counted from 1.
func (l *Ledger) Mark(tenth int) time.Time { return time.Unix(0, l.words[marks+tenth-1].Load()) }

// Check says what is wrong with the deliveries. A complete ledger has every message; one that was cut off may lack
// some, but has none twice either.
func (l *Ledger) Check(complete bool) error {
	var problems []error
	if n := l.words[repeated].Load(); n > 0 {
		problems = append(problems, fmt.Errorf("%d deliveries repeated a message, such as number %d", n, l.find(2)))
	}
	if n := l.words[strange].Load(); n > 0 {
		problems = append(problems, fmt.Errorf("%d deliveries were of no message that was enqueued", n))
	}
	if missing := l.size - l.Handled(); complete && missing > 0 {
		problems = append(problems, fmt.Errorf("%d of %d messages were not delivered, such as number %d", missing, l.size, l.find(0)))
	}
	return errors.Join(problems...)
}

// find gives a message that was seen so often or, from 2 on, more often.
func (l *Ledger) find(times int64) int {
	for n := range l.size {
		if seen := l.seen(n).Load(); seen == times || times > 1 && seen > times {
			return n
		}
	}
	return -1
}

// Latencies gives the time from commit to handler of every message that has both. A handler may start before the
// committing process has heard of its own commit: that counts as no time.
func (l *Ledger) Latencies() []time.Duration {
	var latencies []time.Duration
	for n := range l.size {
		committed, started := l.committed(n).Load(), l.started(n).Load()
		if committed != 0 && started != 0 {
			latencies = append(latencies, time.Duration(max(started-committed, 0)))
		}
	}
	return latencies
}
