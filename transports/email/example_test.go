package email_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing/fstest"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/gorm-outbox/outbox/transports/email"
)

func ExampleNew() {
	render := func(_ context.Context, d outbox.Delivery) (email.Message, error) {
		order, err := outbox.Decode[struct{ ID int }](d)
		if err != nil {
			return email.Message{}, err
		}
		return email.Message{Subject: fmt.Sprint("Your order ", order.ID), Text: "Thank you.", ReplyTo: "help@shop.example"}, nil
	}
	printer := email.SenderFunc(func(_ context.Context, e email.Email) (string, error) {
		fmt.Printf("to %s: %s (key %s)\n", e.To.Address, e.Subject, e.ProviderKey)
		return "mail-1", nil
	})
	transport, err := email.New(email.Config{From: "Shop <orders@shop.example>", Render: render, Sender: printer})
	if err != nil {
		panic(err)
	}
	d := outbox.Delivery{Recipient: "Ana <ana@example.test>", Payload: json.RawMessage(`{"ID":7}`), ProviderKey: "shop:order-7"}
	fmt.Println(transport.Send(context.Background(), d))

	d.Recipient = "ana"
	_, err = transport.Send(context.Background(), d)
	fmt.Println(policy.Classify(err), err)
	// Output:
	// to ana@example.test: Your order 7 (key shop:order-7)
	// mail-1 <nil>
	// permanent outbox: delivery failed: number/malformed_address
}

func ExampleTemplates() {
	render, err := email.Templates(fstest.MapFS{ // an embed.FS in an app
		"order_confirmation.subject.txt": {Data: []byte("Your order {{.id}}\n")},
		"order_confirmation.html":        {Data: []byte("<p>Thank you, {{.name}}.</p>")},
		"order_confirmation.txt":         {Data: []byte("Thank you, {{.name}}.")},
	})
	if err != nil {
		panic(err)
	}
	d := outbox.Delivery{Type: "order_confirmation", Payload: json.RawMessage(`{"id":7,"name":"Ana & Luz"}`)}
	m, err := render(context.Background(), d)
	fmt.Println(m.Subject, m.HTML, m.Text, err)
	// Output: Your order 7 <p>Thank you, Ana &amp; Luz.</p> Thank you, Ana & Luz. <nil>
}
