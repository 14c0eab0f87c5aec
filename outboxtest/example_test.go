package outboxtest_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/glebarez/sqlite"
	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/outboxtest"
	"github.com/gorm-outbox/outbox/policy"
	"gorm.io/gorm"
)

// openExample opens a database of its own for an example.
func openExample() (db *gorm.DB, end func()) {
	dir, err := os.MkdirTemp("", "outboxtest")
	if err != nil {
		panic(err)
	}
	db, err = gorm.Open(sqlite.Open(filepath.Join(dir, "shop.db")), &gorm.Config{})
	if err != nil {
		panic(err)
	}
	if err := db.Use(outbox.Plugin{}); err != nil {
		panic(err)
	}
	return db, func() {
		if pool, err := db.DB(); err == nil {
			_ = pool.Close()
		}
		_ = os.RemoveAll(dir)
	}
}

// exampleT stands for the *testing.T of your test, and shows what it would say.
type exampleT struct{}

func (exampleT) Helper()                           {}
func (exampleT) Errorf(format string, args ...any) { fmt.Printf(format+"\n", args...) }
func (exampleT) FailNow()                          { runtime.Goexit() }

// placeOrder is the code under test.
func placeOrder(tx *gorm.DB) error {
	_, err := outbox.Enqueue(tx, outbox.Message{
		Topic: "email", Type: "order_confirmation", Recipient: "ana@example.test", IdempotencyKey: "order-7",
		Payload: map[string]int{"order": 7},
	})
	return err
}

func ExampleRequireEnqueued() {
	db, end := openExample()
	defer end()
	t := exampleT{}

	_ = db.Transaction(func(tx *gorm.DB) error {
		_ = placeOrder(tx)
		r := outboxtest.RequireEnqueued(t, tx, outboxtest.Match{
			Topic: "email", IdempotencyKey: "order-7", Payload: map[string]int{"order": 7},
		})
		fmt.Println(r.Type, "to", r.Recipient)
		return nil
	})
	// Output: order_confirmation to ana@example.test
}

func ExampleRequireNotEnqueued() {
	db, end := openExample()
	defer end()
	t := exampleT{}

	err := db.Transaction(func(tx *gorm.DB) error {
		_ = placeOrder(tx)
		return fmt.Errorf("out of stock")
	})
	outboxtest.RequireNotEnqueued(t, db, outboxtest.Match{Topic: "email"})
	fmt.Println("no e-mail:", err)
	// Output: no e-mail: out of stock
}

func ExampleRequireCount() {
	db, end := openExample()
	defer end()
	t := exampleT{}
	_ = db.Transaction(placeOrder)

	done := make(chan struct{})
	go func() { // only because a failure ends the goroutine
		defer close(done)
		outboxtest.RequireCount(t, db, 2, outboxtest.Match{Topic: "email", Recipient: "ana@example.test"})
	}()
	<-done
	// Output:
	// 1 enqueued with topic "email", the recipient; must be 2
	// enqueued:
	// 	topic "email", type "order_confirmation", key "order-7" (pending)
}

func ExampleRecorder() {
	db, end := openExample()
	defer end()
	_ = db.Transaction(placeOrder)

	rec := outboxtest.NewRecorder(outboxtest.Refuse(policy.CategoryNumber, "550"))
	p, err := outbox.NewProcessor(db, outbox.ProcessorConfig{Transports: map[string]outbox.Transport{"email": rec}})
	if err != nil {
		panic(err)
	}
	summary := p.ProcessOnce(context.Background())
	fmt.Println("discarded:", summary.Discarded)
	for _, d := range rec.Deliveries() {
		fmt.Println(d.Type, "to", d.Recipient, string(d.Payload))
	}
	// Output:
	// discarded: 1
	// order_confirmation to ana@example.test {"order":7}
}

func ExampleRunContract() {
	var t *testing.T // of a test of yours
	outboxtest.RunContract(t, func(t *testing.T) *gorm.DB {
		db, err := gorm.Open(sqlite.Open(filepath.Join(t.TempDir(), "contract.db")), &gorm.Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if pool, err := db.DB(); err == nil {
				_ = pool.Close()
			}
		})
		return db
	})
}
