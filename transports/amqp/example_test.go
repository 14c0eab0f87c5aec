package amqp_test

import (
	"context"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/transports/amqp"
	"github.com/gorm-outbox/outbox/transports/wire"
	"gorm.io/gorm"
)

func ExampleNew() {
	deliver := func(ctx context.Context, db *gorm.DB) error {
		orders, err := amqp.New(amqp.Config{URL: "amqp://app:password@127.0.0.1", Exchange: "orders", Format: wire.Envelope})
		if err != nil {
			return err
		}
		defer orders.Close() //nolint:errcheck // it is always nil
		p, err := outbox.NewProcessor(db, outbox.ProcessorConfig{Transports: map[string]outbox.Transport{"orders": orders}})
		if err != nil {
			return err
		}
		return p.Run(ctx)
	}
	_ = deliver // run it after db.Use(outbox.Plugin{})
}
