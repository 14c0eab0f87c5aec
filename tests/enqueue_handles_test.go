package tests

import (
	"context"
	"database/sql"
	"fmt"
	"testing"

	"github.com/gorm-outbox/outbox"
	"github.com/stretchr/testify/require"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

// handleCase makes one kind of *gorm.DB and hands it to try, which enqueues through it.
type handleCase struct {
	name   string
	accept bool
	with   func(t *testing.T, db *gorm.DB, try func(tx *gorm.DB))
}

// TestC01_Handles tries every kind of handle under every configuration that changes how GORM wraps the connection.
func TestC01_Handles(t *testing.T) {
	configs := map[string]gorm.Config{
		"default":                  {},
		"PrepareStmt":              {PrepareStmt: true},
		"DisableNestedTransaction": {DisableNestedTransaction: true},
		"SkipDefaultTransaction":   {SkipDefaultTransaction: true},
	}
	cases := append(append(append([]handleCase(nil), poolHandles...), transactionHandles...), brokenHandles...)
	for name, cfg := range configs {
		t.Run(name, func(t *testing.T) {
			eachEngine(t, cfg, func(t *testing.T, db *gorm.DB) {
				require.NoError(t, db.AutoMigrate(&hooked{}))
				for _, c := range append(cases, hookHandles(!cfg.SkipDefaultTransaction)...) {
					t.Run(c.name, func(t *testing.T) { c.check(t, db) })
				}
			})
		})
	}
}

// check counts through the pool, which must not see what was accepted before the transaction ends.
func (c handleCase) check(t *testing.T, db *gorm.DB) {
	before := count(t, db, "outbox")
	tried := 0
	c.with(t, db, func(tx *gorm.DB) {
		tried++
		r, err := outbox.Enqueue(tx, mail(c.name))
		if c.accept {
			require.NoError(t, err)
			require.True(t, r.New)
		} else {
			require.ErrorIs(t, err, outbox.ErrNoTransaction)
			require.Zero(t, r)
		}
		require.Equal(t, before, count(t, db, "outbox"), "nothing is to be seen before the commit")
	})
	require.Equal(t, 1, tried)
	if c.accept {
		require.Equal(t, before+1, count(t, db, "outbox"))
	} else {
		require.Equal(t, before, count(t, db, "outbox"))
	}
}

// derived gives a case that derives a handle from the pool's.
func derived(name string, derive func(db *gorm.DB) *gorm.DB) handleCase {
	return handleCase{name, false, func(_ *testing.T, db *gorm.DB, try func(*gorm.DB)) { try(derive(db)) }}
}

// poolHandles run every statement in a transaction of its own, or in none.
var poolHandles = []handleCase{
	derived("db", func(db *gorm.DB) *gorm.DB { return db }),
	derived("WithContext", func(db *gorm.DB) *gorm.DB { return db.WithContext(context.Background()) }),
	derived("Session", func(db *gorm.DB) *gorm.DB { return db.Session(&gorm.Session{}) }),
	derived("Session NewDB", func(db *gorm.DB) *gorm.DB { return db.Session(&gorm.Session{NewDB: true}) }),
	derived("Session PrepareStmt", func(db *gorm.DB) *gorm.DB { return db.Session(&gorm.Session{PrepareStmt: true}) }),
	derived("Session PrepareStmt twice", func(db *gorm.DB) *gorm.DB {
		return db.Session(&gorm.Session{PrepareStmt: true}).Session(&gorm.Session{PrepareStmt: true})
	}),
	derived("Model and Where", func(db *gorm.DB) *gorm.DB { return db.Model(&hooked{}).Where("id = ?", 1) }),
	{"Connection", false, func(t *testing.T, db *gorm.DB, try func(*gorm.DB)) {
		require.NoError(t, db.Connection(func(tx *gorm.DB) error {
			try(tx)
			return nil
		}))
	}},
}

// inside gives a case that derives a handle from a transaction's.
func inside(name string, derive func(tx *gorm.DB) *gorm.DB) handleCase {
	return handleCase{name, true, func(t *testing.T, db *gorm.DB, try func(*gorm.DB)) {
		require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
			try(derive(tx))
			return nil
		}))
	}}
}

// transactionHandles are those that Enqueue is for.
var transactionHandles = []handleCase{
	inside("Transaction", func(tx *gorm.DB) *gorm.DB { return tx }),
	inside("tx.Session", func(tx *gorm.DB) *gorm.DB { return tx.Session(&gorm.Session{}) }),
	inside("tx.Session NewDB", func(tx *gorm.DB) *gorm.DB { return tx.Session(&gorm.Session{NewDB: true}) }),
	inside("tx.WithContext", func(tx *gorm.DB) *gorm.DB { return tx.WithContext(context.Background()) }),
	inside("tx.Debug", func(tx *gorm.DB) *gorm.DB {
		return tx.Session(&gorm.Session{Logger: logger.Discard.LogMode(logger.Info)})
	}),
	inside("tx.Session PrepareStmt", func(tx *gorm.DB) *gorm.DB { return tx.Session(&gorm.Session{PrepareStmt: true}) }),
	inside("tx.Session PrepareStmt twice", func(tx *gorm.DB) *gorm.DB {
		return tx.Session(&gorm.Session{PrepareStmt: true}).Session(&gorm.Session{PrepareStmt: true})
	}),
	inside("tx.Session SkipDefaultTransaction", func(tx *gorm.DB) *gorm.DB {
		return tx.Session(&gorm.Session{SkipDefaultTransaction: true})
	}),
	inside("tx.Model, Where, Select, Order and Limit", func(tx *gorm.DB) *gorm.DB {
		return tx.Model(&hooked{}).Table("nope").Where("nope = ?", 1).Select("nope").Omit("topic").Order("nope").Limit(1)
	}),
	{"Begin and Commit", true, func(t *testing.T, db *gorm.DB, try func(*gorm.DB)) {
		tx := begin(t, db)
		try(tx)
		require.NoError(t, tx.Commit().Error)
	}},
	{"nested Transaction", true, func(t *testing.T, db *gorm.DB, try func(*gorm.DB)) {
		require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
			return tx.Transaction(func(tx *gorm.DB) error {
				try(tx)
				return nil
			})
		}))
	}},
	{"after SavePoint", true, func(t *testing.T, db *gorm.DB, try func(*gorm.DB)) {
		require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
			require.NoError(t, tx.SavePoint("here").Error)
			try(tx)
			return nil
		}))
	}},
	{"after RollbackTo", true, func(t *testing.T, db *gorm.DB, try func(*gorm.DB)) {
		require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
			require.NoError(t, tx.SavePoint("here").Error)
			require.NoError(t, tx.RollbackTo("here").Error)
			try(tx)
			return nil
		}))
	}},
	{"Transaction of a PrepareStmt session", true, func(t *testing.T, db *gorm.DB, try func(*gorm.DB)) {
		require.NoError(t, db.Session(&gorm.Session{PrepareStmt: true}).Transaction(func(tx *gorm.DB) error {
			try(tx)
			return nil
		}))
	}},
}

// brokenHandles come from a transaction and are none, or write nothing.
var brokenHandles = []handleCase{
	{"nil", false, func(_ *testing.T, _ *gorm.DB, try func(*gorm.DB)) { try(nil) }},
	{"zero", false, func(_ *testing.T, _ *gorm.DB, try func(*gorm.DB)) { try(&gorm.DB{}) }},
	{"failed Begin", false, func(t *testing.T, db *gorm.DB, try func(*gorm.DB)) {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		tx := db.WithContext(ctx).Begin()
		require.Error(t, tx.Error)
		try(tx)
	}},
	{"failed Begin with its error cleared", false, func(t *testing.T, db *gorm.DB, try func(*gorm.DB)) {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		tx := db.WithContext(ctx).Begin()
		require.Error(t, tx.Error)
		tx.Error = nil
		try(tx)
	}},
	{"Begin inside a transaction", false, func(t *testing.T, db *gorm.DB, try func(*gorm.DB)) {
		outer := begin(t, db)
		inner := outer.Begin()
		require.ErrorIs(t, inner.Error, gorm.ErrInvalidTransaction)
		try(inner)
		require.NoError(t, outer.Rollback().Error)
	}},
	{"committed", false, func(t *testing.T, db *gorm.DB, try func(*gorm.DB)) {
		tx := begin(t, db)
		require.NoError(t, tx.Commit().Error)
		try(tx)
	}},
	{"rolled back", false, func(t *testing.T, db *gorm.DB, try func(*gorm.DB)) {
		tx := begin(t, db)
		require.NoError(t, tx.Rollback().Error)
		try(tx)
	}},
	{"carries an error", false, func(t *testing.T, db *gorm.DB, try func(*gorm.DB)) {
		require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
			missing := tx.First(&hooked{}, -1)
			require.ErrorIs(t, missing.Error, gorm.ErrRecordNotFound)
			try(missing)
			return nil
		}))
	}},
	{"DryRun", false, func(t *testing.T, db *gorm.DB, try func(*gorm.DB)) {
		tx := begin(t, db.Session(&gorm.Session{DryRun: true}))
		try(tx)
		require.NoError(t, tx.Rollback().Error)
	}},
	{"DryRun of a transaction", false, func(t *testing.T, db *gorm.DB, try func(*gorm.DB)) {
		tx := begin(t, db)
		try(tx.Session(&gorm.Session{DryRun: true}))
		require.NoError(t, tx.Rollback().Error)
	}},
}

// hooked is a model whose hooks run what a test gives it.
type hooked struct {
	ID    int64
	Name  string
	hooks map[string]func(tx *gorm.DB)
}

func (h *hooked) run(hook string, tx *gorm.DB) error {
	if f := h.hooks[hook]; f != nil {
		f(tx)
	}
	return nil
}

func (h *hooked) BeforeSave(tx *gorm.DB) error   { return h.run("BeforeSave", tx) }
func (h *hooked) AfterSave(tx *gorm.DB) error    { return h.run("AfterSave", tx) }
func (h *hooked) BeforeCreate(tx *gorm.DB) error { return h.run("BeforeCreate", tx) }
func (h *hooked) AfterCreate(tx *gorm.DB) error  { return h.run("AfterCreate", tx) }
func (h *hooked) BeforeUpdate(tx *gorm.DB) error { return h.run("BeforeUpdate", tx) }
func (h *hooked) AfterUpdate(tx *gorm.DB) error  { return h.run("AfterUpdate", tx) }
func (h *hooked) BeforeDelete(tx *gorm.DB) error { return h.run("BeforeDelete", tx) }
func (h *hooked) AfterDelete(tx *gorm.DB) error  { return h.run("AfterDelete", tx) }
func (h *hooked) AfterFind(tx *gorm.DB) error    { return h.run("AfterFind", tx) }

// hookHandles are those that a model's hooks get from db itself: the default transaction's, if there is one.
func hookHandles(defaultTransaction bool) []handleCase {
	var cases []handleCase
	for _, hook := range []string{"BeforeSave", "AfterSave", "BeforeCreate", "AfterCreate"} {
		cases = append(cases, handleCase{hook, defaultTransaction, func(t *testing.T, db *gorm.DB, try func(*gorm.DB)) {
			require.NoError(t, db.Create(&hooked{hooks: map[string]func(*gorm.DB){hook: try}}).Error)
		}})
	}
	for _, hook := range []string{"BeforeUpdate", "AfterUpdate", "BeforeDelete", "AfterDelete"} {
		cases = append(cases, handleCase{hook, defaultTransaction, func(t *testing.T, db *gorm.DB, try func(*gorm.DB)) {
			h := &hooked{}
			require.NoError(t, db.Create(h).Error)
			h.hooks = map[string]func(*gorm.DB){hook: try}
			require.NoError(t, db.Model(h).Update("name", "changed").Error)
			require.NoError(t, db.Delete(h).Error)
		}})
	}
	return append(cases,
		handleCase{"AfterCreate in a batch", defaultTransaction, func(t *testing.T, db *gorm.DB, try func(*gorm.DB)) {
			batch := []*hooked{{}, {hooks: map[string]func(*gorm.DB){"AfterCreate": try}}, {}}
			require.NoError(t, db.CreateInBatches(batch, 2).Error)
		}},
		handleCase{"hook of a model saved in a transaction", true, func(t *testing.T, db *gorm.DB, try func(*gorm.DB)) {
			require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
				return tx.Create(&hooked{hooks: map[string]func(*gorm.DB){"AfterCreate": try}}).Error
			}))
		}},
		handleCase{"AfterFind", false, func(t *testing.T, db *gorm.DB, try func(*gorm.DB)) {
			require.NoError(t, db.Create(&hooked{}).Error)
			require.NoError(t, db.First(&hooked{hooks: map[string]func(*gorm.DB){"AfterFind": try}}).Error)
		}},
		handleCase{"hook's handle kept after the call", false, func(t *testing.T, db *gorm.DB, try func(*gorm.DB)) {
			var kept *gorm.DB
			keep := func(tx *gorm.DB) { kept = tx }
			require.NoError(t, db.Create(&hooked{hooks: map[string]func(*gorm.DB){"AfterCreate": keep}}).Error)
			try(kept)
		}},
	)
}

// shardPool has the shape that sharding plugins give to a connection: methods of a transaction over whatever it holds.
type shardPool struct{ gorm.ConnPool }

func (p *shardPool) BeginTx(context.Context, *sql.TxOptions) (gorm.ConnPool, error) { return p, nil }
func (*shardPool) Commit() error                                                    { return nil }
func (*shardPool) Rollback() error                                                  { return nil }

// TestC01_HandlesOverForeignPools opens GORM over what is a transaction already, or only looks like one.
func TestC01_HandlesOverForeignPools(t *testing.T) {
	over := func(t *testing.T, pool gorm.ConnPool, cfg gorm.Config) *gorm.DB {
		cfg.Logger, cfg.DisableAutomaticPing = logger.Discard, true
		db, err := gorm.Open(postgres.New(postgres.Config{Conn: pool}), &cfg)
		require.NoError(t, err)
		require.NoError(t, db.Use(outbox.Plugin{SkipMigrate: true}))
		return db
	}
	overTx := func(wrap func(*sql.Tx) gorm.ConnPool, cfg gorm.Config) func(*testing.T, *gorm.DB, func(*gorm.DB)) {
		return func(t *testing.T, db *gorm.DB, try func(*gorm.DB)) {
			pool, err := db.DB()
			require.NoError(t, err)
			tx, err := pool.BeginTx(t.Context(), nil)
			require.NoError(t, err)
			try(over(t, wrap(tx), cfg))
			require.NoError(t, tx.Commit())
		}
	}
	bare := func(tx *sql.Tx) gorm.ConnPool { return tx }
	sharded := func(tx *sql.Tx) gorm.ConnPool { return &shardPool{tx} }
	cases := []handleCase{
		{"*sql.Tx", true, overTx(bare, gorm.Config{})},
		{"*sql.Tx with PrepareStmt", true, overTx(bare, gorm.Config{PrepareStmt: true})},
		{"Transaction over *sql.Tx", true, func(t *testing.T, db *gorm.DB, try func(*gorm.DB)) {
			overTx(bare, gorm.Config{})(t, db, func(tx *gorm.DB) {
				require.NoError(t, tx.Transaction(func(tx *gorm.DB) error {
					try(tx)
					return nil
				}))
			})
		}},
		{"sharded *sql.Tx", true, overTx(sharded, gorm.Config{})},
		{"sharded *sql.DB", false, func(t *testing.T, db *gorm.DB, try func(*gorm.DB)) {
			try(over(t, &shardPool{db.ConnPool}, gorm.Config{}))
		}},
		{"Transaction over a sharded *sql.DB", false, func(t *testing.T, db *gorm.DB, try func(*gorm.DB)) {
			require.NoError(t, over(t, &shardPool{db.ConnPool}, gorm.Config{}).Transaction(func(tx *gorm.DB) error {
				try(tx)
				return nil
			}))
		}},
		{"hook over a sharded *sql.DB", false, func(t *testing.T, db *gorm.DB, try func(*gorm.DB)) {
			h := &hooked{hooks: map[string]func(*gorm.DB){"AfterCreate": try}}
			require.NoError(t, over(t, &shardPool{db.ConnPool}, gorm.Config{}).Create(h).Error)
		}},
	}
	db := newPostgres(t, gorm.Config{})
	require.NoError(t, db.AutoMigrate(&hooked{}))
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { c.check(t, db) })
	}
}

// TestC01_TheHandleStaysTheCallers: the caller's clauses, settings and errors are as before the call.
func TestC01_TheHandleStaysTheCallers(t *testing.T) {
	for _, prepared := range []bool{false, true} {
		t.Run(fmt.Sprintf("PrepareStmt=%t", prepared), func(t *testing.T) {
			eachEngine(t, gorm.Config{PrepareStmt: prepared}, leavesTheHandleAlone)
		})
	}
}

func leavesTheHandleAlone(t *testing.T, db *gorm.DB) {
	require.NoError(t, db.AutoMigrate(&purchase{}))
	require.NoError(t, db.Create([]purchase{{ID: 1, Note: "a"}, {ID: 2, Note: "b"}}).Error)
	require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
		dirty := tx.Model(&purchase{}).Where("note = ?", "b").Select("id")
		_, err := outbox.Enqueue(dirty, keyed("one", "", "k"))
		require.NoError(t, err)
		_, err = outbox.Enqueue(dirty, keyed("two", "", "k"))
		require.NoError(t, err)
		_, err = outbox.Enqueue(dirty, outbox.Message{})
		require.Error(t, err)
		require.NoError(t, dirty.Error)
		var ids []int64
		require.NoError(t, dirty.Find(&ids).Error)
		require.Equal(t, []int64{2}, ids)
		return tx.Create(&purchase{ID: 3}).Error
	}))
	require.EqualValues(t, 3, count(t, db, "purchases"))
	require.EqualValues(t, 1, count(t, db, "outbox"))
}
