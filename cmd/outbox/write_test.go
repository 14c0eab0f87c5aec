package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
)

func TestRedrive(t *testing.T) {
	for line, want := range map[string]int{
		"--all":                                  3,
		"--all --limit 2":                        2,
		"--topic email":                          2,
		"--type otp":                             1,
		"--tenant acme":                          1,
		"--category network":                     2,
		"--code 401":                             1,
		"--died-from 2021-01-01T00:00:00Z":       0,
		"--died-to 2021-01-01T00:00:00Z":         3,
		"--topic email --category credentials":   1,
		"--id 1,2,3,4,5 --rate 0.5":              3,
		"--id 1 --id 2 --id 3 --id 5 --limit 99": 3,
	} {
		t.Run(line, func(t *testing.T) {
			each(t, func(r *rig) {
				messages := append(mails(4), outbox.Message{Topic: "sms", Type: "otp", TenantID: "acme"})
				ids := r.enqueue(messages...)
				r.change(failed(), ids[0], ids[4])
				r.change(discarded(), ids[1])
				r.change(sent(), ids[2])
				before := r.statuses()
				args := append([]string{"redrive"}, strings.Fields(line)...)

				require.Equal(r, values{"redriven": float64(want), "dry_run": true, "complete": true},
					decode[values](r.T, r.ok(append(args, "--dry-run", "--json")...)))
				require.Contains(r, r.ok(append(args, "--dry-run")...), " would be redriven; nothing was changed\n")
				require.Equal(r, before, r.statuses())

				require.Equal(r, values{"redriven": float64(want), "dry_run": false, "complete": true},
					decode[values](r.T, r.ok(append(args, "--json")...)))
				require.Equal(r, 1+want, r.statuses()["pending"])
				require.Equal(r, 1, r.statuses()["sent"])
				if !strings.Contains(line, "limit") {
					require.Equal(r, "0 records redriven\n", r.ok(args...))
				}
			})
		})
	}
}

func TestPurge(t *testing.T) {
	for line, want := range map[string]int64{
		"--older-than 7d":                                       3,
		"--older-than 1d12h30m --chunk 1":                       3,
		"--before 2021-01-01T00:00:00Z":                         3,
		"--before 2020-01-02T03:04:05.678Z":                     0,
		"--older-than 7d --status sent":                         1,
		"--older-than 7d --status sent,failed":                  2,
		"--older-than 7d --status discarded --status cancelled": 1,
		"--older-than 7d --topic sms":                           1,
		"--older-than 7d --tenant acme":                         1,
		"--older-than 7d --topic fax":                           0,
	} {
		t.Run(line, func(t *testing.T) {
			each(t, func(r *rig) {
				messages := append(mails(5), outbox.Message{Topic: "sms", TenantID: "acme"})
				ids := r.enqueue(messages...)
				r.change(values{"created_at": longAgo}, ids...) // one after the other, as in life
				r.change(sent(), ids[0])
				r.change(discarded(), ids[1])
				r.change(failed(), ids[5])
				r.change(values{"status": "sent", "sent_at": time.Now().UTC()}, ids[2])
				args := append([]string{"purge"}, strings.Fields(line)...)

				require.Equal(r, values{"purged": float64(want), "dry_run": true, "complete": true},
					decode[values](r.T, r.ok(append(args, "--dry-run", "--json")...)))
				require.Contains(r, r.ok(append(args, "--dry-run")...), " would be purged; nothing was changed\n")
				require.EqualValues(r, len(ids), r.count())

				require.Contains(r, r.ok(args...), fmt.Sprintf("%d record", want))
				require.EqualValues(r, int64(len(ids))-want, r.count())
				require.Equal(r, values{"purged": 0.0, "dry_run": false, "complete": true}, decode[values](r.T, r.ok(append(args, "--json")...)))
			})
		})
	}
}

// TestPurgeCountsPages: a trial run that needs several pages counts every record once.
func TestPurgeCountsPages(t *testing.T) {
	each(t, func(r *rig) {
		r.change(sent(), r.enqueue(mails(2*maxPage+1)...)...)
		require.Equal(r, "2001 records would be purged; nothing was changed\n", r.ok("purge", "--older-than", "7d", "--dry-run"))
		require.Equal(r, "2001 records purged\n", r.ok("purge", "--older-than", "7d"))
	})
}

func TestPurgeConsumed(t *testing.T) {
	each(t, func(r *rig) {
		require.NoError(r, r.db.Transaction(func(tx *gorm.DB) error {
			_, err := r.plugin.ConsumeOnce(tx, "credits", "m1", func(*gorm.DB) error { return nil })
			return err
		}))
		require.Equal(r, "0 markers purged\n", r.ok("purge", "--consumed", "--older-than", "1d"))
		require.NoError(r, r.db.Table(r.plugin.Table+"_processed").Where("consumer = ?", "credits").Updates(values{"processed_at": longAgo}).Error)
		require.Equal(r, "1 marker purged\n", r.ok("purge", "--consumed", "--older-than", "1d"))
		require.Equal(r, "0 markers purged\n", r.ok("purge", "--consumed", "--older-than", "1d"))
	})
}

func TestCancel(t *testing.T) {
	each(t, func(r *rig) {
		ids := r.enqueue(
			outbox.Message{Topic: "email", TenantID: "acme", IdempotencyKey: "reminder"},
			outbox.Message{Topic: "email", TenantID: "zoo", IdempotencyKey: "reminder"},
			outbox.Message{Topic: "email", IdempotencyKey: "mine alone"},
			outbox.Message{Topic: "email"},
		)
		several := r.exits(exitUsage, "cancel", "--key", "reminder")
		require.Contains(r, several.stderr, "2 tenants; give --tenant")
		require.Equal(r, map[string]int{"pending": 4}, r.statuses(), "a key of several tenants withdraws none")

		require.Equal(r, "1 record would be cancelled; nothing was changed\n", r.ok("cancel", "--key", "reminder", "--tenant", "zoo", "--dry-run"))
		require.Equal(r, map[string]int{"pending": 4}, r.statuses())
		require.Equal(r, "1 record cancelled\n", r.ok("cancel", "--key", "reminder", "--tenant", "zoo"))
		require.Equal(r, "1 record cancelled\n", r.ok("cancel", "--key", "mine alone"))

		both := fmt.Sprintf("%d,%d", ids[1], ids[3])
		require.Equal(r, values{"cancelled": 1.0, "dry_run": true, "complete": true}, decode[values](r.T, r.ok("cancel", "--id", both, "--dry-run", "--json")))
		require.Equal(r, values{"cancelled": 1.0, "dry_run": false, "complete": true}, decode[values](r.T, r.ok("cancel", "--id", both, "--json")))
		require.Equal(r, map[string]int{"pending": 1, "cancelled": 3}, r.statuses())

		for _, form := range []string{"", " --json", " --dry-run"} {
			got := r.exits(exitNothing, strings.Fields("cancel --id "+both+form)...)
			require.Contains(r, got.stderr, "nothing was withdrawn")
			require.Contains(r, got.stdout, "0")
		}
		r.exits(exitNothing, "cancel", "--id", "999")
	})
}

// whenFewer gives a context that ends when the table has fewer than n records.
func (r *rig) whenFewer(n int64) (context.Context, func()) {
	ctx, cancel := context.WithCancel(r.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for left := n; left >= n && ctx.Err() == nil; {
			if r.db.Table(r.plugin.Table).Count(&left).Error != nil {
				break
			}
		}
		cancel()
	}()
	return ctx, func() {
		cancel()
		<-done
	}
}

func TestInterruptedPurge(t *testing.T) {
	each(t, func(r *rig) {
		const all = 1500
		r.change(sent(), r.enqueue(mails(all)...)...)
		for _, form := range []string{"", "--json"} {
			had := r.count()
			ctx, end := r.whenFewer(had)
			args := r.args(strings.Fields("purge --older-than 7d --chunk 1 " + form))
			got := invoke(ctx, r.dsn, args...)
			end()
			require.Equal(r, exitFailed, got.code, got.stdout)
			require.Equal(r, "outbox purge: interrupted\n", got.stderr[strings.LastIndex(got.stderr, "outbox purge: "):])
			gone := had - r.count()
			require.Greater(r, gone, int64(0))
			if form == "" {
				require.Regexp(r, fmt.Sprintf("^%d records? purged before it stopped\n$", gone), got.stdout)
			} else {
				require.Equal(r, values{"purged": float64(gone), "dry_run": false, "complete": false}, decode[values](r.T, got.stdout))
			}
		}
		require.Greater(r, r.count(), int64(0), "it was not interrupted")
	})
}

func TestInterruptedBeforeItBegins(t *testing.T) {
	each(t, func(r *rig) {
		r.change(sent(), r.enqueue(mails(3)...)...)
		ctx, cancel := context.WithCancel(r.Context())
		cancel()
		for _, line := range []string{"stats", "list", "purge --older-than 7d", "purge --older-than 7d --dry-run", "redrive --all", "cancel --id 1"} {
			got := invoke(ctx, r.dsn, r.args(strings.Fields(line))...)
			require.Equal(r, exitFailed, got.code, line)
			require.Contains(r, got.stderr, "interrupted", line)
		}
		require.EqualValues(r, 3, r.count())
	})
}

// TestSignal has a process of its own be told to stop.
func TestSignal(t *testing.T) {
	each(t, func(r *rig) {
		const all = 2000
		r.change(sent(), r.enqueue(mails(all)...)...)
		self, err := os.Executable()
		require.NoError(r, err)
		command := exec.Command(self, r.args(strings.Fields("purge --older-than 7d --chunk 1 --json"))...)
		command.Env = append(os.Environ(), asCommand+"=1", "DATABASE_URL="+r.dsn)
		var stdout, stderr strings.Builder
		command.Stdout, command.Stderr = &stdout, &stderr
		require.NoError(r, command.Start())
		ctx, end := r.whenFewer(all)
		<-ctx.Done()
		end()
		require.NoError(r, command.Process.Signal(syscall.SIGTERM))
		var exit *exec.ExitError
		require.ErrorAs(r, command.Wait(), &exit)
		require.Equal(r, exitFailed, exit.ExitCode(), stderr.String())
		require.Contains(r, stderr.String(), "interrupted")
		gone := all - r.count()
		require.Equal(r, values{"purged": float64(gone), "dry_run": false, "complete": false}, decode[values](r.T, stdout.String()))
		require.Less(r, gone, int64(all))
	})
}
