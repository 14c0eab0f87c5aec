package contender

import (
	"context"
	"errors"
)

// plain are the transactions without a message: what an enqueue is compared with.
var plain = []Definition{
	{
		Name: "no-outbox-gorm", About: "the same GORM transaction without a message", Cases: []string{"A"},
		Open: func(_ context.Context, o Options) (Contender, error) {
			app, err := openApp(o)
			return withoutGORM{app: app}, err
		},
	},
	{
		Name: "no-outbox-pgx", About: "the same pgx transaction without a message", Cases: []string{"A"},
		Open: func(ctx context.Context, o Options) (Contender, error) {
			db, err := openDatabase(ctx, o, 1)
			return withoutPgx{database: db}, err
		},
	},
}

// silent is the part of a contender that knows no messages.
type silent struct{}

// Bulk is not for it.
func (silent) Bulk(context.Context, int, int) error { return errors.ErrUnsupported }

// Drain is not for it.
func (silent) Drain(context.Context, Work) error { return errors.ErrUnsupported }

// Store has no table.
func (silent) Store() Store { return Store{} }

type withoutGORM struct {
	silent
	app
}

// Setup makes the app's table.
func (c withoutGORM) Setup(ctx context.Context) error { return c.setup(ctx) }

// EnqueueTx writes the app's row alone.
func (c withoutGORM) EnqueueTx(ctx context.Context, n int) error { return c.order(ctx, n, nil) }

type withoutPgx struct {
	silent
	database
}

// Setup makes the app's table.
func (c withoutPgx) Setup(ctx context.Context) error { return c.setup(ctx) }

// EnqueueTx writes the app's row alone.
func (c withoutPgx) EnqueueTx(ctx context.Context, n int) error { return c.order(ctx, n, nil) }
