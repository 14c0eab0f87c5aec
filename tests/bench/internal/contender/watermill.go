package contender

import (
	"context"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	wm "github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

var watermills = []Definition{
	{
		Name: "watermill-default", About: "Watermill-SQL, Postgres queue schema: batch 100, ack by UPDATE, poll 1 s",
		Cases: []string{"A", "C1", "E", "F-plain", "F-sent", "G"}, Open: watermillConfig{finished: "acked"}.open,
	},
	{
		Name: "watermill-tuned", About: "batch 1000, DeleteOnAck, poll 10 ms",
		Cases: []string{"B", "C", "D", "E", "X", "G"},
		Open: watermillConfig{
			schema: sql.PostgreSQLQueueSchema{SubscribeBatchSize: 1000}, offsets: sql.PostgreSQLQueueOffsetsAdapter{DeleteOnAck: true},
			poll: 10 * time.Millisecond, finished: "false",
		}.open,
	},
}

type watermillConfig struct {
	schema   sql.PostgreSQLQueueSchema
	offsets  sql.PostgreSQLQueueOffsetsAdapter
	poll     time.Duration // zero: Watermill's own
	finished string        // see Store
}

// watermillQueue delivers one message after the other, in a transaction that holds the batch.
type watermillQueue struct {
	database
	cfg watermillConfig
}

func (cfg watermillConfig) open(ctx context.Context, o Options) (Contender, error) {
	db, err := openDatabase(ctx, o, 4)
	return &watermillQueue{db, cfg}, err
}

const watermillTopic = "orders"

// Setup lets a subscriber make the table.
func (c *watermillQueue) Setup(ctx context.Context) error {
	if err := c.setup(ctx); err != nil {
		return err
	}
	subscriber, err := c.subscriber()
	if err != nil {
		return err
	}
	return subscriber.SubscribeInitialize(watermillTopic)
}

func (c *watermillQueue) subscriber() (*sql.Subscriber, error) {
	return sql.NewSubscriber(sql.BeginnerFromPgx(c.pool), sql.SubscriberConfig{
		SchemaAdapter: c.cfg.schema, OffsetsAdapter: c.cfg.offsets, PollInterval: c.cfg.poll,
	}, watermill.NopLogger{})
}

// publish uses a publisher made for the transaction, as Watermill's documentation does.
func (c *watermillQueue) publish(ctx context.Context, tx pgx.Tx, from, to int) error {
	publisher, err := sql.NewPublisher(sql.TxFromPgx(tx), sql.PublisherConfig{SchemaAdapter: c.cfg.schema}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	messages := make([]*wm.Message, 0, to-from)
	for n := from; n < to; n++ {
		messages = append(messages, wm.NewMessageWithContext(ctx, watermill.NewUUID(), Payload(n)))
	}
	return publisher.Publish(watermillTopic, messages...)
}

// EnqueueTx publishes one message.
func (c *watermillQueue) EnqueueTx(ctx context.Context, n int) error {
	return c.order(ctx, n, func(tx pgx.Tx) error { return c.publish(ctx, tx, n, n+1) })
}

// Bulk publishes many.
func (c *watermillQueue) Bulk(ctx context.Context, from, to int) error {
	return pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error { return c.publish(ctx, tx, from, to) })
}

// Drain is one subscriber, with a subscription for each topic.
func (c *watermillQueue) Drain(ctx context.Context, w Work) error {
	subscriber, err := c.subscriber()
	if err != nil {
		return err
	}
	var subscriptions errgroup.Group
	for i := range max(w.Topics, 1) {
		name := watermillTopic
		if i > 0 {
			name = fmt.Sprintf("%s_%d", watermillTopic, i)
			if err := subscriber.SubscribeInitialize(name); err != nil {
				return err
			}
		}
		messages, err := subscriber.Subscribe(context.WithoutCancel(ctx), name)
		if err != nil {
			return err
		}
		subscriptions.Go(func() error {
			for m := range messages {
				w.Handle(ctx, m.Payload)
				m.Ack()
			}
			return nil
		})
	}
	<-ctx.Done()
	if w.Finished() {
		c.awaitAcks(context.WithoutCancel(ctx))
	}
	if err := subscriber.Close(); err != nil {
		return err
	}
	return subscriptions.Wait()
}

// awaitAcks waits for the last acknowledgements to be written: Close may drop those under way.
func (c *watermillQueue) awaitAcks(ctx context.Context) {
	const most, look = 10 * time.Second, 2 * time.Millisecond
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	open := fmt.Sprintf("SELECT EXISTS (SELECT FROM %s WHERE NOT %s)", c.Store().Table, c.cfg.finished)
	for left := true; left && ctx.Err() == nil; pause(ctx, look) {
		if err := c.pool.QueryRow(ctx, open).Scan(&left); err != nil {
			return // the check after the run will tell
		}
	}
}

// Background copies one acknowledged message. Nothing here is ever due later, and every topic has its own table.
func (c *watermillQueue) Background(ctx context.Context, _ Background, rows int) error {
	if err := c.Bulk(ctx, template, template+1); err != nil {
		return err
	}
	if _, err := c.pool.Exec(ctx, "UPDATE "+c.Store().Table+" SET acked = true"); err != nil {
		return err
	}
	return c.multiply(ctx, c.Store().Table, rows, nil)
}

// Store is the topic's table.
func (c *watermillQueue) Store() Store {
	return Store{Table: "watermill_" + watermillTopic, Number: "(payload->>'n')::bigint", Finished: c.cfg.finished}
}
