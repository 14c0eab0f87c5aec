package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
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
	messageID, err := t.killWorker(ctx)
	if err != nil {
		return err
	}
	orphans, err := t.show(ctx)
	if err := errors.Join(err, same("records after the crash", states(orphans), "processing")); err != nil {
		return err
	}
	return t.reclaim(ctx, orphans[0], order, messageID)
}

// reclaim has a living worker ask until it is given the message of the dead one, and checks when and how that is.
func (t *tour) reclaim(ctx context.Context, orphan outbox.Record, order Order, messageID string) error {
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
		same("mails", t.mail.Count(withSubject(subjectShipped, order.ID)), 2),
		same("mails with one Message-ID", t.mail.Count(func(m Mail) bool { return m.MessageID == messageID }), 2),
		same("the id on the record", orNone(records[0].ExternalID), messageID),
	)
	if err == nil {
		say("smtp", "took it twice, under one Message-ID, by which a mailbox can tell the second")
	}
	return err
}

// killWorker starts a worker in a process of its own, waits until the mail server has its mail, and kills it before it
// hears so. It gives the mail's Message-ID.
func (t *tour) killWorker(ctx context.Context) (messageID string, err error) {
	release := t.mail.Hold()
	defer release()
	program, err := os.Executable()
	if err != nil {
		return "", err
	}
	worker := exec.CommandContext(ctx, program, "-dsn", t.dsn, "-worker", strconv.Itoa(t.mail.Port))
	worker.Stderr = os.Stderr
	if err := worker.Start(); err != nil {
		return "", err
	}
	say("worker", "process %d starts", worker.Process.Pid)
	ended := make(chan error, 1)
	go func() { ended <- worker.Wait() }()
	select {
	case messageID = <-t.mail.Held:
	case err := <-ended: // by itself, or killed because the context ended
		return "", fmt.Errorf("   the worker ended before it was killed: %w", errors.Join(err, ctx.Err()))
	}
	say("worker", "the mail server has taken its mail but not said so yet; it is killed")
	if err := worker.Process.Kill(); err != nil {
		return "", err
	}
	return messageID, same("the worker ended well", <-ended == nil, false)
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
func deliverOnce(ctx context.Context, dsn string, mailPort int) (err error) {
	db, err := connect(dsn)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, disconnect(db)) }()
	if err := db.Use(plugin); err != nil {
		return err
	}
	mailer, err := newMailer(mailPort)
	if err != nil {
		return err
	}
	worker, err := outbox.NewProcessor(db, workerConfig(map[string]outbox.Transport{topicEmail: mailer}))
	if err != nil {
		return err
	}
	worker.ProcessOnce(ctx)
	return nil
}
