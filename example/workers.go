package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
)

// lease is the shortest there is, so that the tour need not wait long for one to end. For an app the default of ten
// minutes is better: a delivery that cannot be recorded before its lease ends is made again, as in an outage of the
// database, whereas the lease of a worker that died only delays its messages.
const lease = 5 * time.Second

// allTransports gives what delivers each topic.
func allTransports(mailPort int, whatsAppURL string, warehouse *Warehouse) (map[string]outbox.Transport, error) {
	mailer, mailErr := newMailer(mailPort)
	whatsApp, whatsAppErr := newWhatsApp(whatsAppURL)
	return map[string]outbox.Transport{
		topicEmail:    mailer,
		topicWhatsApp: whatsApp,
		topicOrders:   outbox.Handle(warehouse.OrderPlaced),
	}, errors.Join(mailErr, whatsAppErr)
}

// workerConfig is what the shop's workers have in common, whichever topics they deliver. The short times are the
// tour's; an app can begin with Transports and a Logger alone.
func workerConfig(transports map[string]outbox.Transport) outbox.ProcessorConfig {
	atMostOnce := map[string]bool{}
	if _, serves := transports[topicWhatsApp]; serves {
		// WhatsApp knows no idempotency keys, so a message whose answer was lost would ring twice if it were sent again. A
		// mail is sent again: both copies carry one Message-ID.
		atMostOnce[topicWhatsApp] = true
	}
	return outbox.ProcessorConfig{
		Transports:   transports,
		AtMostOnce:   atMostOnce,
		BatchSize:    20, // no more than can be begun while so short a lease lasts
		Lease:        lease,
		Backoff:      policy.Backoff{Base: 200 * time.Millisecond, Max: 2 * time.Second},
		PollInterval: 100 * time.Millisecond,
		Owner:        fmt.Sprintf("process %d", os.Getpid()), // by default with the host's name
	}
}

// schedule is for an app that has a scheduler: it calls ProcessOnce, a round at a time. Shutdown of the scheduler ends
// the context of the round, which then starts nothing more, finishes what it has started and releases the rest.
func schedule(
	ctx context.Context, p *outbox.Processor, every time.Duration, report func(outbox.Summary),
) (gocron.Scheduler, error) {
	// The wait must be longer than an attempt may take: the processor's Timeout, here half the lease.
	scheduler, err := gocron.NewScheduler(gocron.WithStopTimeout(lease))
	if err != nil {
		return nil, err
	}
	_, err = scheduler.NewJob(
		gocron.DurationJob(every),
		gocron.NewTask(func(ctx context.Context) { report(p.ProcessOnce(ctx)) }),
		gocron.WithContext(ctx),
		// Rounds may overlap, but one at a time keeps to the Concurrency that was configured.
		gocron.WithSingletonMode(gocron.LimitModeReschedule),
	)
	if err != nil {
		return nil, errors.Join(err, scheduler.Shutdown())
	}
	scheduler.Start()
	return scheduler, nil
}

// background is for an app without a scheduler: it starts Run, and gives what stops it and waits until it is done. A
// server calls stop after its last request and before it closes the database.
func background(ctx context.Context, p *outbox.Processor) func() error {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	return sync.OnceValue(func() error {
		cancel()
		return <-done
	})
}
