package tests

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/gorm-outbox/outbox"
	"github.com/stretchr/testify/require"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/schema"
)

// shapes are outboxes whose schemas differ.
var shapes = map[string]outbox.Plugin{
	"default":       {},
	"renamed":       {Table: "Mensajes_2", Tenant: outbox.TenantColumn{Name: "Club"}},
	"reserved word": {Table: "order", Tenant: outbox.TenantColumn{Name: "user", Type: "uuid"}},
	"bigint tenant": {Table: "avisos", Tenant: outbox.TenantColumn{Name: "account_id", Type: "bigint"}},
	"long names": {
		Table:  strings.Repeat("t", 50),
		Tenant: outbox.TenantColumn{Name: strings.Repeat("c", 63), Type: "uuid"},
	},
}

// schemaShapes are those with a schema, for engines that have them. The schema is there before.
var schemaShapes = map[string]outbox.Plugin{
	"schema":           {Table: "app.outbox", Tenant: outbox.TenantColumn{Name: "club_id", Type: "uuid"}},
	"mixed case":       {Table: "App_X.Avisos"},
	"long schema name": {Table: strings.Repeat("s", 63) + "." + strings.Repeat("t", 50)},
}

// eachShape runs the test for every shape, with the names of its schema and table.
func eachShape(t *testing.T, test func(t *testing.T, p outbox.Plugin, schema, table string)) {
	for name, p := range shapes {
		table := p.Table
		if table == "" {
			table = "outbox"
		}
		t.Run(name, func(t *testing.T) { test(t, p, "public", table) })
	}
	for name, p := range schemaShapes {
		schema, table, _ := strings.Cut(p.Table, ".")
		t.Run(name, func(t *testing.T) { test(t, p, schema, table) })
	}
}

// withSchema opens a fresh PostgreSQL database that has the schema.
func withSchema(t *testing.T, name string, cfg gorm.Config) *gorm.DB {
	t.Helper()
	db := openGorm(t, postgres.Open(cluster.CreateDatabase(t)), cfg)
	mustExec(t, db, `CREATE SCHEMA IF NOT EXISTS "`+name+`"`)
	return db
}

// describePostgres tells all there is to a table, in lines that two tables of the same shape share.
func describePostgres(t *testing.T, db *gorm.DB, schema, table string) []string {
	t.Helper()
	name := fmt.Sprintf(`"%s"."%s"`, schema, table)
	var lines []string
	for _, query := range []string{
		`SELECT format('column %s %s notnull=%s identity=%s default=%s collation=%s storage=%s sequence=%s', attname,
			format_type(atttypid, atttypmod), attnotnull, attidentity, pg_get_expr(adbin, adrelid), attcollation::regcollation, attstorage,
			CASE WHEN attidentity != '' THEN pg_get_serial_sequence(attrelid::regclass::text, attname) END)
		FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
		WHERE attrelid = ?::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum`,
		`SELECT format('index %s valid=%s', pg_get_indexdef(indexrelid), indisvalid) FROM pg_index WHERE indrelid = ?::regclass ORDER BY 1`,
		`SELECT format('constraint %s %s', conname, pg_get_constraintdef(oid)) FROM pg_constraint WHERE conrelid = ?::regclass ORDER BY 1`,
		`SELECT format('options %s persistence=%s', reloptions, relpersistence) FROM pg_class WHERE oid = ?::regclass`,
	} {
		var found []string
		require.NoError(t, db.Raw(query, name).Scan(&found).Error)
		require.NotEmpty(t, found)
		lines = append(lines, found...)
	}
	return lines
}

// describeSQLite does the same for SQLite, where the text of CREATE TABLE is no two tools' the same.
func describeSQLite(t *testing.T, db *gorm.DB, table string) []string {
	t.Helper()
	var lines []string
	for _, query := range []string{
		`SELECT printf('column %s %s notnull=%d default=%s key=%d hidden=%d', name, lower(type), "notnull", coalesce(dflt_value, 'none'), pk, hidden)
		FROM pragma_table_xinfo(?) ORDER BY cid`,
		`SELECT 'index ' || sql FROM sqlite_master WHERE tbl_name = ? AND type = 'index' AND sql IS NOT NULL ORDER BY name`,
		`SELECT printf('autoincrement=%d', lower(sql) LIKE '%autoincrement%') FROM sqlite_master WHERE name = ?`,
	} {
		var found []string
		require.NoError(t, db.Raw(query, table).Scan(&found).Error)
		lines = append(lines, found...)
	}
	require.NotEmpty(t, lines)
	return lines
}

// forbidDDL has the database refuse every change of its schema.
func forbidDDL(t *testing.T, db *gorm.DB) {
	t.Helper()
	mustExec(t, db, `CREATE FUNCTION refuse_ddl() RETURNS event_trigger LANGUAGE plpgsql AS
		'BEGIN RAISE EXCEPTION ''no DDL, but %'', tg_tag; END'`)
	mustExec(t, db, "CREATE EVENT TRIGGER no_ddl ON ddl_command_start EXECUTE FUNCTION refuse_ddl()")
	require.ErrorContains(t, db.Exec("CREATE TABLE IF NOT EXISTS outbox ()").Error, "no DDL")
}

// applySQL runs the script as operators' tools do, and again, because it may be.
func applySQL(t *testing.T, db *gorm.DB, p outbox.Plugin) {
	t.Helper()
	script, err := outbox.MigrationSQL(db.Dialector.Name(), p)
	require.NoError(t, err)
	mustExec(t, db, script)
	mustExec(t, db, script)
}

func TestSchema_MigrationSQLAndMigrateAgreeOnPostgres(t *testing.T) {
	eachShape(t, func(t *testing.T, p outbox.Plugin, schema, table string) {
		bySQL, byPlugin := withSchema(t, schema, gorm.Config{}), withSchema(t, schema, gorm.Config{})
		applySQL(t, bySQL, p)
		require.NoError(t, byPlugin.Use(p))
		for _, table := range []string{table, table + "_processed"} {
			require.Equal(t, describePostgres(t, byPlugin, schema, table), describePostgres(t, bySQL, schema, table))
		}
		for _, db := range []*gorm.DB{bySQL, byPlugin} {
			forbidDDL(t, db)
			require.NoError(t, p.Migrate(db))
		}
	})
}

func TestSchema_MigrationSQLAndMigrateAgreeOnSQLite(t *testing.T) {
	for name, p := range shapes {
		t.Run(name, func(t *testing.T) {
			bySQL, byPlugin := openSQLite(t, gorm.Config{}), openSQLite(t, gorm.Config{})
			applySQL(t, bySQL, p)
			require.NoError(t, byPlugin.Use(p))
			table := p.Table
			if table == "" {
				table = "outbox"
			}
			for _, table := range []string{table, table + "_processed"} {
				require.Equal(t, describeSQLite(t, byPlugin, table), describeSQLite(t, bySQL, table))
			}
		})
	}
}

func TestSchema_MigrationSQLOfWhatCannotBe(t *testing.T) {
	for name, refuse := range map[string]func() (string, error){
		"dialect":          func() (string, error) { return outbox.MigrationSQL("oracle", outbox.Plugin{}) },
		"no dialect":       func() (string, error) { return outbox.MigrationSQL("", outbox.Plugin{}) },
		"table":            func() (string, error) { return outbox.MigrationSQL("postgres", outbox.Plugin{Table: `x"; DROP`}) },
		"schema in SQLite": func() (string, error) { return outbox.MigrationSQL("sqlite", outbox.Plugin{Table: "app.outbox"}) },
	} {
		t.Run(name, func(t *testing.T) {
			script, err := refuse()
			require.ErrorIs(t, err, outbox.ErrInvalid)
			require.Empty(t, script)
		})
	}
}

func TestSchema_SecondMigrateRunsNoDDL(t *testing.T) {
	configs := map[string]gorm.Config{
		"default":        {},
		"PrepareStmt":    {PrepareStmt: true},
		"hostile naming": {NamingStrategy: schema.NamingStrategy{TablePrefix: "app.", SingularTable: true, NoLowerCase: true}},
	}
	for name, cfg := range configs {
		t.Run(name, func(t *testing.T) {
			eachShape(t, func(t *testing.T, p outbox.Plugin, schema, _ string) {
				db := withSchema(t, schema, cfg)
				require.NoError(t, db.Use(p))
				forbidDDL(t, db)
				require.NoError(t, p.Migrate(db))
				require.NoError(t, db.Transaction(p.Migrate))
			})
		})
	}
}

// TestSchema_SecondMigrateOnSQLiteKeepsTheTables: GORM changes a column there by copying the whole table.
func TestSchema_SecondMigrateOnSQLiteKeepsTheTables(t *testing.T) {
	for name, p := range shapes {
		t.Run(name, func(t *testing.T) {
			db := openSQLite(t, gorm.Config{})
			require.NoError(t, db.Use(p))
			pages := func() (found []string) {
				require.NoError(t, db.Raw("SELECT name || rootpage || coalesce(sql, '') FROM sqlite_master ORDER BY name").Scan(&found).Error)
				return found
			}
			before := pages()
			require.NoError(t, p.Migrate(db))
			require.Equal(t, before, pages())
		})
	}
}

// withSettings gives the DSN of db with server settings for each of its sessions.
func withSettings(t *testing.T, db *gorm.DB, settings map[string]string) string {
	t.Helper()
	dsn, err := url.Parse(cluster.DSN(scalar[string](t, db, "SELECT current_database()")))
	require.NoError(t, err)
	query := dsn.Query()
	for name, value := range settings {
		query.Set(name, value)
	}
	dsn.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20") // the driver takes a plus for a plus
	return dsn.String()
}

func TestSchema_MigrateAndWritersDoNotWaitForEachOther(t *testing.T) {
	db := newPostgres(t, gorm.Config{})
	hasty := openGorm(t, postgres.Open(withSettings(t, db, map[string]string{"lock_timeout": "1s"})), gorm.Config{})
	require.NoError(t, hasty.Use(outbox.Plugin{SkipMigrate: true}))

	writer := begin(t, db)
	_, err := outbox.Enqueue(writer, mail("open"))
	require.NoError(t, err)
	require.NoError(t, writer.Exec("LOCK TABLE outbox, outbox_processed IN ROW EXCLUSIVE MODE").Error)
	require.NoError(t, outbox.Migrate(hasty), "an open writer blocks Migrate")
	require.NoError(t, writer.Commit().Error)

	migration := begin(t, db)
	require.NoError(t, outbox.Migrate(migration))
	enqueue(t, hasty, mail("not blocked by an open migration"))
	require.Equal(t, 2, drain(t, hasty, &mailbox{}).Sent)
	require.NoError(t, migration.Rollback().Error)
}

func TestSchema_MigrateKeepsWhatTheOperatorDid(t *testing.T) {
	db := newPostgres(t, gorm.Config{})
	mustExec(t, db, `ALTER TABLE outbox RESET (fillfactor, autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold,
		autovacuum_analyze_scale_factor, autovacuum_vacuum_insert_scale_factor)`)
	mustExec(t, db, "ALTER TABLE outbox SET (fillfactor = 80)")
	mustExec(t, db, "ALTER TABLE outbox ADD COLUMN note text NOT NULL DEFAULT 'x'")
	mustExec(t, db, "CREATE INDEX operators_own ON outbox (created_at)")
	before := describePostgres(t, db, "public", "outbox")
	forbidDDL(t, db)
	require.NoError(t, outbox.Migrate(db))
	require.Equal(t, before, describePostgres(t, db, "public", "outbox"))
	enqueue(t, db, mail("x"))
	require.Equal(t, 1, drain(t, db, &mailbox{}).Sent)
}

// TestSchema_MigrateRepairsAnOlderTable: what is missing is added, with rows in the table.
func TestSchema_MigrateRepairsAnOlderTable(t *testing.T) {
	damages := map[string][]string{
		"a nullable column":        {"ALTER TABLE outbox DROP COLUMN lease_owner"},
		"several":                  {"ALTER TABLE outbox DROP COLUMN lease_owner", "ALTER TABLE outbox DROP COLUMN headers"},
		"an index":                 {"DROP INDEX outbox_claim"},
		"all indexes":              {"DROP INDEX outbox_claim", "DROP INDEX outbox_dead", "DROP INDEX outbox_external", "DROP INDEX outbox_key"},
		"a column of an index":     {"DROP INDEX outbox_claim", "ALTER TABLE outbox DROP COLUMN sent_at"},
		"the table of consumed id": {"DROP TABLE outbox_processed"},
	}
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			eachEngine(t, gorm.Config{}, func(t *testing.T, db *gorm.DB) {
				enqueue(t, db, keyed("old", "t", "k"))
				names := func() (found []string) { // of columns, in any order, and of indexes
					query := map[string]string{
						"postgres": `SELECT attname::text FROM pg_attribute JOIN pg_class ON oid = attrelid
							WHERE relname LIKE 'outbox%' AND attnum > 0 AND NOT attisdropped ORDER BY 1`,
						"sqlite": `SELECT name FROM (SELECT name FROM pragma_table_info('outbox') UNION ALL SELECT name FROM pragma_table_info('outbox_processed')
							UNION ALL SELECT name FROM sqlite_master) ORDER BY 1`,
					}[db.Dialector.Name()]
					require.NoError(t, db.Raw(query).Scan(&found).Error)
					return found
				}
				before := names()
				for _, statement := range damage {
					mustExec(t, db, statement)
				}
				require.NoError(t, outbox.Migrate(db))
				require.Equal(t, before, names())
				enqueue(t, db, keyed("old", "t", "k"), mail("new"))
				require.Equal(t, outbox.Summary{Claimed: 2, Sent: 2}, drain(t, db, &mailbox{}))
			})
		})
	}
}

// TestSchema_AnAppWithoutDDLRights uses an outbox that somebody else has made.
func TestSchema_AnAppWithoutDDLRights(t *testing.T) {
	db := newPostgres(t, gorm.Config{})
	role := "app_" + scalar[string](t, db, "SELECT current_database()")
	mustExec(t, db, "CREATE ROLE "+role+" LOGIN")
	t.Cleanup(func() {
		require.NoError(t, db.Exec("DROP OWNED BY "+role).Error)
		require.NoError(t, db.Exec("DROP ROLE "+role).Error)
	})
	mustExec(t, db, "REVOKE CREATE ON SCHEMA public FROM public")
	mustExec(t, db, "GRANT SELECT, INSERT, UPDATE, DELETE ON outbox, outbox_processed TO "+role)
	dsn, err := url.Parse(withSettings(t, db, nil))
	require.NoError(t, err)
	dsn.User = url.User(role)
	app := openGorm(t, postgres.Open(dsn.String()), gorm.Config{})
	require.Error(t, app.Exec("CREATE TABLE forbidden ()").Error)

	require.NoError(t, app.Use(outbox.Plugin{}))
	enqueue(t, app, keyed("x", "t", "k"), mail("y"))
	enqueue(t, app, keyed("x", "t", "k"))
	require.Equal(t, 2, drain(t, app, &mailbox{}).Sent)
}
