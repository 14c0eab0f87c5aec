package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gorm-outbox/outbox"
)

// What the templates of the mails make of a subject.
const (
	subjectConfirmation = "We have your order %d"
	subjectShipped      = "Your order %d is on its way"
)

// withSubject tells the mails about an order.
func withSubject(format string, orderID int64) func(Mail) bool {
	subject := fmt.Sprintf(format, orderID)
	return func(m Mail) bool { return m.Subject == subject }
}

func (t *tour) commit(ctx context.Context) error {
	order := Order{
		Tenant: "north", Customer: "ada@example.com", Phone: "+1 202 555 0101", Product: "tea", Quantity: 2,
	}
	if err := t.shop.Place(ctx, &order); err != nil {
		return err
	}
	say("app", "places order %d: it, its event (a model hook) and its e-mail in one transaction", order.ID)
	before, err := t.show(ctx)
	if err != nil {
		return err
	}
	mails, picks, err := t.outside(ctx, order.ID)
	if err := errors.Join(err,
		same("records after the commit", states(before), "pending pending"),
		same("mails and picks before the round", mails+picks, 0),
	); err != nil {
		return err
	}

	summary := t.round(ctx)
	after, err := t.show(ctx)
	mails, picks, outsideErr := t.outside(ctx, order.ID)
	err = errors.Join(err, outsideErr,
		same("sent", summary.Sent, 2),
		same("records after the round", states(after), "sent sent"),
		same("confirmations", mails, 1),
		same("lines on the warehouse's list", picks, 1),
	)
	if err == nil {
		say("outside", "one mail went out, and the warehouse has the order on its list")
	}
	return err
}

// outside counts what an order has caused beyond the outbox.
func (t *tour) outside(ctx context.Context, orderID int64) (mails, picks int64, err error) {
	mails = int64(t.mail.Count(withSubject(subjectConfirmation, orderID)))
	err = t.db.WithContext(ctx).Model(&Pick{}).Where("order_id = ?", orderID).Count(&picks).Error
	return mails, picks, err
}

func (t *tour) rollBack(ctx context.Context) error {
	order := Order{Tenant: "north", Customer: "bob@example.com", Product: "tea", Quantity: 1000}
	err := t.shop.Place(ctx, &order)
	if !errors.Is(err, ErrOutOfStock) {
		return fmt.Errorf("   an order of 1000: %w", errors.Join(errors.New("should be out of stock"), err))
	}
	say("app", "writes an order of %d and both its messages, then runs %v: rolled back", order.Quantity, err)
	var orders int64
	placed := t.db.WithContext(ctx).Model(&Order{}).Where("customer = ?", order.Customer)
	if err := placed.Count(&orders).Error; err != nil {
		return err
	}
	records, err := t.show(ctx)
	summary := t.round(ctx)
	say("database", "%d orders of this customer, %d messages; a round: %d claimed", orders, len(records), summary.Claimed)
	return errors.Join(err,
		same("orders", orders, 0),
		same("records", len(records), 0),
		same("claimed", summary.Claimed, 0),
	)
}

func (t *tour) repeat(ctx context.Context) error {
	order, err := t.orderOf(ctx, "ada@example.com")
	if err != nil {
		return err
	}
	first, err := t.shop.Ship(ctx, order.ID, "P-4711")
	if err != nil {
		return err
	}
	say("app", "ships order %d: record %d, new: %t", order.ID, first.ID, first.New)
	second, err := t.shop.Ship(ctx, order.ID, "P-4711")
	if err != nil {
		return err
	}
	say("app", "is told the same again: record %d, new: %t", second.ID, second.New)

	summary := t.round(ctx)
	records, err := t.show(ctx)
	return errors.Join(err,
		same("the first is new", first.New, true),
		same("the second is new", second.New, false),
		same("record of the second", second.ID, first.ID),
		same("message id of the second", second.MessageID, first.MessageID),
		same("sent", summary.Sent, 1),
		same("records", states(records), "sent"),
		same("mails", t.mail.Count(withSubject(subjectShipped, order.ID)), 1),
	)
}

func (t *tour) orderOf(ctx context.Context, customer string) (order Order, err error) {
	err = t.db.WithContext(ctx).Where("customer = ?", customer).First(&order).Error
	return order, err
}

func (t *tour) retry(ctx context.Context) error {
	t.mail.BeDown(2)
	order := Order{
		Tenant: "south", Customer: "grace@example.com", Phone: "+1 202 555 0102", Product: "tea", Quantity: 1,
	}
	if err := t.shop.Place(ctx, &order); err != nil {
		return err
	}
	say("app", "places order %d while the mail server is down; the customer notices nothing", order.ID)
	attempts, err := t.mailAttempts(ctx)
	if err != nil {
		return err
	}
	records, err := t.show(ctx)
	return errors.Join(err,
		checkBackoff(attempts),
		same("records", states(records), "sent sent"),
		same("mails", t.mail.Count(withSubject(subjectConfirmation, order.ID)), 1),
	)
}

// mailAttempts makes rounds until the mail is no longer pending, and tells about its attempts.
func (t *tour) mailAttempts(ctx context.Context) ([]attempt, error) {
	var attempts []attempt
	began := time.Now()
	for alive := true; alive; {
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return nil, fmt.Errorf("   after %d attempts at the mail: %w", len(attempts), err)
		}
		t.worker.ProcessOnce(ctx)
		for _, a := range t.noted() {
			if a.Delivery.Topic == topicEmail {
				attempts = append(attempts, a)
				alive = a.Status == outbox.StatusPending
				say("processor", "after %4d ms: %s", a.at.Sub(began).Milliseconds(), outcome(a))
			}
		}
	}
	return attempts, same("attempts", len(attempts), 3)
}

func outcome(a attempt) string {
	text := fmt.Sprintf("attempt %d of %d %s", a.Delivery.Attempt, a.Delivery.MaxAttempts, a.Status)
	if a.Status == outbox.StatusPending {
		text = fmt.Sprintf("attempt %d of %d failed with %s/%s, due again in %d ms",
			a.Delivery.Attempt, a.Delivery.MaxAttempts, a.Category, a.Code, a.RetryIn.Milliseconds())
	}
	return text
}

// checkBackoff holds three attempts against the configured backoff: 200 ms, then 400 ms, each 20 % more or less.
func checkBackoff(attempts []attempt) error {
	var errs []error
	for i, middle := range []time.Duration{200 * time.Millisecond, 400 * time.Millisecond} {
		planned := attempts[i].RetryIn
		errs = append(errs, same(fmt.Sprintf("wait %d, %v, is the backoff's", i+1, planned),
			planned >= middle*8/10 && planned <= middle*12/10, true))
		// SQLite's clock counts whole milliseconds, hence the tolerance.
		waited := attempts[i+1].at.Sub(attempts[i].at)
		errs = append(errs, same(fmt.Sprintf("attempt %d came after %v, not before its time", i+2, waited),
			waited >= planned-5*time.Millisecond, true))
	}
	return errors.Join(errs...)
}

func (t *tour) discard(ctx context.Context) error {
	order := Order{Tenant: "east", Customer: closedMailbox, Phone: "+1 202 555 0103", Product: "tea", Quantity: 1}
	if err := t.shop.Place(ctx, &order); err != nil {
		return err
	}
	say("app", "places order %d of a customer whose mailbox is closed", order.ID)
	first := t.round(ctx)
	records, err := t.show(ctx)
	if err := errors.Join(err, same("records", states(records), "sent discarded")); err != nil {
		return err
	}
	second := t.round(ctx)
	say("processor", "another round: %d claimed; what is discarded is kept and left alone", second.Claimed)
	refused := records[1]
	return errors.Join(
		same("discarded", first.Discarded, 1),
		same("attempts", refused.Attempts, 1),
		same("reason", lastError(refused), "number/550 5.1.1"),
		same("has its time of death", refused.DeadAt != nil, true),
		same("claimed by another round", second.Claimed, 0),
	)
}
