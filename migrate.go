package outbox

import (
	"context"
	"database/sql"
	"fmt"
	"reflect"
	"strings"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/schema"
)

// Migrate creates or updates the outbox's tables: AutoMigrate for the columns, and what AutoMigrate cannot say, the
// partial indexes and the storage options of a queue. It is idempotent, changes nothing that is in place already, and
// may run in many processes at once, or inside a transaction of the caller's (a read-committed one, if others migrate at
// the same time). The plugin calls it unless SkipMigrate.
func Migrate(db *gorm.DB) error {
	s, err := theOutbox(db)
	if err != nil {
		return err
	}
	return s.migrate(db)
}

// Migrate is the package's Migrate for the plugin's table. The plugin need not be installed.
func (p Plugin) Migrate(db *gorm.DB) error {
	if db == nil || db.Config == nil {
		return because(ErrNotInstalled, "plugin %s: the handle is nil", p.Name())
	}
	s, err := newStore(db, p)
	if err != nil {
		return err
	}
	return s.migrate(db)
}

// MigrationSQL gives the schema that Migrate makes as plain SQL, for apps that keep their migrations with another
// tool. The dialect is "postgres" or "sqlite". Every statement is idempotent.
func MigrationSQL(dialect string, p Plugin) (string, error) {
	p = p.withDefaults()
	if err := p.validate(); err != nil {
		return "", err
	}
	d, err := p.engine(dialect)
	if err != nil {
		return "", err
	}
	s := &store{Plugin: p, dialect: d}
	statements := []string{s.createTable(s.Table, s.recordColumns(), s.size), s.createTable(s.processedTable(), processedColumns, "")}
	for _, index := range s.indexes() {
		statements = append(statements, index.create)
	}
	return strings.Join(statements, ";\n\n") + ";\n", nil
}

func (s *store) migrate(db *gorm.DB) error {
	if db.DryRun {
		return invalid("migrate: the handle is in DryRun mode; use MigrationSQL to see the schema")
	}
	ctx := context.Background()
	if db.Statement != nil && db.Statement.Context != nil {
		ctx = db.Statement.Context
	}
	// In one transaction, and so on the primary even where reads are split off to a replica.
	err := session(ctx, db).Transaction(func(tx *gorm.DB) error {
		for _, statement := range s.lock {
			if err := tx.Exec(statement).Error; err != nil {
				return err
			}
		}
		return s.migrateLocked(tx)
	}, &sql.TxOptions{Isolation: s.level})
	if err != nil {
		return fmt.Errorf("outbox: migrate %s: %w", s.Table, err)
	}
	return nil
}

// migrateLocked asks the catalogue before each statement: even one that turns out to do nothing takes a lock on the
// table, behind which the app's inserts would queue.
func (s *store) migrateLocked(tx *gorm.DB) error {
	if err := s.autoMigrate(tx, s.Table, s.recordColumns()); err != nil {
		return err
	}
	if err := s.autoMigrate(tx, s.processedTable(), processedColumns); err != nil {
		return err
	}
	for _, patch := range s.ddl(s.quote(s.Table)) {
		var due bool
		if err := tx.Raw(patch.due).Scan(&due).Error; err != nil {
			return err
		}
		if due {
			if err := tx.Exec(patch.apply).Error; err != nil {
				return err
			}
		}
	}
	for _, index := range s.indexes() {
		if tx.Migrator().HasIndex(s.Table, index.name) {
			continue
		}
		if err := tx.Exec(index.create).Error; err != nil {
			return err
		}
	}
	return nil
}

func (s *store) processedTable() string { return s.Table + "_processed" }

// index is an index by its name, which follows the table's: names are unique in a schema, not in a table.
type index struct{ name, create string }

// indexes are all there are, for each costs every message. None holds a column that a claim writes.
func (s *store) indexes() []index {
	_, base := s.split()
	define := func(suffix, definition string) index {
		name := base + suffix
		return index{name, fmt.Sprintf("CREATE %s", strings.NewReplacer(
			"{name}", s.quote(name), "{table}", s.quote(s.Table), "{tenant}", s.quote(s.Tenant.Name)).Replace(definition))}
	}
	return []index{
		define("_key", `UNIQUE INDEX IF NOT EXISTS {name} ON {table} ({tenant}, idempotency_key) WHERE idempotency_key IS NOT NULL`),
		define("_claim", `INDEX IF NOT EXISTS {name} ON {table} (topic, due_at, id) WHERE sent_at IS NULL AND dead_at IS NULL`),
		define("_external", `INDEX IF NOT EXISTS {name} ON {table} (external_id) WHERE external_id IS NOT NULL`),
		define("_dead", `INDEX IF NOT EXISTS {name} ON {table} (dead_at) WHERE dead_at IS NOT NULL`),
	}
}

// split parts the table's name from its schema, if it has one.
func (s *store) split() (schema, table string) {
	if schema, table, ok := strings.Cut(s.Table, "."); ok {
		return schema, table
	}
	return "", s.Table
}

// column is a column in both shapes that a migration needs: a field of AutoMigrate's model, and a line of CREATE TABLE.
type column struct {
	field   string
	kind    reflect.Type
	name    string
	typ     string // as in Record's tags
	notNull bool
	key     bool
	ending  string // DEFAULT and the like
}

// recordColumns reads the columns off Record's tags and puts in what is the plugin's to choose.
func (s *store) recordColumns() []column {
	columns := tagged(reflect.TypeOf(Record{}))
	for i := range columns {
		switch columns[i].name {
		case "id":
			columns[i].typ = "identity"
		case "tenant_id":
			columns[i].name, columns[i].typ = s.Tenant.Name, s.Tenant.Type
			if s.Tenant.Type == "text" {
				columns[i].ending = "''"
			}
		}
	}
	return columns
}

// processedColumns are those of the table that remembers which messages a consumer has had.
var processedColumns = []column{
	{field: "Consumer", kind: reflect.TypeOf(""), name: "consumer", typ: "text", notNull: true, key: true},
	{field: "MessageID", kind: reflect.TypeOf(""), name: "message_id", typ: "text", notNull: true, key: true},
	{field: "ProcessedAt", kind: reflect.TypeOf(time.Time{}), name: "processed_at", typ: "timestamptz", notNull: true},
}

func tagged(model reflect.Type) []column {
	var columns []column
	for i := 0; i < model.NumField(); i++ {
		field := model.Field(i)
		tag := schema.ParseTagSetting(field.Tag.Get("gorm"), ";")
		_, notNull := tag["NOT NULL"]
		_, key := tag["PRIMARYKEY"]
		columns = append(columns, column{
			field: field.Name, kind: field.Type, name: tag["COLUMN"], typ: tag["TYPE"], notNull: notNull || key, key: key,
		})
	}
	return columns
}

// isRecordColumn reports whether a tenant column of this name would meet another column.
func isRecordColumn(name string) bool {
	for _, c := range tagged(reflect.TypeOf(Record{})) {
		if c.name != "tenant_id" && strings.EqualFold(c.name, name) {
			return true
		}
	}
	return false
}

// autoMigrate has GORM create the table or add the columns it lacks. The model is put together here because the
// tenant's column and the engine's types are not the same for every outbox. Its fields are bare texts, numbers and
// times, since GORM asks richer Go types for a column type of their own.
func (s *store) autoMigrate(tx *gorm.DB, table string, columns []column) error {
	fields := make([]reflect.StructField, len(columns))
	for i, c := range columns {
		tag := fmt.Sprintf("column:%s;type:%s;autoIncrement:false", c.name, s.columnType(c.typ))
		if c.notNull {
			tag += ";not null"
		}
		if c.key {
			tag += ";primaryKey"
		}
		if c.ending != "" {
			tag += ";default:" + c.ending
		}
		fields[i] = reflect.StructField{
			Name: c.field, Type: bareType(c.kind), Tag: reflect.StructTag(fmt.Sprintf("gorm:%q", tag)),
		}
	}
	return tx.Table(table).AutoMigrate(reflect.New(reflect.StructOf(fields)).Interface())
}

func bareType(t reflect.Type) reflect.Type {
	switch t {
	case reflect.TypeOf(time.Time{}), reflect.TypeOf(&time.Time{}), reflect.TypeOf(0), reflect.TypeOf(int64(0)):
		return t
	default:
		return reflect.TypeOf("")
	}
}

func (s *store) createTable(table string, columns []column, options string) string {
	var keys []string
	lines := make([]string, 0, len(columns)+1)
	for _, c := range columns {
		line := "  " + s.quote(c.name) + " " + s.columnType(c.typ)
		if c.notNull {
			line += " NOT NULL"
		}
		if c.ending != "" {
			line += " DEFAULT " + c.ending
		}
		if c.key {
			keys = append(keys, s.quote(c.name))
		}
		lines = append(lines, line)
	}
	if !strings.Contains(strings.Join(lines, ""), "PRIMARY KEY") { // SQLite's identity says it itself
		lines = append(lines, "  PRIMARY KEY ("+strings.Join(keys, ",")+")")
	}
	return fmt.Sprintf("CREATE TABLE IF NOT EXISTS %s (\n%s\n)%s", s.quote(table), strings.Join(lines, ",\n"), options)
}
