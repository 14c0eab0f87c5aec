package contender

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/pgwake"
	"gorm.io/gorm"
)

// outboxes are this library through its public API alone. Another option of it that is worth a measurement is another
// entry here, with the targets that name it in package workload.
var outboxes = []Definition{
	{
		Name: "outbox", About: "this library with its defaults: BatchSize 100, Concurrency 20, PollInterval 1 s",
		Cases: []string{"A", "B", "C1", "E", "G"}, Open: outboxConfig{}.open,
	},
	{
		Name: "outbox-1000", About: "BatchSize 1000",
		Cases: []string{"C", "D", "F", "X"}, Open: outboxConfig{batchSize: 1000}.open,
	},
	{
		Name: "outbox-keys", About: "BatchSize 1000, and an idempotency key order-N on every message",
		Cases: []string{"B", "C1"}, Open: outboxConfig{batchSize: 1000, keys: true}.open,
	},
	{
		Name: "outbox-delete", About: "BatchSize 1000, and Plugin{DeleteSent: true}: the records of sent messages are deleted",
		Cases: []string{"C1", "X"}, Open: outboxConfig{batchSize: 1000, plugin: outbox.Plugin{DeleteSent: true}}.open,
	},
	{
		Name: "outbox-wake", About: "the defaults with Plugin{WakeUp: true} and a pgwake listener in the worker",
		Cases: []string{"A8", "A32", "E", "G"}, Open: outboxConfig{plugin: outbox.Plugin{WakeUp: true}}.open,
	},
}

// outboxConfig is what differs between them.
type outboxConfig struct {
	plugin    outbox.Plugin
	batchSize int
	keys      bool
}

const (
	topic      = "orders"
	otherTopic = "mail"
)

// outboxed is an app with the outbox installed.
type outboxed struct {
	app
	cfg outboxConfig
	dsn string
}

func (cfg outboxConfig) open(_ context.Context, o Options) (Contender, error) {
	app, err := openApp(o)
	if err != nil {
		return nil, err
	}
	plugin := cfg.plugin
	plugin.SkipMigrate = true // Setup does it, once for all processes of a measurement
	return &outboxed{app: app, cfg: cfg, dsn: o.DSN}, app.db.Use(plugin)
}

// Setup migrates.
func (c *outboxed) Setup(ctx context.Context) error {
	if err := c.setup(ctx); err != nil {
		return err
	}
	return outbox.Migrate(c.db.WithContext(ctx))
}

func (c *outboxed) message(n int) outbox.Message {
	m := outbox.Message{Topic: topic, Type: "order_placed", Payload: json.RawMessage(Payload(n))}
	if c.cfg.keys {
		m.IdempotencyKey = fmt.Sprintf("order-%d", n)
	}
	return m
}

// EnqueueTx is the transaction of the README.
func (c *outboxed) EnqueueTx(ctx context.Context, n int) error {
	return c.order(ctx, n, func(tx *gorm.DB) error {
		_, err := outbox.Enqueue(tx, c.message(n))
		return err
	})
}

// Bulk is one EnqueueAll.
func (c *outboxed) Bulk(ctx context.Context, from, to int) error {
	messages := make([]outbox.Message, 0, to-from)
	for n := from; n < to; n++ {
		messages = append(messages, c.message(n))
	}
	return c.db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		_, err := outbox.EnqueueAll(tx, messages)
		return err
	})
}

// Drain is one Run.
func (c *outboxed) Drain(ctx context.Context, w Work) error {
	handler := outbox.TransportFunc(func(ctx context.Context, d outbox.Delivery) (string, error) {
		w.Handle(ctx, d.Payload)
		return "", nil
	})
	transports := map[string]outbox.Transport{topic: handler}
	for i := 1; i < w.Topics; i++ {
		transports[fmt.Sprintf("%s-%d", topic, i)] = handler
	}
	cfg := outbox.ProcessorConfig{Transports: transports, BatchSize: c.cfg.batchSize, Concurrency: w.Concurrency}
	if c.cfg.plugin.WakeUp {
		listener, err := pgwake.New(c.db)
		if err != nil {
			return err
		}
		cfg.Listener = listener
	}
	processor, err := outbox.NewProcessor(c.db, cfg)
	if err != nil {
		return err
	}
	return processor.Run(ctx)
}

// Background makes one message of the kind through the API, and copies its row.
func (c *outboxed) Background(ctx context.Context, kind Background, rows int) error {
	m := c.message(template)
	due := "due_at - random() * interval '1 day'"
	switch kind {
	case FutureRows:
		m.Delay = 24 * time.Hour
		due = "due_at + random() * interval '30 days'"
	case OtherRows:
		m.Topic = otherTopic
	}
	err := c.db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		_, err := outbox.Enqueue(tx, m)
		return err
	})
	if err != nil {
		return err
	}
	if kind == SentRows {
		sent := outbox.TransportFunc(func(context.Context, outbox.Delivery) (string, error) { return "", nil })
		processor, err := outbox.NewProcessor(c.db, outbox.ProcessorConfig{Transports: map[string]outbox.Transport{topic: sent}})
		if err != nil {
			return err
		}
		if summary := processor.ProcessOnce(ctx); summary.Sent != 1 {
			return fmt.Errorf("the message in the background was not sent: %+v", summary)
		}
	}
	db, err := openDatabase(ctx, Options{DSN: c.dsn}, 1)
	if err != nil {
		return err
	}
	defer db.Close()
	return db.multiply(ctx, outbox.DefaultTable, rows, map[string]string{"due_at": due})
}

// Store is the table of the records.
func (c *outboxed) Store() Store {
	finished := "status = 'sent' AND attempts = 1"
	if c.cfg.plugin.DeleteSent {
		finished = "false"
	}
	return Store{Table: outbox.DefaultTable, Number: "(payload->>'n')::bigint", Finished: finished}
}
