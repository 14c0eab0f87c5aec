package smtp_test

import (
	"errors"
	"fmt"
	"testing/fstest"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/transports/email"
	"github.com/gorm-outbox/outbox/transports/email/smtp"
)

func ExampleNew() {
	sender, err := smtp.New(smtp.Config{Host: "mail.shop.example", Username: "orders", Password: "from a secret store"})
	if err != nil {
		panic(err)
	}
	render, err := email.Templates(fstest.MapFS{ // an embed.FS in an app
		"order_confirmation.subject.txt": {Data: []byte("Your order {{.id}}\n")},
		"order_confirmation.txt":         {Data: []byte("Thank you, {{.name}}.\n")},
	})
	if err != nil {
		panic(err)
	}
	transport, err := email.New(email.Config{From: "Shop <orders@shop.example>", Render: render, Sender: sender})
	fmt.Println(transport != nil, err)

	_, err = smtp.New(smtp.Config{Host: "mail.shop.example", TLS: smtp.NoTLS, Username: "orders", Password: "secret"})
	fmt.Println(errors.Is(err, outbox.ErrInvalid), err)
	// Output:
	// true <nil>
	// true outbox: invalid: smtp: with TLS "none" the password would travel in the clear
}
