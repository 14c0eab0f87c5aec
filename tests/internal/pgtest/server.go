package pgtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const loopback = "127.0.0.1"

// errPortTaken says that another program got the port first: worth another try on another port.
var errPortTaken = errors.New("the port is taken")

// initdb makes the data directory. Anyone on this machine may connect (trust), the locale is C so that sorting and
// messages are the same everywhere, and nothing is synced to disk, because a half-made cluster is of no use to anybody.
func (c *Cluster) initdb() error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(c.bin, "initdb"), "--pgdata", c.dataDir(), "--username", superuser,
		"--auth", "trust", "--locale", "C", "--encoding", "UTF8", "--no-sync")
	c.prepare(cmd)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("pgtest: %s: %w\n%s", cmd.Path, err, out)
	}
	return nil
}

// configure appends our parameters to postgresql.conf, where the last word counts.
func (c *Cluster) configure(o Options) error {
	settings := map[string]string{
		"listen_addresses":        loopback,
		"unix_socket_directories": "", // their paths are limited to some 100 bytes, which a temporary directory can exceed
		"max_connections":         "200",
		"timezone":                "UTC",
		"log_timezone":            "UTC",
	}
	if !o.Durable {
		settings["fsync"] = "off"
		settings["full_page_writes"] = "off"
	}
	maps.Copy(settings, o.Settings)

	var text strings.Builder
	text.WriteString("\n# pgtest\n")
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&text, "%s = '%s'\n", name, strings.ReplaceAll(settings[name], "'", "''"))
	}
	if err := appendTo(filepath.Join(c.dataDir(), "postgresql.conf"), text.String()); err != nil {
		return fmt.Errorf("pgtest: configure the cluster: %w", err)
	}
	return nil
}

// startServer starts postgres as a child of this process; it does not wait for it to answer.
func (c *Cluster) startServer() (*process, error) {
	log, err := os.OpenFile(c.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("pgtest: open the server's log: %w", err)
	}
	defer log.Close() // the server has its own copy of the descriptor
	earlier, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, fmt.Errorf("pgtest: find the end of the server's log: %w", err)
	}
	cmd := exec.Command(filepath.Join(c.bin, "postgres"), "-D", c.dataDir(), "-p", strconv.Itoa(c.port))
	c.prepare(cmd)
	dieWithParent(cmd.SysProcAttr)
	cmd.Stdout, cmd.Stderr = log, log
	server, err := startProcess(cmd)
	if err != nil {
		return nil, fmt.Errorf("pgtest: start %s: %w", cmd.Path, err)
	}
	server.logFrom = earlier
	return server, nil
}

// prepare gives a command of the server its user, its directory (the current one may be closed to that user) and an
// environment in which no PG* variable of the developer's shell decides anything.
func (c *Cluster) prepare(cmd *exec.Cmd) {
	cmd.Dir = c.dir
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "PG") }), "LC_ALL=C")
	cmd.SysProcAttr = c.account.sysProcAttr()
}

// explain adds to a failed start what this server said last, and recognises a port that was taken.
func (c *Cluster) explain(server *process, err error) error {
	log, readErr := os.ReadFile(c.logFile())
	if readErr != nil {
		return fmt.Errorf("pgtest: postgres did not start on port %d: %w (its log: %w)", c.port, err, readErr)
	}
	log = log[min(server.logFrom, int64(len(log))):]
	if bytes.Contains(log, []byte("Address already in use")) {
		err = fmt.Errorf("%w: %w", errPortTaken, err)
	}
	return fmt.Errorf("pgtest: postgres did not start on port %d: %w; the end of its log:\n%s", c.port, err, tail(log, 20))
}

func tail(log []byte, lines int) []byte {
	all := bytes.SplitAfter(bytes.TrimSpace(log), []byte("\n"))
	return bytes.Join(all[max(0, len(all)-lines):], nil)
}

func appendTo(path, text string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// freePort finds a loopback port that nobody listens on, below those that systems give to outgoing connections: no
// client can be given the port of a crashed server, which Restart must be able to bind again.
func freePort() (int, error) {
	const low, high = 15_000, 32_000
	var err error
	for range 100 {
		port := low + rand.IntN(high-low)
		var l net.Listener
		if l, err = net.Listen("tcp", net.JoinHostPort(loopback, strconv.Itoa(port))); err == nil {
			return port, l.Close()
		}
	}
	return 0, fmt.Errorf("pgtest: no free port on %s between %d and %d: %w", loopback, low, high, err)
}
