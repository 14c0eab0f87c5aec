package main

import (
	"context"
	"embed"
	"io/fs"
	"net/http"
	"strconv"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/transports/email"
	"github.com/gorm-outbox/outbox/transports/email/smtp"
	"github.com/gorm-outbox/outbox/transports/whatsapp"
	"gorm.io/gorm"
)

// templates are the e-mails, three files for each type: subject, html and plain text.
//
//go:embed templates
var templates embed.FS

// newMailer gives the transport of topic email. All templates are checked here, so that a broken one keeps the app from
// starting and not a mail from leaving.
func newMailer(port int) (outbox.Transport, error) {
	files, err := fs.Sub(templates, "templates")
	if err != nil {
		return nil, err
	}
	render, err := email.Templates(files)
	if err != nil {
		return nil, err
	}
	// An app gives the server's name, Username and Password, and leaves Port and TLS to their defaults: 587, STARTTLS.
	sender, err := smtp.New(smtp.Config{Host: "127.0.0.1", Port: port, TLS: smtp.NoTLS})
	if err != nil {
		return nil, err
	}
	return email.New(email.Config{From: "Tea by post <orders@shop.example>", Render: render, Sender: sender})
}

// accounts are the WhatsApp numbers of the tenants that have one. An app keeps them in its database, the tokens
// encrypted.
var accounts = map[string]*whatsapp.Credentials{
	"north": {PhoneNumberID: "1065001", Token: "token-of-north"},
	"south": {PhoneNumberID: "1065002", Token: "token-of-south"},
}

// whatsAppRate is how many WhatsApps a second the provider allows. It counts for each process.
const whatsAppRate = 20

// newWhatsApp gives the transport of topic whatsapp. Its provider holds no texts of ours, only templates that it has
// approved: what is sent are their parameters.
func newWhatsApp(url string) (outbox.Transport, error) {
	sender, err := whatsapp.Cloud(whatsapp.CloudConfig{BaseURL: url}) // an app leaves it out, or gives whatsapp.MetaURL
	if err != nil {
		return nil, err
	}
	transport, err := whatsapp.New(whatsapp.Config{
		Credentials: func(_ context.Context, tenantID string) (*whatsapp.Credentials, error) {
			return accounts[tenantID], nil // nil for a tenant that has none
		},
		Params: func(_ context.Context, d outbox.Delivery) (whatsapp.Template, error) {
			data, err := outbox.Decode[CourierNear](d) // the only type so far; with more, switch on d.Type
			return whatsapp.Template{
				Language: "en", Body: whatsapp.Text(strconv.FormatInt(data.OrderID, 10), data.Product),
			}, err
		},
		Sender: sender,
	})
	if err != nil {
		return nil, err
	}
	return outbox.Limit(transport, whatsAppRate), nil
}

// webhookSecret is what the provider signs its webhooks with, given to the app when it registers.
const webhookSecret = "secret-of-the-app"

// newWebhook gives the part of the app's HTTP server to which the provider reports what became of WhatsApps.
func newWebhook(db *gorm.DB) (http.Handler, error) {
	return whatsapp.StatusHandler(whatsapp.StatusConfig{DB: db, Secrets: []string{webhookSecret}})
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
