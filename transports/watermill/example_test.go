package watermill_test

import (
	"context"
	"encoding/json"
	"fmt"

	watermilllib "github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/transports/watermill"
)

func ExampleNew() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	channel := gochannel.NewGoChannel(gochannel.Config{OutputChannelBuffer: 1}, watermilllib.NopLogger{}) // or any publisher
	received, _ := channel.Subscribe(ctx, "orders")

	orders, err := watermill.New(watermill.Config{Publisher: channel})
	if err != nil {
		fmt.Println(err)
		return
	}
	// A processor calls Send; see outbox.ProcessorConfig.Transports.
	_, err = orders.Send(ctx, outbox.Delivery{
		Topic: "orders", Type: "order.created", MessageID: "0190b5a4", ProviderKey: "0190b5a4", Payload: json.RawMessage(`{"order":7}`),
	})
	m := <-received
	fmt.Println(string(m.Payload), m.Metadata.Get(watermill.MetadataType), err)
	m.Ack()
	_ = channel.Close()
	// Output: {"order":7} order.created <nil>
}
