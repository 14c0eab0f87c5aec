package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gorm-outbox/outbox"
	"gorm.io/gorm"
)

// Topics: each selects the transport that delivers its messages.
const (
	topicEmail    = "email"
	topicWhatsApp = "whatsapp"
	topicOrders   = "orders"
)

// Types of messages: templates of e-mails, which are ours, and of WhatsApps, which the provider approves and keeps, and
// a domain event with its version.
const (
	typeConfirmation = "order_confirmation"
	typeShipped      = "order_shipped"
	typeCourierNear  = "courier_near"
	typeOrderPlaced  = "order.placed.v1"
)

// Order is what a customer bought.
type Order struct {
	ID       int64  // given by the database
	Tenant   string // of which shop: the app serves several
	Customer string // e-mail address
	Phone    string // in international form; empty: not given
	Product  string // its SKU
	Quantity int    // at least 1
	Parcel   string // the carrier's number; empty until shipped
}

// Product is what the shop sells.
type Product struct {
	SKU   string `gorm:"primaryKey"` // the shop's own name for it
	Stock int    // pieces that can still be sold
}

// OrderPlaced is the payload of the event. Its JSON is a contract with its consumers, so it is a type of its own: the
// model may change without them.
type OrderPlaced struct {
	OrderID  int64  `json:"order_id"` // Order.ID
	Product  string `json:"product"`  // its SKU
	Quantity int    `json:"quantity"` // pieces
}

// OrderMail is the payload of the e-mails: all that the template needs. The mail may leave much later, so it says what
// was true when it was enqueued and nothing has to be looked up again.
type OrderMail struct {
	OrderID  int64  `json:"order_id"`         // Order.ID
	Product  string `json:"product"`          // its SKU
	Quantity int    `json:"quantity"`         // pieces
	Parcel   string `json:"parcel,omitempty"` // the carrier's number, once there is one
}

// CourierNear is the payload of the WhatsApp.
type CourierNear struct {
	OrderID int64  `json:"order_id"` // Order.ID
	Product string `json:"product"`  // its SKU
}

// ErrOutOfStock means that there are not enough pieces left.
var ErrOutOfStock = errors.New("out of stock")

// AfterCreate enqueues the event, so that no code path can save an order without it. GORM calls it in the transaction
// that saves the order, which it opens by itself for a plain db.Create(&order), and undoes the order on an error. With
// SkipDefaultTransaction there may be none, and Enqueue refuses.
func (o *Order) AfterCreate(tx *gorm.DB) error {
	_, err := outbox.Enqueue(tx, outbox.Message{
		TenantID: o.Tenant,
		Topic:    topicOrders,
		Type:     typeOrderPlaced,
		Payload:  OrderPlaced{OrderID: o.ID, Product: o.Product, Quantity: o.Quantity},
	})
	return err
}

// Shop is the app's service.
type Shop struct{ db *gorm.DB }

// Place saves an order, and with it the e-mail that confirms it. No mail server is called here: one that is down
// cannot keep a customer from ordering.
func (s *Shop) Place(ctx context.Context, order *Order) error {
	return s.db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		if err := tx.Create(order).Error; err != nil {
			return err
		}
		if _, err := outbox.Enqueue(tx, mailTo(order, typeConfirmation)); err != nil {
			return err
		}
		// Last, since every order of the product waits for this row until the commit.
		return takeStock(tx, order.Product, order.Quantity)
	})
}

// Ship notes the carrier's number and tells the customer. Carriers' webhooks are repeated until they are answered in
// time, so the message names its fact: however often Ship is called for an order, one mail goes out.
func (s *Shop) Ship(ctx context.Context, orderID int64, parcel string) (outbox.Receipt, error) {
	var receipt outbox.Receipt
	err := s.db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		var order Order
		if err := tx.First(&order, orderID).Error; err != nil {
			return err
		}
		if err := tx.Model(&order).Update("parcel", parcel).Error; err != nil {
			return err
		}
		order.Parcel = parcel
		message := mailTo(&order, typeShipped)
		message.IdempotencyKey = fmt.Sprintf("order-shipped:%d", order.ID)
		var err error
		receipt, err = outbox.Enqueue(tx, message)
		return err
	})
	return receipt, err
}

// Announce tells the customer by WhatsApp that the courier is near. An hour later that is worth nothing, so the message
// expires.
func (s *Shop) Announce(ctx context.Context, orderID int64) (outbox.Receipt, error) {
	var receipt outbox.Receipt
	err := s.db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		var order Order
		if err := tx.First(&order, orderID).Error; err != nil {
			return err
		}
		var err error
		receipt, err = outbox.Enqueue(tx, outbox.Message{
			TenantID:       order.Tenant,
			Topic:          topicWhatsApp,
			Type:           typeCourierNear,
			Recipient:      order.Phone,
			IdempotencyKey: fmt.Sprintf("courier-near:%d", order.ID),
			Payload:        CourierNear{OrderID: order.ID, Product: order.Product},
			ExpiresAt:      time.Now().Add(time.Hour),
		})
		return err
	})
	return receipt, err
}

func mailTo(order *Order, messageType string) outbox.Message {
	return outbox.Message{
		TenantID:  order.Tenant,
		Topic:     topicEmail,
		Type:      messageType,
		Recipient: order.Customer,
		Payload: OrderMail{
			OrderID: order.ID, Product: order.Product, Quantity: order.Quantity, Parcel: order.Parcel,
		},
	}
}

// takeStock checks and takes in one statement, so that two orders cannot both take the last piece.
func takeStock(tx *gorm.DB, sku string, quantity int) error {
	taken := tx.Model(&Product{}).Where("sku = ? AND stock >= ?", sku, quantity).
		Update("stock", gorm.Expr("stock - ?", quantity))
	if taken.Error == nil && taken.RowsAffected == 0 {
		return ErrOutOfStock
	}
	return taken.Error
}
