package main

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/gorm-outbox/outbox"
)

func (t *tour) tenants(ctx context.Context) error {
	for _, customer := range []string{"ada@example.com", "grace@example.com", closedMailbox} {
		if _, err := t.announce(ctx, customer); err != nil {
			return err
		}
	}
	began := time.Now()
	t.round(ctx)
	took, least := time.Since(began), 2*time.Second/whatsAppRate
	records, err := t.show(ctx)
	if err := errors.Join(err,
		same("records", states(records), "sent sent discarded"),
		same("reason of the last", lastError(records[2]), "credentials/no_credentials"),
		same("the round kept to the rate", took >= least, true),
	); err != nil {
		return err
	}
	say("processor", "%d a second may begin, so three took %d ms or more", whatsAppRate, least.Milliseconds())
	return t.delivered(ctx, records[0])
}

func (t *tour) loseAnswer(ctx context.Context) error {
	order := Order{
		Tenant: "south", Customer: "alan@example.com", Phone: "+1 202 555 0104", Product: "tea", Quantity: 1,
	}
	if err := t.shop.Place(ctx, &order); err != nil {
		return err
	}
	say("app", "places order %d", order.ID)
	t.round(ctx)
	receipt, err := t.announce(ctx, order.Customer)
	if err != nil {
		return err
	}
	t.whatsapp.LoseAnswers(1)
	first := t.round(ctx)
	record, err := t.showOne(ctx, receipt.ID)
	second := t.round(ctx)
	say("processor", "another round: %d claimed; to send it again might be to send it twice", second.Claimed)
	if err := errors.Join(err,
		same("failed", first.Failed, 1),
		same("reason", lastError(record), "outcome_unknown/no_answer"),
		same("claimed by another round", second.Claimed, 0),
		same("the provider's id", orNone(record.ExternalID), "none"),
	); err != nil {
		return err
	}
	return t.delivered(ctx, record) // and so the person who looks at what failed knows
}

// announce has the shop announce the courier to a customer.
func (t *tour) announce(ctx context.Context, customer string) (outbox.Receipt, error) {
	order, err := t.orderOf(ctx, customer)
	if err != nil {
		return outbox.Receipt{}, err
	}
	receipt, err := t.shop.Announce(ctx, order.ID)
	if err == nil {
		say("app", "tells the customer of order %d, of %s, that the courier is near: record %d", order.ID, order.Tenant, receipt.ID)
	}
	return receipt, err
}

// delivered has the provider report that the message of a record has reached the phone, and looks for that on the
// record. The report names the record by the reference that the transport gave, also where the id of an answer is missing.
func (t *tour) delivered(ctx context.Context, record outbox.Record) error {
	arrived := t.whatsapp.To(digits(record.Recipient))
	if err := same("messages for this phone", len(arrived), 1); err != nil {
		return err
	}
	if err := t.whatsapp.Report(ctx, t.webhook, webhookSecret, arrived[0], "delivered"); err != nil {
		return err
	}
	say("whatsapp", "posts to the app's webhook, signed: %s is delivered", arrived[0].ID)
	record, err := t.showOne(ctx, record.ID)
	return errors.Join(err, same("the receipt", receiptOf(record), string(outbox.ReceiptDelivered)))
}

// digits is how the API writes a number.
func digits(phone string) string {
	return strings.Map(func(r rune) rune {
		if r < '0' || r > '9' {
			return -1
		}
		return r
	}, phone)
}
