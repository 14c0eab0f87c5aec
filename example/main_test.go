package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// asProgram in the environment makes the test binary the program itself. So the whole of it is tested, with exit status
// and the worker process of scene 6, and under -race if the tests are.
const asProgram = "OUTBOX_EXAMPLE_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// program is the example as a process whose temporary files go to temp.
func program(t *testing.T, temp string, args ...string) (cmd *exec.Cmd, stdout, stderr *bytes.Buffer) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	cmd = exec.CommandContext(ctx, self, args...)
	cmd.Env = append(os.Environ(), asProgram+"=1", "TMPDIR="+temp, "TMP="+temp)
	stdout, stderr = &bytes.Buffer{}, &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	return cmd, stdout, stderr
}

func TestTourOnSQLite(t *testing.T) {
	t.Parallel()
	temp := t.TempDir()

	requireTour(t, temp)

	left, err := os.ReadDir(temp)
	require.NoError(t, err)
	require.Empty(t, left, "the temporary database is removed")
}

// TestTourTwiceOnOneDatabase shows that a tour clears away what an earlier one left, and nothing else.
func TestTourTwiceOnOneDatabase(t *testing.T) {
	t.Parallel()
	dsn := "sqlite:" + t.TempDir() + "/shop.db"
	db, err := connect(dsn)
	require.NoError(t, err)
	require.NoError(t, db.Exec("CREATE TABLE outbox (mine text)").Error)
	require.NoError(t, disconnect(db))

	requireTour(t, t.TempDir(), "-dsn", dsn)
	requireTour(t, t.TempDir(), "-dsn", dsn)

	db, err = connect(dsn)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, disconnect(db)) })
	require.True(t, db.Migrator().HasColumn("outbox", "mine"), "a table that is not the tour's")
}

// storyLines are what the account must say, in this order.
var storyLines = []string{
	`1\. An order commits`,
	`record 1 +orders order\.placed\.v1: pending`,
	`record 2 +email order_confirmation: pending`,
	`a round: 2 claimed, 2 sent`,
	`record 2 +email order_confirmation: sent, attempt 1 of 8, the provider calls it <\w{7}…>`,
	`smtp +got a mail to ada@example\.com: "We have your order 1", "2 × tea"`,
	`2\. An order is rolled back`,
	`0 orders of this customer, 0 messages; a round: 0 claimed`,
	`3\. A request is repeated`,
	`new: true`,
	`new: false`,
	`a round: 1 claimed, 1 sent`,
	`smtp +got a mail to ada@example\.com: "Your order 1 is on its way", "2 × tea, parcel P-4711"`,
	`4\. The mail server is down`,
	`attempt 1 of 8 failed with network/451 4\.3\.2, due again in \d+ ms`,
	`attempt 2 of 8 failed with network/451 4\.3\.2, due again in \d+ ms`,
	`attempt 3 of 8 sent`,
	`smtp +got a mail to grace@example\.com: "We have your order 2", "1 × tea"`,
	`5\. The mail server refuses for good`,
	`discarded, attempt 1 of 8, last error number/550 5\.1\.1`,
	`6\. A worker dies in mid-delivery`,
	`it is killed`,
	`processing, attempt 1 of 8, leased by process \d+`,
	`\d+ rounds found nothing; the next, after [4-9]\.\d s, reclaimed the message and sent it`,
	`email order_shipped: sent, attempt 2 of 8`,
	`smtp +took it twice, under one Message-ID`,
	`smtp +got a mail to grace@example\.com: "Your order 2 is on its way", "1 × tea, parcel P-4712"`,
	`smtp +got a mail to grace@example\.com: "Your order 2 is on its way", "1 × tea, parcel P-4712"`,
	`7\. WhatsApps go out from each shop's own number`,
	`a round: 3 claimed, 2 sent, 1 discarded`,
	`record 10 +whatsapp courier_near: sent, attempt 1 of 8, the provider calls it wamid\.1065001\.1\n`,
	`record 11 +whatsapp courier_near: sent, attempt 1 of 8, the provider calls it wamid\.1065002\.1\n`,
	`record 12 +whatsapp courier_near: discarded, attempt 1 of 8, last error credentials/no_credentials`,
	`record 10 +whatsapp courier_near: sent, .*, and reports it delivered`,
	`whatsapp +got from number 1065001 to \+12025550101: courier_near \["1" "tea"\]`,
	`whatsapp +got from number 1065002 to \+12025550102: courier_near \["2" "tea"\]`,
	`8\. The answer to a WhatsApp is lost`,
	`record 15 +whatsapp courier_near: failed, attempt 1 of 8, last error outcome_unknown/no_answer\n`,
	`another round: 0 claimed`,
	`record 15 +whatsapp courier_near: failed, .*, and reports it delivered`,
	`whatsapp +got from number 1065002 to \+12025550104: courier_near \["4" "tea"\]`,
	`9\. A scheduler drives the processor`,
	`6 messages sent in \d+ rounds; shut down`,
	`smtp +got a mail to ada@example\.com: "We have your order 5", "1 × tea"`,
	`smtp +got a mail to ada@example\.com: "We have your order 6", "1 × tea"`,
	`smtp +got a mail to ada@example\.com: "We have your order 7", "1 × tea"`,
	`10\. Run drives it`,
	`Run has returned`,
	`smtp +got a mail to ada@example\.com: "We have your order 8", "1 × tea"`,
	`email +9 sent, 1 discarded, 0 failed, 0 waiting`,
	`orders +8 sent, 0 discarded, 0 failed, 0 waiting`,
	`whatsapp +2 sent, 1 discarded, 1 failed, 0 waiting`,
	`arrived +10 mails of 9 messages, 3 WhatsApps`,
	`All 10 scenes went as told`,
}

func requireTour(t *testing.T, temp string, args ...string) {
	t.Helper()
	cmd, stdout, stderr := program(t, temp, args...)
	began := time.Now()

	err := cmd.Run()

	require.NoError(t, err, "%s\n%s", stdout, stderr)
	require.Empty(t, stderr.String())
	require.Less(t, time.Since(began), 30*time.Second)
	require.Regexp(t, regexp.MustCompile("(?s)"+strings.Join(storyLines, ".*")), stdout.String())
}

func TestInterruptEndsItCleanly(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("Windows cannot send an interrupt to another process")
	}
	temp := t.TempDir()
	cmd, stdout, stderr := program(t, temp)
	// In scene 6, whose worker process must end too: it holds the pipe that Wait reads to its end.
	cmd.Stdout = &interrupter{seen: stdout, at: "starts", cmd: cmd}

	err := cmd.Run()

	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 130, exit.ExitCode(), "%s\n%s", stdout, stderr)
	require.Equal(t, "\nInterrupted: stopped and cleaned up.\n", stderr.String())
	left, err := os.ReadDir(temp)
	require.NoError(t, err)
	require.Empty(t, left, "the temporary database is removed")
}

// interrupter interrupts the program once it has written a text.
type interrupter struct {
	seen *bytes.Buffer
	at   string
	cmd  *exec.Cmd
}

func (i *interrupter) Write(p []byte) (int, error) {
	n, err := i.seen.Write(p)
	if i.at != "" && strings.Contains(i.seen.String(), i.at) {
		i.at = ""
		err = i.cmd.Process.Signal(os.Interrupt)
	}
	return n, err
}

func TestWrongUse(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		args []string
		exit int
		says string
	}{
		{"unknown flag", []string{"-nope"}, 2, "-dsn"},
		{"a DSN without its flag", []string{"postgres://localhost/app"}, 2, "-dsn"},
		{"no such server", []string{"-dsn", "postgres://127.0.0.1:1/app?connect_timeout=2"}, 1, "example: connect: "},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cmd, _, stderr := program(t, t.TempDir(), tt.args...)

			err := cmd.Run()

			var exit *exec.ExitError
			require.ErrorAs(t, err, &exit)
			require.Equal(t, tt.exit, exit.ExitCode())
			require.Contains(t, stderr.String(), tt.says)
		})
	}
}
