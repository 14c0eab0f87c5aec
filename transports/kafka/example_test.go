package kafka_test

import (
	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/transports/kafka"
	"github.com/gorm-outbox/outbox/transports/wire"
	"github.com/twmb/franz-go/pkg/kgo"
	"gorm.io/gorm"
)

func ExampleNew() {
	deliver := func(db *gorm.DB) (*outbox.Processor, error) {
		client, err := kgo.NewClient(kgo.SeedBrokers("127.0.0.1:9092"))
		if err != nil {
			return nil, err
		}
		events, err := wire.CloudEvents("https://shop.example")
		if err != nil {
			return nil, err
		}
		orders, err := kafka.New(kafka.Config{Client: client, Format: events})
		if err != nil {
			return nil, err
		}
		return outbox.NewProcessor(db, outbox.ProcessorConfig{Transports: map[string]outbox.Transport{"orders": orders}})
	}
	_ = deliver // run it after db.Use(outbox.Plugin{})
}
