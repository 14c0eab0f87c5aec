package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"gorm.io/gorm"
)

// Mailer is the transport of topic email: one call of the provider's HTTP API for each attempt.
type Mailer struct {
	url    string // where mails are posted
	client *http.Client
}

// NewMailer gives the transport for a provider. Its client needs no timeout, since the processor's ends the context of
// each attempt. It follows no redirect: a POST may arrive behind one as an empty GET, whose 200 would count as sent.
func NewMailer(url string) Mailer {
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return Mailer{url: url, client: &http.Client{CheckRedirect: stay}}
}

// Mail is what the provider takes.
type Mail struct {
	To      string `json:"to"`      // mailbox
	Subject string `json:"subject"` // one line
	Text    string `json:"text"`    // plain
}

// subjects are the templates, by message type.
var subjects = map[string]string{
	typeConfirmation: "We have your order %d",
	typeShipped:      "Your order %d is on its way",
}

// Send is called from many goroutines at once, and again for the same message whenever it is not certain that the
// provider has it.
func (m Mailer) Send(ctx context.Context, d outbox.Delivery) (string, error) {
	mail, err := render(d)
	if err != nil {
		return "", err
	}
	body, err := json.Marshal(mail)
	if err != nil {
		return "", err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, m.url, bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	request.Header.Set("Content-Type", "application/json")
	// The same on every attempt: by it the provider tells a repeat from a second mail.
	request.Header.Set("Idempotency-Key", d.ProviderKey)

	response, err := m.client.Do(request)
	if err != nil {
		return "", noAnswer(ctx, err)
	}
	defer response.Body.Close()
	return readAnswer(ctx, response)
}

func render(d outbox.Delivery) (Mail, error) {
	subject, ok := subjects[d.Type]
	if !ok { // trying again brings no template, so this is permanent
		return Mail{}, policy.Failure{Category: policy.CategoryTemplate, Code: "unknown_type"}
	}
	data, err := outbox.Decode[OrderMail](d)
	if err != nil {
		return Mail{}, err
	}
	text := fmt.Sprintf("%d × %s", data.Quantity, data.Product)
	if data.Parcel != "" {
		text += ", parcel " + data.Parcel
	}
	return Mail{To: d.Recipient, Subject: fmt.Sprintf(subject, data.OrderID), Text: text}, nil
}

// noAnswer says that the provider may have the message or not. An attempt whose time was up is named by the processor.
func noAnswer(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return err
	}
	return policy.Failure{Category: policy.CategoryNetwork, Code: "no_answer", OutcomeUnknown: true, Err: err}
}

func readAnswer(ctx context.Context, response *http.Response) (string, error) {
	var answer struct{ ID, Code string }
	err := json.NewDecoder(io.LimitReader(response.Body, 64<<10)).Decode(&answer)
	if response.StatusCode/100 != 2 {
		return "", refusal(response, answer.Code) // a proxy's error page need not be JSON
	}
	if err != nil {
		return "", noAnswer(ctx, err)
	}
	return answer.ID, nil
}

// refusal sorts the provider's answers by what helps: waiting, or somebody's work. Categories carry that distinction;
// rejected and credentials are permanent, and end the message at once.
func refusal(response *http.Response, code string) error {
	f := policy.Failure{Category: policy.CategoryNetwork, Code: cmp.Or(code, strconv.Itoa(response.StatusCode))}
	switch status := response.StatusCode; {
	case status == http.StatusTooManyRequests:
		f.Category = policy.CategoryRateLimited
		seconds, _ := strconv.Atoi(response.Header.Get("Retry-After")) // absent, or a date: the backoff decides
		f.RetryAfter = time.Duration(seconds) * time.Second
	case status == http.StatusConflict: // still at work on the same idempotency key
		f.Category = policy.CategoryIdempotencyConflict
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		f.Category = policy.CategoryCredentials
	case status == http.StatusRequestTimeout, status == http.StatusTooEarly:
		// as network
	case status/100 == 4:
		f.Category = policy.CategoryRejected
	}
	return f
}

// Warehouse consumes the event, here in the same process.
type Warehouse struct{ db *gorm.DB }

// Pick is a line of the warehouse's list: what has to be fetched from the shelf.
type Pick struct {
	ID       int64  // given by the database
	OrderID  int64  // Order.ID
	Product  string // its SKU
	Quantity int    // pieces
}

// OrderPlaced puts an order on the list. Delivery is at least once, and a second line would be a second parcel, so
// ConsumeOnce remembers the message in the transaction that writes the line.
func (w *Warehouse) OrderPlaced(ctx context.Context, event OrderPlaced, d outbox.Delivery) error {
	return w.db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		_, err := outbox.ConsumeOnce(tx, "warehouse", d.MessageID, func(tx *gorm.DB) error {
			return tx.Create(&Pick{OrderID: event.OrderID, Product: event.Product, Quantity: event.Quantity}).Error
		})
		return err
	})
}
