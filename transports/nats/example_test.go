package nats_test

import (
	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/transports/nats"
	"github.com/gorm-outbox/outbox/transports/wire"
	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"gorm.io/gorm"
)

func ExampleNew() {
	deliver := func(db *gorm.DB) (*outbox.Processor, error) {
		conn, err := client.Connect("nats://127.0.0.1:4222", client.MaxReconnects(-1))
		if err != nil {
			return nil, err
		}
		js, err := jetstream.New(conn)
		if err != nil {
			return nil, err
		}
		orders, err := nats.New(nats.Config{JetStream: js, Format: wire.Envelope})
		if err != nil {
			return nil, err
		}
		return outbox.NewProcessor(db, outbox.ProcessorConfig{Transports: map[string]outbox.Transport{"orders": orders}})
	}
	_ = deliver // run it after db.Use(outbox.Plugin{})
}
