package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/gorm-outbox/outbox"
)

func (t *tour) crash(ctx context.Context) error {
	order, err := t.orderOf(ctx, "grace@example.com")
	if err != nil {
		return err
	}
	receipt, err := t.shop.Ship(ctx, order.ID, "P-4712")
	if err != nil {
		return err
	}
	say("app", "ships order %d: record %d", order.ID, receipt.ID)
	key, err := t.killWorker(ctx)
	if err != nil {
		return err
	}
	orphans, err := t.show(ctx)
	if err := errors.Join(err, same("records after the crash", states(orphans), "processing")); err != nil {
		return err
	}
	return t.reclaim(ctx, orphans[0], order, key)
}

// reclaim has a living worker ask until it is given the message of the dead one, and checks when and how that is.
func (t *tour) reclaim(ctx context.Context, orphan outbox.Record, order Order, key string) error {
	say("processor", "a living worker asks every 250 ms; up to %v until the lease ends …", lease)
	began := time.Now()
	empty, taken, err := t.takeOver(ctx)
	if err != nil {
		return err
	}
	say("processor", "%d rounds found nothing; the next, after %.1f s, reclaimed the message and sent it",
		empty, time.Since(began).Seconds())
	records, err := t.show(ctx)
	if err := errors.Join(err, same("records", states(records), "sent")); err != nil {
		return err
	}
	err = errors.Join(
		same("sent", taken.Sent, 1),
		same("some rounds found nothing", empty > 0, true),
		same("attempts", records[0].Attempts, 2),
		same("sent before the lease had ended", records[0].SentAt.Before(*orphan.LeasedUntil), false),
		same("requests at the provider", t.mail.Requests(key), 2),
		same("mails", t.mail.Count(fmt.Sprintf(subjects[typeShipped], order.ID)), 1),
	)
	if err == nil {
		say("provider", "got it twice, under one idempotency key, and sent one mail")
	}
	return err
}

// killWorker starts a worker in a process of its own, waits until its request has reached the provider, which gives no
// answer, and kills it. It gives the idempotency key of that request.
func (t *tour) killWorker(ctx context.Context) (key string, err error) {
	release := t.mail.Hold()
	defer release()
	program, err := os.Executable()
	if err != nil {
		return "", err
	}
	worker := exec.CommandContext(ctx, program, "-dsn", t.dsn, "-worker", t.mail.URL)
	worker.Stderr = os.Stderr
	if err := worker.Start(); err != nil {
		return "", err
	}
	say("worker", "process %d starts", worker.Process.Pid)
	ended := make(chan error, 1)
	go func() { ended <- worker.Wait() }()
	select {
	case key = <-t.mail.Held:
	case err := <-ended: // by itself, or killed because the context ended
		return "", fmt.Errorf("   the worker ended before it was killed: %w", errors.Join(err, ctx.Err()))
	}
	say("worker", "its request is at the provider, which has taken the mail but not answered; it is killed")
	if err := worker.Process.Kill(); err != nil {
		return "", err
	}
	return key, same("the worker ended well", <-ended == nil, false)
}

// takeOver makes rounds until one finds the message, and gives that one and how many found nothing.
func (t *tour) takeOver(ctx context.Context) (empty int, taken outbox.Summary, err error) {
	for ; ; empty++ {
		if taken = t.worker.ProcessOnce(ctx); taken.Claimed > 0 {
			return empty, taken, nil
		}
		if err := pause(ctx, 250*time.Millisecond); err != nil {
			return empty, taken, err
		}
	}
}

// deliverOnce is the worker that is killed: a process of its own, as on another machine. It only delivers e-mail.
func deliverOnce(ctx context.Context, dsn, mailURL string) (err error) {
	db, err := connect(dsn)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, disconnect(db)) }()
	if err := db.Use(plugin); err != nil {
		return err
	}
	config := workerConfig(mailURL, &Warehouse{db: db})
	delete(config.Transports, topicOrders)
	worker, err := outbox.NewProcessor(db, config)
	if err != nil {
		return err
	}
	worker.ProcessOnce(ctx)
	return nil
}
