// Package pgtest starts throwaway PostgreSQL clusters for tests and benchmarks.
//
// A cluster is a real server of its own: it listens on a free loopback port, keeps its files in a temporary directory
// and needs neither a running service nor a password. Tests may crash it and bring it back:
//
//	cluster, err := pgtest.Start(pgtest.Options{})
//	...
//	defer cluster.Stop()
//	dsn := cluster.CreateDatabase(t)
//
// Starting one takes a second or two, so a test package usually starts one in TestMain and gives each test a database;
// a test that crashes the server starts its own.
//
// The server binaries must be on the machine, version 13 or newer; `make test` installs them. Works on Linux, macOS and
// the BSDs.
package pgtest
