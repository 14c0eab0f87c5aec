package amqp

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	client "github.com/rabbitmq/amqp091-go"
)

const (
	handshakeLimit = 30 * time.Second // for a connection to open, where the attempt has no less time
	closeLimit     = 2 * time.Second  // for the broker to answer that a connection closes
)

// session is one connection and what works on it until it is gone. The client's calls do not end with a context: they
// wait for the broker, and a broker short of memory just stops reading. So a fixed number of workers makes them, each
// with a channel of its own, and an attempt waits for its worker only as long as its context lasts.
type session struct {
	conn    *client.Connection
	jobs    chan *job
	gone    chan *client.Error // closed when the connection is
	blocked atomic.Bool        // the broker takes no messages for now
	running sync.WaitGroup
}

// session gives the connection that is there, or opens one. One caller opens it, with the time of its attempt; the
// others wait.
func (t *Transport) session(ctx context.Context) (*session, error) {
	select {
	case t.dialing <- struct{}{}:
		defer func() { <-t.dialing }()
	case <-ctx.Done():
		return nil, unsent("no_connection")
	}
	switch {
	case t.closed.Load():
		return nil, network("closed")
	case t.current != nil && !t.current.conn.IsClosed():
		return t.current, nil
	case t.current != nil:
		t.current.close() // its workers end before others begin
	}
	conn, err := t.dial(ctx)
	if err != nil {
		return nil, dialFailure(ctx, err)
	}
	t.current = newSession(conn, t.cfg.Channels)
	return t.current, nil
}

// dial opens a connection, and gives up when ctx ends.
func (t *Transport) dial(ctx context.Context) (*client.Connection, error) {
	var raw net.Conn
	giveUp := func() bool { return true }
	conn, err := client.DialConfig(t.cfg.URL, client.Config{
		TLSClientConfig: t.cfg.TLS.Clone(), Properties: client.Table{"product": "gorm-outbox"},
		Dial: func(network, addr string) (net.Conn, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			raw = c
			giveUp = context.AfterFunc(ctx, func() { _ = c.Close() }) // ends the handshake
			return c, c.SetDeadline(time.Now().Add(handshakeLimit))
		},
	})
	if inTime := giveUp(); err == nil && inTime {
		return conn, nil
	}
	if raw != nil {
		_ = raw.Close()
	}
	if err == nil {
		err = ctx.Err()
	}
	return nil, err
}

func newSession(conn *client.Connection, channels int) *session {
	s := &session{conn: conn, jobs: make(chan *job), gone: conn.NotifyClose(make(chan *client.Error, 1))}
	blocked := conn.NotifyBlocked(make(chan client.Blocking, 1))
	s.running.Add(1 + channels)
	go func() {
		defer s.running.Done()
		for b := range blocked {
			s.blocked.Store(b.Active)
		}
	}()
	for range channels {
		go func() {
			defer s.running.Done()
			s.work()
		}()
	}
	return s
}

// close closes the connection and waits for the workers.
func (s *session) close() {
	_ = s.conn.CloseDeadline(time.Now().Add(closeLimit)) // closed is closed
	s.running.Wait()
}

// do hands the job to a worker and waits for what becomes of it.
func (s *session) do(j *job) error {
	if s.blocked.Load() {
		return network("blocked")
	}
	select {
	case s.jobs <- j:
	case <-s.gone:
		return network("disconnected")
	case <-j.ctx.Done():
		return unsent("busy")
	}
	select {
	case err := <-j.result:
		return err
	case <-j.ctx.Done():
		return unanswered(j.ctx)
	}
}

// channel is one of the broker's, used for one message at a time: a return names no message, so it must be the only
// one that it can be about.
type channel struct {
	*client.Channel
	returns chan client.Return
	closes  chan *client.Error
}

func (s *session) work() {
	var ch *channel
	for {
		select {
		case <-s.gone:
			return
		case j := <-s.jobs:
			ch = s.serve(ch, j)
		}
	}
}

// serve publishes a job on the channel, or on a new one, and gives the channel back if it can be used again.
func (s *session) serve(ch *channel, j *job) *channel {
	if ch == nil || ch.IsClosed() {
		var err error
		if ch, err = s.open(); err != nil {
			j.result <- channelFailure(err)
			return nil
		}
	}
	if j.ctx.Err() != nil { // nobody waits any more
		j.result <- unsent("busy")
		return ch
	}
	confirm, err := ch.PublishWithDeferredConfirm(j.to, j.key, true, false, j.msg)
	if err != nil {
		j.result <- publishFailure(err)
		return nil
	}
	select {
	case <-confirm.Done():
		j.result <- ch.verdict(confirm.Acked())
		return ch
	case <-j.ctx.Done(): // what the broker still says would be taken for an answer to the next
		_ = ch.Close()
		return nil
	}
}

func (s *session) open() (*channel, error) {
	raw, err := s.conn.Channel()
	if err != nil {
		return nil, err
	}
	ch := &channel{
		Channel: raw,
		returns: raw.NotifyReturn(make(chan client.Return, 1)),
		closes:  raw.NotifyClose(make(chan *client.Error, 1)),
	}
	return ch, raw.Confirm(false)
}

// verdict is what has become of a message after its confirmation. What the broker said before, that it returns the
// message or closes the channel, is there by now.
func (ch *channel) verdict(acked bool) error {
	select {
	case r, ok := <-ch.returns:
		if ok {
			return brokerFailure(int(r.ReplyCode))
		}
	default:
	}
	if acked {
		return nil
	}
	select {
	case e, ok := <-ch.closes:
		if ok && e != nil && e.Server {
			return brokerFailure(e.Code)
		}
		return unknown("disconnected")
	default:
		return unknown("nack")
	}
}
