package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gorm-outbox/outbox"
)

func (t *tour) scheduled(ctx context.Context) error {
	rounds := make(chan outbox.Summary, 1000) // room for all the rounds of a scene: to report one never waits
	scheduler, err := schedule(ctx, t.worker, 100*time.Millisecond, func(s outbox.Summary) { rounds <- s })
	if err != nil {
		return err
	}
	say("scheduler", "calls ProcessOnce every 100 ms")
	sent, n, err := t.orderAndCount(ctx, rounds)
	if err := errors.Join(err, scheduler.Shutdown()); err != nil {
		return err
	}
	say("scheduler", "%d messages sent in %d rounds; shut down", sent, n)
	records, err := t.show(ctx)
	return errors.Join(err, same("records", states(records), "sent sent sent sent sent sent"))
}

// orderAndCount places three orders, and counts the rounds until their messages are sent.
func (t *tour) orderAndCount(ctx context.Context, rounds <-chan outbox.Summary) (sent, n int, err error) {
	for range 3 {
		order := Order{Tenant: "north", Customer: "ada@example.com", Product: "tea", Quantity: 1}
		if err := t.shop.Place(ctx, &order); err != nil {
			return 0, 0, err
		}
		say("app", "places order %d", order.ID)
		if err := pause(ctx, 150*time.Millisecond); err != nil {
			return 0, 0, err
		}
	}
	for sent < 6 {
		select {
		case s := <-rounds:
			sent += s.Sent
			n++
		case <-ctx.Done():
			return sent, n, fmt.Errorf("   %d of 6 messages sent in %d rounds: %w", sent, n, ctx.Err())
		}
	}
	return sent, n, nil
}

func (t *tour) run(ctx context.Context) error {
	stop := background(ctx, t.worker)
	defer stop()
	release := t.mail.Hold()
	defer release() // before stop, which waits for the mail

	say("processor", "Run is at work in the background")
	order := Order{Tenant: "north", Customer: "ada@example.com", Product: "tea", Quantity: 1}
	if err := t.shop.Place(ctx, &order); err != nil {
		return err
	}
	say("app", "places order %d", order.ID)
	if err := t.untilInside(ctx); err != nil {
		return err
	}
	inside, err := t.show(ctx)
	waited, stopErr := t.stopInside(ctx, stop, release)
	after, showErr := t.show(ctx)
	err = errors.Join(err, stopErr, showErr,
		same("records when the context ended", states(inside), "sent processing"),
		same("Run waited for the mail", waited, true),
		same("records", states(after), "sent sent"),
	)
	if err == nil {
		say("processor", "Run has returned: the mail was finished and recorded, nothing is left claimed")
	}
	return err
}

// untilInside waits until the mail is at the server, and the event is done with.
func (t *tour) untilInside(ctx context.Context) error {
	select {
	case <-t.mail.Held:
	case <-ctx.Done():
		return fmt.Errorf("   waited for the mail: %w", ctx.Err())
	}
	for sent := int64(0); sent == 0; {
		query := t.records(ctx).Where("id > ? AND status = ?", t.since, outbox.StatusSent)
		if err := errors.Join(query.Count(&sent).Error, pause(ctx, 10*time.Millisecond)); err != nil {
			return fmt.Errorf("   waited for the event: %w", err)
		}
	}
	return nil
}

// stopInside stops Run while the mail waits for the server's yes, has the server say it after a moment, and reports
// whether Run had waited.
func (t *tour) stopInside(ctx context.Context, stop func() error, release func()) (waited bool, err error) {
	say("app", "ends Run's context while the mail server has yet to say that it takes the mail")
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	select {
	case err := <-stopped:
		return false, err
	case <-time.After(300 * time.Millisecond):
	case <-ctx.Done():
		return false, ctx.Err()
	}
	say("smtp", "says so 300 ms later")
	release()
	return true, <-stopped
}
