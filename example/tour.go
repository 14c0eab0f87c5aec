package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gorm-outbox/outbox"
	"gorm.io/gorm"
)

// sceneTime is far more than any scene takes: a tour that hangs says where.
const sceneTime = 20 * time.Second

// scene is one thing that the outbox does. Its play tells what happens and gives an error for all that is not so.
type scene struct {
	title string
	play  func(*tour, context.Context) error
}

var scenes = []scene{
	{"An order commits: its event and its e-mail are delivered", (*tour).commit},
	{"An order is rolled back: no message is left of it", (*tour).rollBack},
	{"A request is repeated: it enqueues once", (*tour).repeat},
	{"The mail server is down: retried with backoff until it works", (*tour).retry},
	{"The mail server refuses for good: discarded, with the reason", (*tour).discard},
	{"A worker dies in mid-delivery: another takes over when the lease ends", (*tour).crash},
	{"WhatsApps go out from each shop's own number, at the provider's rate", (*tour).tenants},
	{"The answer to a WhatsApp is lost: not sent again, and a report still finds it", (*tour).loseAnswer},
	{"A scheduler drives the processor", (*tour).scheduled},
	{"Run drives it, and shuts down cleanly", (*tour).run},
}

// tour is the stage: the shop, its providers and a worker.
type tour struct {
	dsn       string
	db        *gorm.DB
	shop      *Shop
	mail      *MailServer
	whatsapp  *WhatsAppAPI
	webhook   string // URL of the app's handler of reports
	warehouse *Warehouse
	worker    *outbox.Processor
	ends      []func() error
	since     int64 // the last record before the present scene

	mu       sync.Mutex
	attempts []attempt // since the last round was told
}

// attempt is what OnAttempt reports, and when.
type attempt struct {
	outbox.Attempt
	at time.Time
}

// play plays the scenes on the database that dsn names, or without one on a temporary SQLite.
func play(ctx context.Context, dsn string) (err error) {
	if dsn != "" {
		if err := playOn(ctx, dsn); err != nil {
			return err
		}
		fmt.Printf("The tables %s… are left for you to look at.\n", plugin.Table)
		return nil
	}
	dsn, remove, err := temporary()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	return playOn(ctx, dsn)
}

// playOn sets the stage, plays, and clears it.
func playOn(ctx context.Context, dsn string) (err error) {
	t := &tour{dsn: dsn}
	defer func() { err = errors.Join(err, t.clear()) }()
	if err := t.set(); err != nil {
		return err
	}
	if err := t.prepare(ctx); err != nil {
		return fmt.Errorf("prepare the database: %w", err)
	}
	return t.playAll(ctx)
}

// set opens what clear will close.
func (t *tour) set() (err error) {
	if t.db, err = connect(t.dsn); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	t.ends = append(t.ends, func() error { return disconnect(t.db) })
	t.shop, t.warehouse = &Shop{db: t.db}, &Warehouse{db: t.db}
	if t.mail, err = startMailServer(); err != nil {
		return err
	}
	t.ends = append(t.ends, t.mail.Close)
	if t.whatsapp, err = startWhatsAppAPI(accounts); err != nil {
		return err
	}
	t.ends = append(t.ends, t.whatsapp.Close)
	handler, err := newWebhook(t.db)
	if err != nil {
		return err
	}
	url, end, err := serve(handler) // an app has a server already
	if err != nil {
		return err
	}
	t.webhook, t.ends = url, append(t.ends, end)
	return nil
}

// clear closes everything, the last first.
func (t *tour) clear() error {
	var errs []error
	for _, end := range slices.Backward(t.ends) {
		errs = append(errs, end())
	}
	return errors.Join(errs...)
}

// prepare makes the tables anew, fills the shelf and hires the worker.
func (t *tour) prepare(ctx context.Context) error {
	db := t.db.WithContext(ctx)
	if err := wipe(db); err != nil {
		return err
	}
	if err := install(db); err != nil {
		return err
	}
	if err := db.Create(&Product{SKU: "tea", Stock: 100}).Error; err != nil {
		return err
	}
	transports, err := allTransports(t.mail.Port, t.whatsapp.URL, t.warehouse)
	if err != nil {
		return err
	}
	config := workerConfig(transports)
	config.OnAttempt = t.note // an app counts and times here, for its metrics
	worker, err := outbox.NewProcessor(t.db, config)
	t.worker = worker
	return err
}

func (t *tour) playAll(ctx context.Context) error {
	fmt.Printf("A tour of the outbox, on %s. Records are told by topic, type and state.\n", t.db.Name())
	began := time.Now()
	for i, s := range scenes {
		fmt.Printf("\n%d. %s\n", i+1, s.title)
		if err := t.playOne(ctx, s); err != nil {
			return fmt.Errorf("scene %d did not go as it should:\n%w", i+1, err)
		}
	}
	if err := t.finale(ctx); err != nil {
		return err
	}
	fmt.Printf("\nAll %d scenes went as told, which was checked in the database and at the providers. %.1f s\n",
		len(scenes), time.Since(began).Seconds())
	return nil
}

func (t *tour) playOne(ctx context.Context, s scene) error {
	ctx, cancel := context.WithTimeout(ctx, sceneTime)
	defer cancel()
	if err := t.records(ctx).Select("coalesce(max(id), 0)").Scan(&t.since).Error; err != nil {
		return err
	}
	t.noted() // forget those of the scene before
	if err := s.play(t, ctx); err != nil {
		return err
	}
	t.tellArrivals()
	return nil
}

// finale looks at the whole outbox, as an app's metrics would: nothing may be left alive, nor have failed to arrive.
func (t *tour) finale(ctx context.Context) error {
	stats, err := outbox.Stats(t.db.WithContext(ctx))
	if err != nil {
		return err
	}
	mails, messages := t.mail.Total()
	whatsApps := t.whatsapp.Total()
	arrived := map[string]int64{topicEmail: messages, topicWhatsApp: whatsApps}
	fmt.Println("\nIn the end")
	for _, topic := range stats {
		waiting := topic.Due + topic.Scheduled + topic.Processing + topic.LeaseExpired
		say(topic.Topic, "%d sent, %d discarded, %d failed, %d waiting", topic.Sent, topic.Discarded, topic.Failed, waiting)
		err = errors.Join(err, same("messages waiting", waiting, 0))
		if n, outside := arrived[topic.Topic]; outside { // what failed has arrived all the same; see scene 8
			err = errors.Join(err, same("arrived of topic "+topic.Topic, n, topic.Sent+topic.Failed))
		}
	}
	say("arrived", "%d mails of %d messages, %d WhatsApps", mails, messages, whatsApps)
	return err
}

// records is a query on the outbox's table, which an app may read and never writes.
func (t *tour) records(ctx context.Context) *gorm.DB {
	return t.db.WithContext(ctx).Table(plugin.Table)
}

// same checks a claim of a scene.
func same[T comparable](what string, got, want T) error {
	if got == want {
		return nil
	}
	return fmt.Errorf("   %s: is %v, should be %v", what, got, want)
}

// states puts the states of records in one line.
func states(records []outbox.Record) string {
	var texts []string
	for _, r := range records {
		texts = append(texts, string(r.Status))
	}
	return strings.Join(texts, " ")
}

// pause waits, unless the context ends first.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
