package whatsapp_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/gorm-outbox/outbox/transports/whatsapp"
	"gorm.io/gorm"
)

// Order is what the app enqueues as the payload.
type Order struct {
	Number   int
	Customer string
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func ExampleNew() {
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { // stands for Kapso
		var body struct {
			To       string
			Template json.RawMessage
		}
		check(json.NewDecoder(r.Body).Decode(&body))
		fmt.Println(r.URL.Path, "to", body.To)
		fmt.Println(string(body.Template))
		_, _ = io.WriteString(w, `{"messages":[{"id":"wamid.HBgN"}]}`)
	}))
	defer provider.Close()

	numbers := map[string]*whatsapp.Credentials{"club-1": {PhoneNumberID: "105551", Token: "the-key-of-the-project"}}
	sender, err := whatsapp.Cloud(whatsapp.CloudConfig{BaseURL: provider.URL})
	check(err)
	transport, err := whatsapp.New(whatsapp.Config{
		Credentials: func(_ context.Context, tenantID string) (*whatsapp.Credentials, error) {
			return numbers[tenantID], nil // nil for a tenant who has none
		},
		Params: func(_ context.Context, d outbox.Delivery) (whatsapp.Template, error) {
			order, err := outbox.Decode[Order](d)
			return whatsapp.Template{
				Language: "es_AR",
				Body:     whatsapp.Text(order.Customer, fmt.Sprint(order.Number)),
				Buttons:  []whatsapp.Button{{Kind: whatsapp.ButtonURL, Value: fmt.Sprint("orders/", order.Number)}},
			}, err
		},
		Sender: sender,
	})
	check(err)

	// In an app: outbox.ProcessorConfig{Transports: map[string]outbox.Transport{"whatsapp": transport}}
	id, err := transport.Send(context.Background(), outbox.Delivery{
		TenantID: "club-1", Type: "order_confirmed", Recipient: "+54 9 11 2233-4455",
		Payload: json.RawMessage(`{"Number": 7, "Customer": "Ana"}`),
	})
	fmt.Println(id, err)
	// Output:
	// /105551/messages to 5491122334455
	// {"name":"order_confirmed","language":{"code":"es_AR"},"components":[{"type":"body","parameters":[{"type":"text","text":"Ana"},{"type":"text","text":"7"}]},{"type":"button","sub_type":"url","index":"0","parameters":[{"type":"text","text":"orders/7"}]}]}
	// wamid.HBgN <nil>
}

func ExampleCloud() {
	_, err := whatsapp.Cloud(whatsapp.CloudConfig{}) // Kapso
	fmt.Println(err)
	_, err = whatsapp.Cloud(whatsapp.CloudConfig{BaseURL: whatsapp.MetaURL, Auth: whatsapp.AuthBearer})
	fmt.Println(err)
	_, err = whatsapp.Cloud(whatsapp.CloudConfig{BaseURL: "http://api.example.com"})
	fmt.Println(err)
	// Output:
	// <nil>
	// <nil>
	// outbox: invalid: whatsapp: BaseURL begins with "http", must be https, or http on loopback
}

// A template that is sent to a number that has no WhatsApp: the message is discarded, and never tried again.
func ExampleNew_refused() {
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"error":{"code":131026,"message":"Message undeliverable"}}`)
	}))
	defer provider.Close()
	sender, err := whatsapp.Cloud(whatsapp.CloudConfig{BaseURL: provider.URL})
	check(err)
	transport, err := whatsapp.New(whatsapp.Config{
		Credentials: func(context.Context, string) (*whatsapp.Credentials, error) {
			return &whatsapp.Credentials{PhoneNumberID: "105551", Token: "key"}, nil
		},
		Params: func(context.Context, outbox.Delivery) (whatsapp.Template, error) {
			return whatsapp.Template{Language: "es_AR"}, nil
		},
		Sender: sender,
	})
	check(err)
	_, err = transport.Send(context.Background(), outbox.Delivery{Type: "welcome", Recipient: "+5491122334455"})
	fmt.Println(err, "is", policy.Classify(err))
	// Output: outbox: delivery failed: number/131026 is permanent
}

// What becomes of a message after the provider took it is in its record: receipt_status, receipt_code, receipt_at.
func ExampleStatusHandler() {
	var db *gorm.DB // the app's, with the outbox
	var appSecret, verifyToken string

	handler, err := whatsapp.StatusHandler(whatsapp.StatusConfig{DB: db, Secrets: []string{appSecret}, VerifyToken: verifyToken})
	if err != nil {
		fmt.Println(err)
		return
	}
	http.Handle("/webhooks/whatsapp", handler)
	// Output:
	// outbox: invalid: whatsapp: DB is nil; Secrets is empty, or one of them is
}

// A message in which a named parameter and a button vary. Marshalled, it is the provider's request.
func ExampleMessage() {
	body, err := json.MarshalIndent(whatsapp.Message{
		To: "5491122334455", Reference: "7-0190b5a4-7c1e-7d2a-9f00-a1b2c3d4e5f6",
		Template: whatsapp.Template{
			Name: "parcel", Language: "es_AR",
			Body:    []whatsapp.Parameter{{Name: "customer", Text: "Ana"}},
			Buttons: []whatsapp.Button{{Kind: whatsapp.ButtonQuickReply, Index: 0, Value: "received-7"}},
		},
	}, "", " ")
	check(err)
	fmt.Println(string(body))
	// Output:
	// {
	//  "messaging_product": "whatsapp",
	//  "recipient_type": "individual",
	//  "to": "5491122334455",
	//  "type": "template",
	//  "biz_opaque_callback_data": "7-0190b5a4-7c1e-7d2a-9f00-a1b2c3d4e5f6",
	//  "template": {
	//   "name": "parcel",
	//   "language": {
	//    "code": "es_AR"
	//   },
	//   "components": [
	//    {
	//     "type": "body",
	//     "parameters": [
	//      {
	//       "type": "text",
	//       "parameter_name": "customer",
	//       "text": "Ana"
	//      }
	//     ]
	//    },
	//    {
	//     "type": "button",
	//     "sub_type": "quick_reply",
	//     "index": "0",
	//     "parameters": [
	//      {
	//       "type": "payload",
	//       "payload": "received-7"
	//      }
	//     ]
	//    }
	//   ]
	//  }
	// }
}
