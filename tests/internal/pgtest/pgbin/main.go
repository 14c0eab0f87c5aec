// Command pgbin prints the directory of the PostgreSQL server binaries that the tests use, or says why there is none.
// Scripts call it so that they and the tests never disagree about which server that is.
package main

import (
	"fmt"
	"os"

	"github.com/gorm-outbox/outbox/tests/internal/pgtest"
)

func main() {
	dir, err := pgtest.BinDir()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(dir)
}
