package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/glebarez/sqlite"
	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"gorm.io/gorm"
)

// openShop opens a database of its own for an example.
func openShop() (*gorm.DB, func()) {
	dir, err := os.MkdirTemp("", "outbox-example")
	if err != nil {
		panic(err)
	}
	db, err := gorm.Open(sqlite.Open(filepath.Join(dir, "shop.db")), &gorm.Config{})
	if err != nil {
		panic(err)
	}
	return db, func() {
		if pool, err := db.DB(); err == nil {
			_ = pool.Close()
		}
		_ = os.RemoveAll(dir)
	}
}

type Order struct {
	ID    int64
	Email string
}

func Example() {
	db, closeShop := openShop()
	defer closeShop()

	// At start: install the outbox.
	if err := db.Use(outbox.Plugin{}); err != nil {
		panic(err)
	}
	_ = db.AutoMigrate(&Order{})

	// In the service: the order and its message commit together.
	err := db.Transaction(func(tx *gorm.DB) error {
		order := Order{Email: "ana@example.test"}
		if err := tx.Create(&order).Error; err != nil {
			return err
		}
		_, err := outbox.Enqueue(tx, outbox.Message{
			Topic:          "email",
			Type:           "order_confirmation",
			Recipient:      order.Email,
			IdempotencyKey: fmt.Sprintf("order-confirmation-%d", order.ID),
			Payload:        map[string]any{"order": order.ID},
		})
		return err
	})
	if err != nil {
		panic(err)
	}

	// In the worker: deliver what is due.
	email := outbox.TransportFunc(func(ctx context.Context, d outbox.Delivery) (string, error) {
		fmt.Println(d.Type, "to", d.Recipient, string(d.Payload), "key", d.ProviderKey)
		return "provider-id-1", nil
	})
	processor, err := outbox.NewProcessor(db, outbox.ProcessorConfig{Transports: map[string]outbox.Transport{"email": email}})
	if err != nil {
		panic(err)
	}
	summary := processor.ProcessOnce(context.Background())
	fmt.Println("claimed", summary.Claimed, "sent", summary.Sent)
	// Output:
	// order_confirmation to ana@example.test {"order":1} key :order-confirmation-1
	// claimed 1 sent 1
}

func ExampleEnqueue() {
	db, closeShop := openShop()
	defer closeShop()
	_ = db.Use(outbox.Plugin{})

	// A request that is repeated enqueues once.
	reminder := outbox.Message{Topic: "email", Type: "invoice_reminder", IdempotencyKey: "invoice-7-reminder", Delay: 24 * time.Hour}
	for range 2 {
		_ = db.Transaction(func(tx *gorm.DB) error {
			receipt, err := outbox.Enqueue(tx, reminder)
			fmt.Println("record", receipt.ID, "new", receipt.New)
			return err
		})
	}

	// Outside a transaction nothing is written.
	_, err := outbox.Enqueue(db, reminder)
	fmt.Println(errors.Is(err, outbox.ErrNoTransaction))

	// Nor is a message that the database could not store. The transaction stays usable.
	_ = db.Transaction(func(tx *gorm.DB) error {
		_, err := outbox.Enqueue(tx, outbox.Message{Topic: "email", Payload: "a\x00b"})
		fmt.Println(errors.Is(err, outbox.ErrInvalid))
		return nil
	})
	// Output:
	// record 1 new true
	// record 1 new false
	// true
	// true
}

func ExampleEnqueueAll() {
	db, closeShop := openShop()
	defer closeShop()
	_ = db.Use(outbox.Plugin{})

	_ = db.Transaction(func(tx *gorm.DB) error {
		receipts, err := outbox.EnqueueAll(tx, []outbox.Message{
			{Topic: "orders", Type: "evt.order.created.v1", IdempotencyKey: "order-7"},
			{Topic: "orders", Type: "evt.order.created.v1", IdempotencyKey: "order-8"},
			{Topic: "orders", Type: "evt.order.created.v1", IdempotencyKey: "order-7"},
		})
		for _, r := range receipts {
			fmt.Println("record", r.ID, "new", r.New)
		}
		return err
	})
	// Output:
	// record 1 new true
	// record 2 new true
	// record 1 new false
}

func ExampleHandle() {
	db, closeShop := openShop()
	defer closeShop()
	_ = db.Use(outbox.Plugin{})

	type OrderCreated struct {
		OrderID int64 `json:"order_id"`
	}
	orders := outbox.Handle(func(_ context.Context, event OrderCreated, d outbox.Delivery) error {
		fmt.Println("order", event.OrderID, "attempt", d.Attempt, "of", d.MaxAttempts)
		return nil
	})
	_ = db.Transaction(func(tx *gorm.DB) error {
		_, err := outbox.Enqueue(tx, outbox.Message{Topic: "orders", Type: "evt.order.created.v1", Payload: OrderCreated{OrderID: 7}})
		return err
	})

	processor, _ := outbox.NewProcessor(db, outbox.ProcessorConfig{Transports: map[string]outbox.Transport{"orders": orders}})
	processor.ProcessOnce(context.Background())
	// Output: order 7 attempt 1 of 8
}

func ExampleDecode() {
	// A payload that does not fit is no use trying again: the message is discarded.
	_, err := outbox.Decode[struct{ Order int }](outbox.Delivery{Payload: []byte(`{"Order": "seven"}`)})
	fmt.Println(policy.Classify(err), err)
	// Output: permanent outbox: delivery failed: payload/decode
}

func ExampleTransportFunc() {
	db, closeShop := openShop()
	defer closeShop()
	_ = db.Use(outbox.Plugin{})
	_ = db.Transaction(func(tx *gorm.DB) error {
		_, err := outbox.EnqueueAll(tx, []outbox.Message{
			{Topic: "email", Recipient: "nobody@example.test"}, {Topic: "email", Recipient: "ana@example.test"},
		})
		return err
	})

	// A transport says what went wrong and whether trying again can help.
	email := outbox.TransportFunc(func(_ context.Context, d outbox.Delivery) (string, error) {
		if strings.HasPrefix(d.Recipient, "nobody@") {
			return "", &policy.Failure{Category: policy.CategoryNumber, Code: "550"}
		}
		return "", errors.New("connection reset by peer")
	})
	processor, _ := outbox.NewProcessor(db, outbox.ProcessorConfig{Transports: map[string]outbox.Transport{"email": email}})
	summary := processor.ProcessOnce(context.Background())
	fmt.Println("discarded", summary.Discarded, "retried", summary.Retried)

	var record outbox.Record
	db.First(&record, "recipient = ?", "nobody@example.test")
	fmt.Println(record.Status, *record.LastErrorCategory, *record.LastErrorCode)
	// Output:
	// discarded 1 retried 1
	// discarded number 550
}

func ExampleProcessor_Run() {
	db, closeShop := openShop()
	defer closeShop()
	_ = db.Use(outbox.Plugin{})

	delivered := make(chan string)
	orders := outbox.TransportFunc(func(_ context.Context, d outbox.Delivery) (string, error) {
		delivered <- d.Type
		return "", nil
	})
	processor, _ := outbox.NewProcessor(db, outbox.ProcessorConfig{
		Transports:   map[string]outbox.Transport{"orders": orders},
		PollInterval: 10 * time.Millisecond,
	})

	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- processor.Run(ctx) }()

	_ = db.Transaction(func(tx *gorm.DB) error {
		_, err := outbox.Enqueue(tx, outbox.Message{Topic: "orders", Type: "evt.order.created.v1"})
		return err
	})
	fmt.Println(<-delivered)
	stop() // as on SIGTERM: what has started is finished and recorded
	fmt.Println(<-done)
	// Output:
	// evt.order.created.v1
	// <nil>
}

func ExamplePlugin() {
	db, closeShop := openShop()
	defer closeShop()

	// Two outboxes: the default one, and one for notices with its own table and tenants.
	notices := outbox.Plugin{Table: "notices", Tenant: outbox.TenantColumn{Name: "club_id", Type: "bigint"}, MaxAttempts: 3}
	_ = db.Use(outbox.Plugin{})
	_ = db.Use(notices)

	_ = db.Transaction(func(tx *gorm.DB) error {
		receipt, err := notices.Enqueue(tx, outbox.Message{Topic: "whatsapp", TenantID: "12", IdempotencyKey: "match-3-tomorrow"})
		fmt.Println(receipt.ID, receipt.New, err)
		return err
	})

	var count int64
	db.Table("notices").Where("club_id = ?", 12).Count(&count)
	fmt.Println(count)
	// Output:
	// 1 true <nil>
	// 1
}

func ExampleMigrationSQL() {
	// For goose, atlas, golang-migrate: the schema as SQL, with the plugin told to leave it alone.
	statements, err := outbox.MigrationSQL("postgres", outbox.Plugin{Table: "app.outbox"})
	if err != nil {
		panic(err)
	}
	for _, line := range strings.Split(statements, "\n") {
		if strings.HasPrefix(line, "CREATE INDEX") {
			fmt.Println(line)
		}
	}
	// Output:
	// CREATE INDEX IF NOT EXISTS "outbox_claim" ON "app"."outbox" (topic, due_at, id) WHERE sent_at IS NULL AND dead_at IS NULL;
	// CREATE INDEX IF NOT EXISTS "outbox_external" ON "app"."outbox" (external_id) WHERE external_id IS NOT NULL;
	// CREATE INDEX IF NOT EXISTS "outbox_dead" ON "app"."outbox" (dead_at) WHERE dead_at IS NOT NULL;
}

func ExampleConsumeOnce() {
	db, closeShop := openShop()
	defer closeShop()
	_ = db.Use(outbox.Plugin{})

	// A consumer gets a message twice, as at-least-once delivery may have it. The effect happens once.
	for range 2 {
		_ = db.Transaction(func(tx *gorm.DB) error {
			ran, err := outbox.ConsumeOnce(tx, "credits", "01930000-0000-7000-8000-000000000000", func(tx *gorm.DB) error {
				fmt.Println("granting credits")
				return nil
			})
			fmt.Println("ran", ran)
			return err
		})
	}
	// Output:
	// granting credits
	// ran true
	// ran false
}

func ExampleCancel() {
	db, closeShop := openShop()
	defer closeShop()
	_ = db.Use(outbox.Plugin{})

	_ = db.Transaction(func(tx *gorm.DB) error {
		_, err := outbox.Enqueue(tx, outbox.Message{Topic: "email", IdempotencyKey: "invoice-7-reminder", Delay: 24 * time.Hour})
		return err
	})

	// The invoice is paid: no reminder. Both are committed together.
	_ = db.Transaction(func(tx *gorm.DB) error {
		withdrawn, err := outbox.Cancel(tx, outbox.Filter{IdempotencyKey: "invoice-7-reminder"})
		fmt.Println("withdrawn", withdrawn)
		return err
	})
	// Output: withdrawn 1
}

func ExampleRedrive() {
	db, closeShop := openShop()
	defer closeShop()
	_ = db.Use(outbox.Plugin{})
	_ = db.Transaction(func(tx *gorm.DB) error {
		_, err := outbox.EnqueueAll(tx, []outbox.Message{{Topic: "email"}, {Topic: "email"}})
		return err
	})
	revoked := outbox.TransportFunc(func(context.Context, outbox.Delivery) (string, error) {
		return "", policy.Failure{Category: policy.CategoryCredentials, Code: "invalid_api_key"}
	})
	processor, _ := outbox.NewProcessor(db, outbox.ProcessorConfig{Transports: map[string]outbox.Transport{"email": revoked}})
	fmt.Println(processor.ProcessOnce(context.Background()))

	// The key has been renewed. How many would it be? Then try them again, ten a second.
	renewed := outbox.Filter{Category: "credentials", DryRun: true, Rate: 10}
	count, _ := outbox.Redrive(db, renewed)
	fmt.Println("dead", count)
	renewed.DryRun = false
	count, _ = outbox.Redrive(db, renewed)
	fmt.Println("revived", count)
	// Output:
	// claimed 2, discarded 2
	// dead 2
	// revived 2
}

func ExampleStats() {
	db, closeShop := openShop()
	defer closeShop()
	_ = db.Use(outbox.Plugin{})
	_ = db.Transaction(func(tx *gorm.DB) error {
		_, err := outbox.EnqueueAll(tx, []outbox.Message{{Topic: "email"}, {Topic: "orders", Delay: time.Hour}})
		return err
	})

	stats, _ := outbox.Stats(db)
	for _, topic := range stats {
		fmt.Println(topic.Topic, "due", topic.Due, "scheduled", topic.Scheduled, "alert", topic.OldestDue > 5*time.Minute)
	}
	// Output:
	// email due 1 scheduled 0 alert false
	// orders due 0 scheduled 1 alert false
}

func ExampleExplain() {
	db, closeShop := openShop()
	defer closeShop()
	_ = db.Use(outbox.Plugin{})
	_ = db.Transaction(func(tx *gorm.DB) error {
		_, err := outbox.Enqueue(tx, outbox.Message{Topic: "email", ScheduledFor: time.Date(2100, 1, 1, 9, 0, 0, 0, time.UTC)})
		return err
	})
	why, _ := outbox.Explain(db, 1)
	fmt.Println(why)
	// Output: Record 1 of topic email is not due until 2100-01-01T09:00:00Z.
}

func ExamplePurge() {
	db, closeShop := openShop()
	defer closeShop()
	_ = db.Use(outbox.Plugin{})

	// From a daily job: what has ended a week ago goes, what lives stays.
	deleted, err := outbox.Purge(db, outbox.PurgeOptions{OlderThan: 7 * 24 * time.Hour})
	fmt.Println(deleted, err)

	// What has not ended is never purged.
	_, err = outbox.Purge(db, outbox.PurgeOptions{OlderThan: time.Hour, Statuses: []outbox.Status{outbox.StatusPending}})
	fmt.Println(errors.Is(err, outbox.ErrInvalid))
	// Output:
	// 0 <nil>
	// true
}

func ExampleReadSettings() {
	table := map[string]string{"OUTBOX_BATCH_SIZE": "200", "OUTBOX_LEASE_SECONDS": "120"}
	lookup := func(key string) (string, bool) { // or os.LookupEnv
		value, ok := table[key]
		return value, ok
	}
	settings, err := outbox.ReadSettings(lookup)
	fmt.Println(settings.BatchSize, settings.Lease, err)

	table["OUTBOX_BATCH_SIZE"], table["OUTBOX_LEASE_SECONDS"] = "5000", "soon"
	_, err = outbox.ReadSettings(lookup)
	fmt.Println(err)
	// Output:
	// 200 2m0s <nil>
	// outbox: invalid: settings: OUTBOX_BATCH_SIZE must be a whole number from 1 to 500; OUTBOX_LEASE_SECONDS must be a whole number from 10 to 3600
}
