package resend_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/transports/email"
	"github.com/gorm-outbox/outbox/transports/email/resend"
	"gorm.io/gorm"
)

func ExampleNew() {
	double := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Println(r.Method, r.URL.Path, r.Header.Get("Idempotency-Key"))
		fmt.Fprint(w, `{"id":"49a3999c-0ce1-4ea6-ab68-afcd6dc2e794"}`)
	}))
	defer double.Close()

	sender, err := resend.New(resend.Config{APIKey: "re_123", BaseURL: double.URL}) // without BaseURL: Resend itself
	if err != nil {
		panic(err)
	}
	transport, err := email.New(email.Config{
		From:   "Shop <orders@shop.example>",
		Sender: sender,
		Render: func(_ context.Context, d outbox.Delivery) (email.Message, error) {
			return email.Message{Subject: "Welcome", Text: "Welcome to the shop."}, nil
		},
	})
	if err != nil {
		panic(err)
	}
	limited := outbox.Limit(transport, 2) // Resend allows two requests a second

	d := outbox.Delivery{Recipient: "ana@example.test", ProviderKey: "shop:welcome-7"}
	fmt.Println(limited.Send(context.Background(), d))
	// Output:
	// POST /emails shop:welcome-7
	// 49a3999c-0ce1-4ea6-ab68-afcd6dc2e794 <nil>
}

func ExampleStatusHandler() {
	var db *gorm.DB // with the outbox's plugin
	handler, err := resend.StatusHandler(resend.StatusConfig{DB: db, Secrets: []string{"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	http.Handle("POST /webhooks/resend", handler)
	// Output: outbox: invalid: resend status handler: DB is nil
}
