package webhook_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/transports/webhook"
)

// An app delivers to its customers' endpoints. The server of this example is on loopback, which has to be allowed.
func ExampleNew() {
	server := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		fmt.Println("received", r.Header.Get("webhook-id"))
	}))
	defer server.Close()
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())

	secrets := map[string][]string{"acme": {"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}}
	transport, err := webhook.New(webhook.Config{
		Secrets: func(_ context.Context, d outbox.Delivery) ([]string, error) { return secrets[d.TenantID], nil },
		OnGone: func(_ context.Context, d outbox.Delivery) {
			fmt.Println("disable the endpoint of", d.TenantID)
		},
		AllowedNetworks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
		Ports:           []int{portOf(server.URL)},
		TLS:             &tls.Config{RootCAs: roots},
	})
	if err != nil {
		panic(err)
	}

	d := outbox.Delivery{
		TenantID: "acme", Type: "order.created", Recipient: server.URL, Payload: json.RawMessage(`{"order":7}`),
		MessageID: "0195a0a0-0000-7000-8000-000000000001",
	}
	_, err = transport.Send(context.Background(), d)
	fmt.Println(err)
	d.Recipient = fmt.Sprintf("https://169.254.169.254:%d/latest/meta-data", portOf(server.URL))
	_, err = transport.Send(context.Background(), d)
	fmt.Println(err)
	// Output:
	// received 0195a0a0-0000-7000-8000-000000000001
	// <nil>
	// outbox: delivery failed: rejected/blocked_address
}
