package tests

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx of database/sql
	"github.com/stretchr/testify/require"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/schema"
	gormtests "gorm.io/gorm/utils/tests"
	"gorm.io/plugin/dbresolver"
)

// configurations are what apps set in GORM for purposes of their own.
var configurations = map[string]gorm.Config{
	"PrepareStmt":            {PrepareStmt: true},
	"SkipDefaultTransaction": {SkipDefaultTransaction: true},
	"NamingStrategy":         {NamingStrategy: schema.NamingStrategy{TablePrefix: "app.", SingularTable: true, NoLowerCase: true}},
	"NameReplacer":           {NamingStrategy: schema.NamingStrategy{NameReplacer: strings.NewReplacer("id", "nr", "ID", "NR", "outbox", "x")}},
	"TranslateError":         {TranslateError: true},
	"CreateBatchSize":        {CreateBatchSize: 1},
	"QueryFields":            {QueryFields: true, AllowGlobalUpdate: true, FullSaveAssociations: true, PropagateUnscoped: true},
	"timeouts":               {DefaultTransactionTimeout: time.Minute, DefaultContextTimeout: time.Minute},
	"no nesting, no ping":    {DisableNestedTransaction: true, DisableAutomaticPing: true},
	"everything": {
		PrepareStmt: true, SkipDefaultTransaction: true, TranslateError: true, DisableNestedTransaction: true, CreateBatchSize: 2,
		NamingStrategy: schema.NamingStrategy{TablePrefix: "t_", NoLowerCase: true},
		NowFunc:        func() time.Time { return time.Unix(0, 0) },
	},
}

func TestPlugin_WorksUnderEveryConfigurationOfGORM(t *testing.T) {
	for name, cfg := range configurations {
		t.Run(name, func(t *testing.T) {
			eachEngine(t, cfg, func(t *testing.T, db *gorm.DB) {
				require.NoError(t, outbox.Migrate(db))
				wholeLife(t, db, outbox.Plugin{})
				afterLife(t, db, outbox.Plugin{})
			})
		})
	}
}

func TestPlugin_WorksWithEveryDialectorOfPostgres(t *testing.T) {
	for name, cfg := range map[string]postgres.Config{
		"WithoutQuotingCheck":  {WithoutQuotingCheck: true},
		"WithoutReturning":     {WithoutReturning: true},
		"PreferSimpleProtocol": {PreferSimpleProtocol: true},
		"DriverName":           {DriverName: "pgx"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg.DSN = cluster.CreateDatabase(t)
			db := openGorm(t, postgres.New(cfg), gorm.Config{})
			require.NoError(t, db.Use(outbox.Plugin{}))
			wholeLife(t, db, outbox.Plugin{})
			afterLife(t, db, outbox.Plugin{})
		})
	}
}

func TestPlugin_HooksUnderSkipDefaultTransactionAreToldWhy(t *testing.T) {
	eachEngine(t, gorm.Config{SkipDefaultTransaction: true}, func(t *testing.T, db *gorm.DB) {
		require.NoError(t, db.AutoMigrate(&hooked{}))
		var refused error
		require.NoError(t, db.Create(&hooked{hooks: map[string]func(*gorm.DB){"AfterCreate": func(tx *gorm.DB) {
			_, refused = outbox.Enqueue(tx, mail("x"))
		}}}).Error)
		require.ErrorIs(t, refused, outbox.ErrNoTransaction)
		require.ErrorContains(t, refused, "SkipDefaultTransaction")
		require.ErrorContains(t, refused, "db.Transaction")
	})
}

// eachResolver has a read replica that is another, empty database: what is sent there fails, and is noted. An app may
// install outbox and resolver in either order.
func eachResolver(t *testing.T, test func(t *testing.T, db, replica *gorm.DB, asked *sqlLog)) {
	for _, resolverFirst := range []bool{true, false} {
		for _, prepared := range []bool{true, false} {
			t.Run(fmt.Sprintf("resolver first=%t, PrepareStmt=%t", resolverFirst, prepared), func(t *testing.T) {
				replica, asked := openTraced(t, cluster.CreateDatabase(t), gorm.Config{}, nil)
				resolver := dbresolver.Register(dbresolver.Config{
					Replicas: []gorm.Dialector{postgres.New(postgres.Config{Conn: replica.ConnPool})},
				})
				plugins := []gorm.Plugin{outbox.Plugin{}, resolver}
				if resolverFirst {
					plugins = []gorm.Plugin{resolver, outbox.Plugin{}}
				}
				db := openGorm(t, postgres.Open(cluster.CreateDatabase(t)), gorm.Config{PrepareStmt: prepared})
				for _, p := range plugins {
					require.NoError(t, db.Use(p))
				}
				test(t, db, replica, asked)
			})
		}
	}
}

// TestPlugin_NoOutboxIsMadeOnAReplica: a resolver opens its replicas with the plugins of the database, which GORM then
// initialises once more. On a real replica the tables cannot be made, and may not have arrived there yet.
func TestPlugin_NoOutboxIsMadeOnAReplica(t *testing.T) {
	eachResolver(t, func(t *testing.T, db, replica *gorm.DB, _ *sqlLog) {
		require.False(t, replica.Migrator().HasTable("outbox"))
		require.Error(t, db.Find(&[]outbox.Record{}).Error, "reads do go to the replica")
	})
}

func TestPlugin_WorkLeavesReplicasAlone(t *testing.T) {
	eachResolver(t, func(t *testing.T, db, _ *gorm.DB, asked *sqlLog) {
		asked.take()
		require.NoError(t, outbox.Migrate(db))
		_, err := outbox.Enqueue(db.Clauses(dbresolver.Write), mail("x"))
		require.ErrorIs(t, err, outbox.ErrNoTransaction)
		wholeLife(t, db, outbox.Plugin{})
		require.NoError(t, db.Clauses(dbresolver.Write).Transaction(func(tx *gorm.DB) error {
			_, err := outbox.Enqueue(tx, mail("x"))
			return err
		}))
		ctx, stop := context.WithTimeout(t.Context(), patience)
		defer stop()
		p, err := outbox.NewProcessor(db, outbox.ProcessorConfig{
			Transports: andIdle(&mailbox{}), OnAttempt: func(context.Context, outbox.Attempt) { stop() },
		})
		require.NoError(t, err)
		require.NoError(t, p.Run(ctx))
		require.ErrorIs(t, ctx.Err(), context.Canceled, "Run delivered nothing")
		require.Empty(t, asked.take())
	})
}

// TestPlugin_OperatorsAreToldByThePrimary: a replica may lag, and say that what was redriven or cancelled is not.
func TestPlugin_OperatorsAreToldByThePrimary(t *testing.T) {
	eachResolver(t, func(t *testing.T, db, _ *gorm.DB, asked *sqlLog) {
		wholeLife(t, db, outbox.Plugin{})
		asked.take()
		afterLife(t, db, outbox.Plugin{})
		require.Empty(t, asked.take())
	})
}

func TestPlugin_TenantColumns(t *testing.T) {
	good := map[outbox.TenantColumn]string{
		{}: "any 'text'", {Name: "tenant_id"}: "", {Name: "club_id", Type: "uuid"}: "f47ac10b-58cc-4372-8567-0e02b2c3d479",
		{Name: "account", Type: "bigint"}: "-9223372036854775808", {Name: "select"}: "t", {Name: "User"}: "t",
		{Name: "n"}: "t", {Name: "m"}: "t", {Name: "r"}: "t", {Name: "o"}: "t", {Name: "token"}: "t", {Name: "key"}: "t",
		{Name: "record_id"}: "t", {Name: "delay"}: "t", {Name: "tenant"}: "t", {Name: "outbox"}: "t", {Name: "value"}: "t",
		{Name: strings.Repeat("x", 63)}: "t", {Name: "_"}: "t",
	}
	for _, engine := range engines {
		t.Run(engine.name, func(t *testing.T) {
			db, tables := engine.open(t, gorm.Config{}), 0
			for column, tenant := range good {
				t.Run(column.Name+" "+column.Type, func(t *testing.T) {
					tables++
					p := outbox.Plugin{Table: fmt.Sprint("outbox_", tables), Tenant: column}
					require.NoError(t, db.Use(p))
					require.NoError(t, p.Migrate(db))
					deliversTenant(t, db, p, tenant)
				})
			}
		})
	}
}

// deliversTenant takes messages of a tenant through success, repeat, retry and failure.
func deliversTenant(t *testing.T, db *gorm.DB, p outbox.Plugin, tenant string) {
	t.Helper()
	retried := keyed("retried", tenant, "k2")
	require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
		first, err := p.EnqueueAll(tx, []outbox.Message{keyed("sent", tenant, "k1"), retried})
		require.NoError(t, err)
		again, err := p.EnqueueAll(tx, []outbox.Message{keyed("sent", tenant, "k1"), retried})
		for i := range first {
			require.Equal(t, outbox.Receipt{ID: first[i].ID, MessageID: first[i].MessageID}, again[i])
		}
		return err
	}))
	got := make(chan outbox.Delivery, 2)
	processor, err := p.NewProcessor(db, outbox.ProcessorConfig{
		Transports: andIdle(outbox.TransportFunc(func(ctx context.Context, d outbox.Delivery) (string, error) {
			got <- d
			return outcomes.Send(ctx, d)
		})),
	})
	require.NoError(t, err)
	require.Equal(t, outbox.Summary{Claimed: 2, Sent: 1, Retried: 1}, processor.ProcessOnce(t.Context()))
	require.Equal(t, tenant, (<-got).TenantID)
	require.Equal(t, tenant, (<-got).TenantID)
}

func TestPlugin_TenantsThatTheColumnCannotHold(t *testing.T) {
	bad := map[string][]string{
		"uuid":   {"", "x", "f47ac10b-58cc-4372-8567", "00000000-0000-0000-0000-00000000000g", "'; --"},
		"bigint": {"", "x", "1.5", "9223372036854775808", "1 ", "0x10", "1_000", "١"},
	}
	for kind, tenants := range bad {
		t.Run(kind, func(t *testing.T) {
			for _, engine := range engines {
				db := engine.open(t, gorm.Config{})
				require.NoError(t, db.Use(outbox.Plugin{Tenant: outbox.TenantColumn{Name: "club", Type: kind}}))
				require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
					for _, tenant := range tenants {
						_, err := outbox.Enqueue(tx, keyed("x", tenant, "k"))
						require.ErrorIs(t, err, outbox.ErrInvalid, "%q", tenant)
						if tenant != "" && tenant != "x" {
							require.NotContains(t, err.Error(), tenant)
						}
					}
					return nil
				}))
				require.Zero(t, count(t, db, "outbox"))
			}
		})
	}
}

func TestPlugin_BadOptionsComeBackTogether(t *testing.T) {
	bad := outbox.Plugin{
		Table: "1 table", Tenant: outbox.TenantColumn{Name: "payload", Type: "json"}, MaxAttempts: -1, MaxPayload: -1,
	}
	db := openSQLite(t, gorm.Config{})
	_, fromSQL := outbox.MigrationSQL("sqlite", bad)
	for _, err := range []error{db.Use(bad), bad.Migrate(db), fromSQL} {
		require.ErrorIs(t, err, outbox.ErrInvalid)
		for _, option := range []string{"Table", "Tenant.Name", "Tenant.Type", "MaxAttempts", "MaxPayload"} {
			require.ErrorContains(t, err, option)
		}
	}
	_, err := outbox.NewProcessor(db, outbox.ProcessorConfig{})
	require.ErrorIs(t, err, outbox.ErrNotInstalled, "a refused plugin is not installed")
	require.Zero(t, scalar[int](t, db, "SELECT count(*) FROM sqlite_master"))

	require.NoError(t, db.Use(outbox.Plugin{}))
	_, err = outbox.NewProcessor(db, outbox.ProcessorConfig{
		Transports: map[string]outbox.Transport{"": nil}, BatchSize: -1, Concurrency: -1, Lease: time.Second, Timeout: time.Millisecond,
		PollInterval: -1, Owner: "\x00", Backoff: policy.Backoff{Factor: 0.5},
	})
	require.ErrorIs(t, err, outbox.ErrInvalid)
	for _, option := range []string{"topic", "BatchSize", "Concurrency", "Lease", "Timeout", "PollInterval", "Owner", "Backoff"} {
		require.ErrorContains(t, err, option)
	}
}

func TestPlugin_BadOptionsOneByOne(t *testing.T) {
	db := openSQLite(t, gorm.Config{})
	for name, bad := range map[string]outbox.Plugin{
		"quote in the table":       {Table: `out"box`},
		"space in the table":       {Table: "out box"},
		"semicolon in the table":   {Table: "outbox;"},
		"two dots":                 {Table: "a.b.c"},
		"dot at the end":           {Table: "a."},
		"dot at the beginning":     {Table: ".a"},
		"long table":               {Table: strings.Repeat("t", 51)},
		"letters of no ASCII":      {Table: "buzón"},
		"line end":                 {Table: "outbox\n"},
		"schema in SQLite":         {Table: "app.outbox"},
		"digit first":              {Tenant: outbox.TenantColumn{Name: "1st"}},
		"dot in the column":        {Tenant: outbox.TenantColumn{Name: "a.b"}},
		"long column":              {Tenant: outbox.TenantColumn{Name: strings.Repeat("c", 64)}},
		"a column of the outbox's": {Tenant: outbox.TenantColumn{Name: "id"}},
		"the same in capitals":     {Tenant: outbox.TenantColumn{Name: "Lease_Token"}},
		"unknown type":             {Tenant: outbox.TenantColumn{Type: "integer"}},
		"type with more":           {Tenant: outbox.TenantColumn{Type: "text DEFAULT 1"}},
		"too many attempts":        {MaxAttempts: 1001},
		"too large a payload":      {MaxPayload: 1 << 40},
	} {
		t.Run(name, func(t *testing.T) {
			require.ErrorIs(t, db.Use(bad), outbox.ErrInvalid)
			require.ErrorIs(t, bad.Migrate(db), outbox.ErrInvalid)
		})
	}
	require.Zero(t, scalar[int](t, db, "SELECT count(*) FROM sqlite_master"))
}

func TestPlugin_OtherDatabasesAreRefused(t *testing.T) {
	db, err := gorm.Open(gormtests.DummyDialector{}, &gorm.Config{})
	require.NoError(t, err)
	err = db.Use(outbox.Plugin{})
	require.ErrorIs(t, err, outbox.ErrInvalid)
	require.ErrorContains(t, err, `"dummy"`)
	require.ErrorContains(t, err, "postgres")
	require.ErrorContains(t, err, "sqlite")
	require.ErrorIs(t, db.Use(outbox.Plugin{SkipMigrate: true}), outbox.ErrInvalid)
}

func TestPlugin_UsedTwice(t *testing.T) {
	eachEngine(t, gorm.Config{}, func(t *testing.T, db *gorm.DB) {
		require.ErrorIs(t, db.Use(outbox.Plugin{}), gorm.ErrRegistered)
		require.ErrorIs(t, db.Use(&outbox.Plugin{Table: "outbox"}), gorm.ErrRegistered)
		wholeLife(t, db, outbox.Plugin{})
	})
}

func TestPlugin_GivenInTheConfiguration(t *testing.T) {
	db := openGorm(t, postgres.Open(cluster.CreateDatabase(t)), gorm.Config{
		Plugins: map[string]gorm.Plugin{"outbox": outbox.Plugin{}, "another": &outbox.Plugin{Table: "another"}},
	})
	wholeLife(t, db, outbox.Plugin{})
	wholeLife(t, db, outbox.Plugin{Table: "another"})
}

func TestPlugin_ByPointer(t *testing.T) {
	eachPlugin := func(p gorm.Plugin) func(t *testing.T) {
		return func(t *testing.T) {
			db := openSQLite(t, gorm.Config{})
			require.NoError(t, db.Use(p))
			wholeLife(t, db, outbox.Plugin{})
		}
	}
	t.Run("pointer", eachPlugin(&outbox.Plugin{}))
	t.Run("value", eachPlugin(outbox.Plugin{}))
}

func TestPlugin_FailedInstallationCanBeRepeated(t *testing.T) {
	db := openGorm(t, postgres.Open(cluster.CreateDatabase(t)), gorm.Config{})
	p := outbox.Plugin{Table: "later.outbox"}
	var refused *pgconn.PgError
	require.ErrorAs(t, db.Use(p), &refused)
	require.Equal(t, "3F000", refused.Code)
	_, err := p.NewProcessor(db, outbox.ProcessorConfig{})
	require.ErrorIs(t, err, outbox.ErrNotInstalled)

	mustExec(t, db, "CREATE SCHEMA later")
	require.NoError(t, db.Use(p))
	wholeLife(t, db, p)
}

func TestPlugin_InstallingIgnoresTheHandlesClauses(t *testing.T) {
	for _, engine := range engines {
		t.Run(engine.name, func(t *testing.T) {
			db := engine.open(t, gorm.Config{})
			early := db.Session(&gorm.Session{})
			require.NoError(t, db.Table("zzz").Where("nope = 1").Select("nope").Use(outbox.Plugin{}))
			require.False(t, db.Migrator().HasTable("zzz"))
			wholeLife(t, early, outbox.Plugin{}) // installed for handles that were there before, too
		})
	}
}

func TestPlugin_NotInstalled(t *testing.T) {
	db := openSQLite(t, gorm.Config{})
	tx := begin(t, db)
	texts := func(wants ...string) {
		t.Helper()
		_, byEnqueue := outbox.Enqueue(tx, mail("x"))
		_, byProcessor := outbox.NewProcessor(db, outbox.ProcessorConfig{})
		for _, err := range []error{byEnqueue, byProcessor, outbox.Migrate(db)} {
			require.ErrorIs(t, err, outbox.ErrNotInstalled)
			for _, want := range wants {
				require.ErrorContains(t, err, want)
			}
		}
	}
	texts("db.Use")
	require.NoError(t, tx.Rollback().Error)

	require.NoError(t, db.Use(outbox.Plugin{Table: "second"}))
	_, err := outbox.NewProcessor(db, outbox.ProcessorConfig{})
	require.ErrorIs(t, err, outbox.ErrInvalid, "the only outbox there is needs no name")
	_, err = outbox.Plugin{Table: "other"}.NewProcessor(db, outbox.ProcessorConfig{})
	require.ErrorIs(t, err, outbox.ErrNotInstalled)
	require.ErrorContains(t, err, "no outbox on table other")
	require.ErrorContains(t, err, "installed are those on second;")

	require.NoError(t, db.Use(outbox.Plugin{Table: "third"}))
	tx = begin(t, db)
	texts("installed are those on second and third;")
	_, err = outbox.Plugin{Table: "third"}.Enqueue(tx, mail("x"))
	require.NoError(t, err)
	require.NoError(t, tx.Rollback().Error)

	require.ErrorIs(t, outbox.Migrate(nil), outbox.ErrNotInstalled)
	_, err = outbox.NewProcessor(nil, outbox.ProcessorConfig{})
	require.ErrorIs(t, err, outbox.ErrNotInstalled)
}

func TestPlugin_HeadersOfTheContext(t *testing.T) {
	type requestID struct{}
	for _, engine := range engines {
		t.Run(engine.name, func(t *testing.T) {
			db := engine.open(t, gorm.Config{})
			require.NoError(t, db.Use(outbox.Plugin{Headers: func(ctx context.Context) map[string]string {
				id, ok := ctx.Value(requestID{}).(string)
				if !ok {
					return nil
				}
				return map[string]string{"request-id": id, "language": "es"}
			}}))
			own := mail("own")
			own.Headers = map[string]string{"language": "en", "a": "b"}
			enqueue(t, db, mail("none"))
			enqueue(t, db.WithContext(context.WithValue(t.Context(), requestID{}, "r1")), mail("context's"), own)
			require.Equal(t, map[string]string{"language": "en", "a": "b"}, own.Headers, "the caller's map is left alone")
			box := &mailbox{}
			require.Equal(t, 3, drain(t, db, box).Sent)
			got := box.deliveries()
			require.Nil(t, got[0].Headers)
			require.Equal(t, map[string]string{"request-id": "r1", "language": "es"}, got[1].Headers)
			require.Equal(t, map[string]string{"request-id": "r1", "language": "en", "a": "b"}, got[2].Headers)
		})
	}
}

// TestPlugin_CallbacksOfTheAppDoNotMatter: an app that adds a condition to whatever GORM reads or writes for it, as
// tenancy plugins do, adds it to none of the outbox's statements.
func TestPlugin_CallbacksOfTheAppDoNotMatter(t *testing.T) {
	eachEngine(t, gorm.Config{}, func(t *testing.T, db *gorm.DB) {
		condition := func(tx *gorm.DB) { tx.Where("club_id = ?", 1) }
		callbacks := db.Callback()
		require.NoError(t, callbacks.Query().Before("gorm:query").Register("tenancy", condition))
		require.NoError(t, callbacks.Row().Before("gorm:row").Register("tenancy", condition))
		require.NoError(t, callbacks.Raw().Before("gorm:raw").Register("tenancy", condition))
		require.NoError(t, callbacks.Update().Before("gorm:update").Register("tenancy", condition))
		require.Error(t, db.Find(&[]outbox.Record{}).Error, "the condition works")
		wholeLife(t, db, outbox.Plugin{})
	})
}

// TestPlugin_SharesThePool: an app whose pool has one connection, in use by the transaction, can still enqueue.
func TestPlugin_SharesThePool(t *testing.T) {
	for _, prepared := range []bool{false, true} {
		t.Run(fmt.Sprintf("PrepareStmt=%t", prepared), func(t *testing.T) {
			eachEngine(t, gorm.Config{PrepareStmt: prepared}, func(t *testing.T, db *gorm.DB) {
				pool, err := db.DB()
				require.NoError(t, err)
				pool.SetMaxOpenConns(1)
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				require.NoError(t, db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
					_, err := outbox.EnqueueAll(tx, []outbox.Message{keyed("x", "", "k"), mail("y")})
					require.NoError(t, err)
					_, err = outbox.Enqueue(tx, keyed("x", "", "k"))
					require.NoError(t, err)
					return outbox.Migrate(tx)
				}))
				require.Equal(t, 2, drain(t, db, &mailbox{}).Sent)
				require.Zero(t, pool.Stats().InUse)
			})
		})
	}
}
