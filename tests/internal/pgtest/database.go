package pgtest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

const databaseTimeout = 30 * time.Second

// CreateDatabase makes an empty database for one test and returns its DSN. It is dropped when the test ends, whoever is
// still connected, unless the server is down by then.
func (c *Cluster) CreateDatabase(t testing.TB) string {
	t.Helper()
	name := fmt.Sprintf("test_%d", c.databases.Add(1))
	if err := c.exec("CREATE DATABASE " + name); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() {
		if !c.running() {
			t.Logf("pgtest: the server is down, database %s stays in it", name)
			return
		}
		if err := c.exec("DROP DATABASE IF EXISTS " + name + " WITH (FORCE)"); err != nil {
			t.Errorf("pgtest: %v", err)
		}
	})
	return c.DSN(name)
}

func (c *Cluster) running() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.server != nil
}

// exec runs one statement as the superuser, on a connection of its own.
func (c *Cluster) exec(statement string) error {
	ctx, cancel := context.WithTimeout(context.Background(), databaseTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, c.DSN(maintenance))
	if err != nil {
		return fmt.Errorf("connect for %q: %w", statement, err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, statement); err != nil {
		return fmt.Errorf("%q: %w", statement, err)
	}
	return nil
}
