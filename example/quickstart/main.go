// Command quickstart is the outbox on one page: an order and its e-mail are committed together, and the e-mail is
// delivered afterwards.
package main

import (
	"context"
	"fmt"
	"log"

	"github.com/gorm-outbox/outbox"
	"github.com/libtnb/sqlite"
	"gorm.io/gorm"
)

// Order is a model of the app's.
type Order struct {
	ID    int64  // given by the database
	Email string // the customer's
}

func main() {
	db, err := gorm.Open(sqlite.Open("file:/shop?vfs=memdb"), &gorm.Config{}) // in memory; or postgres.Open(dsn)
	check(err)
	check(db.Use(outbox.Plugin{})) // makes its tables
	check(db.AutoMigrate(&Order{}))

	// The order and its message are committed together, or neither is.
	check(db.Transaction(func(tx *gorm.DB) error {
		order := Order{Email: "ada@example.com"}
		if err := tx.Create(&order).Error; err != nil {
			return err
		}
		_, err := outbox.Enqueue(tx, outbox.Message{
			Topic: "email", Type: "order_confirmation", Recipient: order.Email, Payload: order,
		})
		return err
	}))

	// A worker, here or on another machine, delivers what is due: a round at a time, or with Run until its context ends.
	processor, err := outbox.NewProcessor(db, outbox.ProcessorConfig{
		Transports: map[string]outbox.Transport{"email": outbox.TransportFunc(sendEmail)},
	})
	check(err)
	summary := processor.ProcessOnce(context.Background())
	fmt.Println("sent:", summary.Sent)
}

// sendEmail stands for a call of the provider. Had it given an error, the message would be tried again later.
func sendEmail(_ context.Context, d outbox.Delivery) (string, error) {
	fmt.Printf("to %s: %s %s\n", d.Recipient, d.Type, d.Payload)
	return "", nil
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
