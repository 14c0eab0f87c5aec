package contender

import (
	"context"
	"time"

	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

// app is an application that uses GORM as its documentation shows: defaults, and a pool that is large enough.
type app struct{ db *gorm.DB }

// order is its model.
type order struct {
	ID        int64
	Customer  string
	Total     int64
	CreatedAt time.Time
}

func openApp(o Options) (app, error) {
	db, err := gorm.Open(postgres.Open(o.DSN), &gorm.Config{Logger: logger.Discard})
	if err != nil {
		return app{}, err
	}
	pool, err := db.DB()
	if err != nil {
		return app{}, err
	}
	pool.SetMaxOpenConns(o.Conns)
	pool.SetMaxIdleConns(o.Conns) // the default, two, would open a connection for most transactions
	return app{db}, nil
}

// Close ends the pool's connections.
func (a app) Close() {
	if pool, err := a.db.DB(); err == nil {
		_ = pool.Close() // the process ends as well
	}
}

func (a app) setup(ctx context.Context) error { return a.db.WithContext(ctx).Exec(ordersSchema).Error }

// order runs a transaction with a row of the app's and whatever add adds to it.
func (a app) order(ctx context.Context, n int, add func(tx *gorm.DB) error) error {
	return a.db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		if err := tx.Create(&order{Customer: customer(n), Total: int64(n)}).Error; err != nil || add == nil {
			return err
		}
		return add(tx)
	})
}
