package amqp_test

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	client "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

const (
	user       = "app-user"
	password   = "pass of the app?"
	maxMessage = 1 << 20 // bytes; the broker refuses what is larger
)

// broker is a RabbitMQ node of our own, in a directory that is thrown away.
type broker struct {
	dir, bin   string
	port, dist int
	epmd       int // the port of its own Erlang port mapper
	node       *exec.Cmd
	output     bytes.Buffer
}

var (
	shared     *broker // started by the first test that needs it
	sharedOnce sync.Once
	sharedErr  error
)

// theBroker gives the node that all tests share. Without RabbitMQ on this machine the test is skipped, but not in CI.
func theBroker(t *testing.T) *broker {
	t.Helper()
	bin := findRabbitMQ()
	if bin == "" && os.Getenv("CI") == "" {
		t.Skip("there is no RabbitMQ on this machine: run scripts/setup.sh")
	}
	require.NotEmpty(t, bin, "there is no RabbitMQ on this machine: run scripts/setup.sh")
	sharedOnce.Do(func() {
		if shared, sharedErr = newBroker(bin); sharedErr == nil {
			sharedErr = shared.start()
		}
	})
	require.NoError(t, sharedErr)
	return shared
}

// findRabbitMQ gives the directory of RabbitMQ's own scripts. The wrapper that Debian puts on PATH insists on its
// service's user.
func findRabbitMQ() string {
	places, _ := filepath.Glob("/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin")
	places = append(places, "/usr/lib/rabbitmq/bin", "/opt/homebrew/sbin", "/usr/local/sbin")
	if onPath, err := exec.LookPath("rabbitmq-server"); err == nil {
		places = append(places, filepath.Dir(onPath))
	}
	for _, dir := range places {
		if _, err := os.Stat(filepath.Join(dir, "rabbitmq-server")); err == nil {
			return dir
		}
	}
	return ""
}

func newBroker(bin string) (*broker, error) {
	dir, err := os.MkdirTemp("", "outbox-rabbitmq-")
	if err != nil {
		return nil, err
	}
	b := &broker{dir: dir, bin: bin}
	for _, port := range []*int{&b.port, &b.dist, &b.epmd} {
		if *port, err = freePort(); err != nil {
			return nil, err
		}
	}
	conf := fmt.Sprintf("listeners.tcp.1 = 127.0.0.1:%d\ndefault_user = %s\ndefault_pass = %s\nmax_message_size = %d\n"+
		"disk_free_limit.absolute = 1MB\nlog.console = true\nlog.console.level = warning\nlog.file = false\n", b.port, user, password, maxMessage)
	return b, os.WriteFile(filepath.Join(dir, "rabbitmq.conf"), []byte(conf), 0o600)
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close() //nolint:errcheck // a listener that was never used
	return l.Addr().(*net.TCPAddr).Port, nil
}

// command makes a command of RabbitMQ's for this node.
func (b *broker) command(name string, args ...string) *exec.Cmd {
	c := exec.Command(filepath.Join(b.bin, name), args...)
	c.Dir = b.dir
	c.Env = append(os.Environ(),
		"HOME="+b.dir, fmt.Sprintf("RABBITMQ_NODENAME=outbox%d@localhost", b.port), // the cookie is in HOME
		"RABBITMQ_CONFIG_FILE="+filepath.Join(b.dir, "rabbitmq.conf"), "RABBITMQ_CONF_ENV_FILE="+filepath.Join(b.dir, "none"),
		"RABBITMQ_MNESIA_BASE="+filepath.Join(b.dir, "data"), "RABBITMQ_LOG_BASE="+filepath.Join(b.dir, "log"),
		"RABBITMQ_ENABLED_PLUGINS_FILE="+filepath.Join(b.dir, "plugins"), fmt.Sprintf("RABBITMQ_DIST_PORT=%d", b.dist),
		fmt.Sprintf("ERL_EPMD_PORT=%d", b.epmd), "ERL_EPMD_ADDRESS=127.0.0.1", "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=+S 1:1",
	)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // killed together with what it starts
	return c
}

// start starts the node and waits until it lets the user in.
func (b *broker) start() error {
	b.node = b.command("rabbitmq-server")
	b.node.Stdout, b.node.Stderr = &b.output, &b.output
	if err := b.node.Start(); err != nil {
		return err
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); <-tick.C {
		if conn, err := client.Dial(b.url(b.addr())); err == nil {
			return conn.Close()
		}
	}
	b.kill()
	return fmt.Errorf("RabbitMQ does not start: %s", b.output.String())
}

// kill ends the node as a power cut would.
func (b *broker) kill() {
	_ = syscall.Kill(-b.node.Process.Pid, syscall.SIGKILL)
	_ = b.node.Wait() // it was killed
}

// remove ends the node and its port mapper, and removes the directory.
func (b *broker) remove() {
	b.kill()
	stop := exec.Command("epmd", "-port", fmt.Sprint(b.epmd), "-kill")
	stop.Env = append(os.Environ(), "ERL_EPMD_ADDRESS=127.0.0.1")
	_ = stop.Run() // none may be left
	_ = os.RemoveAll(b.dir)
}

// ctl runs rabbitmqctl.
func (b *broker) ctl(t *testing.T, args ...string) {
	t.Helper()
	out, err := b.command("rabbitmqctl", args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

func (b *broker) addr() string { return fmt.Sprintf("127.0.0.1:%d", b.port) }

// url is the broker's as seen at addr.
func (b *broker) url(addr string) string {
	return "amqp://" + user + ":" + strings.NewReplacer(" ", "%20", "?", "%3F").Replace(password) + "@" + addr + "/"
}

// exchange declares an exchange of this name with a queue that takes all, and gives a channel to look after them.
func (b *broker) exchange(t *testing.T, name string) *client.Channel {
	t.Helper()
	conn, err := client.Dial(b.url(b.addr()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() }) // the broker may be gone
	ch, err := conn.Channel()
	require.NoError(t, err)
	require.NoError(t, ch.ExchangeDeclare(name, "topic", true, false, false, false, nil))
	_, err = ch.QueueDeclare(name, true, false, false, false, nil)
	require.NoError(t, err)
	require.NoError(t, ch.QueueBind(name, "#", name, false, nil))
	t.Cleanup(func() {
		_, _ = ch.QueueDelete(name, false, false, false)
		_ = ch.ExchangeDelete(name, false, false)
	})
	return ch
}
