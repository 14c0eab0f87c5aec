package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/stretchr/testify/require"
)

func TestMigrate(t *testing.T) {
	each(t, func(r *rig) {
		require.Equal(r, "table "+r.plugin.Table+" is up to date\n", r.ok("migrate"))
		got := decode[values](r.T, r.ok("migrate", "--json"))
		require.Equal(r, values{"dialect": r.db.Name(), "table": r.plugin.Table, "migrated": true}, got)
		require.True(r, r.db.Migrator().HasTable(r.plugin.Table+"_processed"))
	})
}

func TestSQL(t *testing.T) {
	for _, dialect := range []string{"postgres", "sqlite"} {
		want, err := outbox.MigrationSQL(dialect, outbox.Plugin{Table: "jobs", Tenant: outbox.TenantColumn{Name: "club_id", Type: "bigint"}})
		require.NoError(t, err)
		args := []string{"sql", "--table", "jobs", "--tenant-column", "club_id", "--tenant-type", "bigint"}
		require.Equal(t, result{stdout: want}, invoke(t.Context(), "", append(args, "--dialect", dialect)...))
		dsn := map[string]string{"postgres": "postgres://nowhere/x", "sqlite": "/nowhere/app.db"}[dialect]
		got := invoke(t.Context(), dsn, append(args, "--json")...)
		require.Equal(t, values{"dialect": dialect, "table": "jobs", "sql": want}, decode[values](t, got.stdout))
	}
	for line, says := range map[string]string{"sql": "without --dialect", "sql --dialect mysql": "mysql"} {
		got := invoke(t.Context(), "", strings.Fields(line)...)
		require.Equal(t, exitUsage, got.code)
		require.Contains(t, got.stderr, says)
	}
}

func TestStats(t *testing.T) {
	each(t, func(r *rig) {
		require.Len(r, strings.Split(strings.TrimSpace(r.ok("stats")), "\n"), 1, "a header without topics")
		require.Equal(r, "[]\n", r.ok("stats", "--json"))
		ids := r.enqueue(append(mails(3), outbox.Message{Topic: "sms", Delay: time.Hour})...)
		r.change(failed(), ids[0])
		r.change(discarded(), ids[1])
		r.change(values{"due_at": longAgo}, ids[2])

		topics := decode[[]values](r.T, r.ok("stats", "--json"))
		require.Len(r, topics, 2)
		require.Greater(r, topics[0]["oldest_due_seconds"], 1e8)
		delete(topics[0], "oldest_due_seconds")
		require.Equal(r, values{
			"topic": "email", "due": 1.0, "scheduled": 0.0, "processing": 0.0, "lease_expired": 0.0, "sent_last_hour": 0.0,
			"discarded": 1.0, "failed": 1.0,
		}, topics[0])
		table := strings.Split(strings.TrimSpace(r.ok("stats")), "\n")
		require.Len(r, table, 3)
		require.Regexp(r, `^TOPIC +DUE +SCHEDULED +PROCESSING +LEASE EXPIRED +SENT 1H +DISCARDED +FAILED +OLDEST DUE$`, table[0])
		require.Regexp(r, `^email +1 +0 +0 +0 +0 +1 +1 +\d+h\d+m\d+s$`, table[1])
		require.Regexp(r, `^sms +0 +1 +0 +0 +0 +0 +0 +-$`, table[2])
	})
}

// listed are the ids that a list shows.
func (r *rig) listed(args ...string) []int64 {
	r.Helper()
	ids := []int64{}
	for _, record := range decode[[]recordJSON](r.T, r.ok(append([]string{"list", "--json"}, args...)...)) {
		ids = append(ids, record.ID)
	}
	return ids
}

func TestListSelects(t *testing.T) {
	each(t, func(r *rig) {
		ids := r.enqueue(
			outbox.Message{Topic: "email", Type: "welcome", TenantID: "acme", IdempotencyKey: "k1"},
			outbox.Message{Topic: "email", Type: "bye", TenantID: "zoo", IdempotencyKey: "k1"},
			outbox.Message{Topic: "sms", Type: "welcome"},
		)
		a, b, c := ids[0], ids[1], ids[2]
		r.change(failed(), a)
		r.change(discarded(), b)
		for line, want := range map[string][]int64{
			"":                                      {c, b, a},
			"--all":                                 {c, b, a},
			"--all --limit 2":                       {c, b},
			fmt.Sprintf("--limit 2 --before %d", b): {a},
			fmt.Sprintf("--id %d,%d", a, c):         {c, a},
			fmt.Sprintf("--id %d --id=%d", a, b):    {b, a},
			"--topic email":                         {b, a},
			"--topic email --type bye":              {b},
			"--tenant acme":                         {a},
			"--key k1":                              {b, a},
			"--key k1 --tenant zoo":                 {b},
			"--status failed,discarded":             {b, a},
			"--status pending --status failed":      {c, a},
			"--category network":                    {a},
			"--code 401":                            {b},
			"--enqueued-to 2020-01-03T00:00:00Z":    {b, a},
			"--enqueued-from 2020-01-03T00:00:00Z":  {c},
			"--ended-from 2020-01-02T03:04:05Z":     {b, a},
			"--ended-to 2020-01-02T03:04:05Z":       {},
			"--ended-to 2020-01-02T04:04:06+01:00":  {b, a},
		} {
			require.Equal(r, want, r.listed(strings.Fields(line)...), line)
		}
	})
}

func TestListTable(t *testing.T) {
	each(t, func(r *rig) {
		id := r.enqueue(outbox.Message{Topic: "email", Type: "welcome", TenantID: "acme"})[0]
		r.change(discarded(), id)
		r.change(values{"last_error_code": "4\x1b[2J\t\n1"}, id) // written by someone else
		lines := strings.Split(r.ok("list"), "\n")
		require.Len(r, lines, 3)
		require.Regexp(r, `^ID +TENANT +TOPIC +TYPE +STATUS +ATTEMPTS +ENQUEUED +DUE +ENDED +LAST ERROR$`, lines[0])
		require.Regexp(r, fmt.Sprintf(
			`^%d +acme +email +welcome +discarded +8/8 +2020-01-02T03:04:05Z +- +2020-01-02T03:04:05Z +credentials/4\\x1b\[2J\\t\\n1$`, id), lines[1])
		got := r.invoke("list", "--limit", "1")
		require.Equal(r, fmt.Sprintf("there may be more: --before %d\n", id), got.stderr)
		require.Empty(r, r.invoke("list", "--limit", "1", "--json").stderr)
		require.Equal(r, "[]\n", r.ok("list", "--topic", "nothing", "--json"))
	})
}

// TestNothingPrivate: payload, headers and recipient are printed by --reveal alone, and the lease's token never is.
func TestNothingPrivate(t *testing.T) {
	each(t, func(r *rig) {
		id := r.enqueue(outbox.Message{
			Topic: "email", Type: "welcome", Recipient: "ana@hush.example", Payload: values{"note": "hush & <tell>", "n": 12345678901234567},
			Headers: map[string]string{"trace": "hush"},
		})[0]
		r.change(values{"lease_token": "hush-token", "lease_owner": "web:1", "status": "processing", "leased_until": longAgo}, id)
		for _, line := range []string{
			"migrate", "sql", "stats", "list", fmt.Sprint("explain ", id), "redrive --all", "purge --older-than 7d --dry-run", "purge --older-than 7d",
			fmt.Sprint("cancel --id ", id),
		} {
			for _, form := range []string{"", " --json"} {
				got := r.invoke(strings.Fields(line + form)...)
				require.NotContains(r, got.stdout+got.stderr, "hush", line+form)
			}
		}
		record := decode[[]values](r.T, r.ok("list", "--reveal", "--json"))[0]
		require.Equal(r, "ana@hush.example", record["recipient"])
		require.Equal(r, "hush & <tell>", record["payload"].(values)["note"])
		require.Equal(r, values{"trace": "hush"}, record["headers"])
		require.Contains(r, r.ok("list", "--reveal", "--json"), "12345678901234567", "numbers keep their digits")
		table := r.ok("list", "--reveal")
		for _, part := range []string{"RECIPIENT", "ana@hush.example", `{"trace":"hush"}`, "12345678901234567"} {
			require.Contains(r, table, part)
		}
		for _, out := range []string{table, r.ok("list", "--reveal", "--json")} {
			require.NotContains(r, out, "hush-token")
		}
	})
}

func TestRecordJSON(t *testing.T) {
	each(t, func(r *rig) {
		r.enqueue(outbox.Message{Topic: "email"})
		record := decode[[]values](r.T, r.ok("list", "--json"))[0]
		names := []string{
			"id", "tenant_id", "topic", "type", "message_id", "idempotency_key", "status", "attempts", "max_attempts", "due_at",
			"expires_at", "lease_owner", "leased_until", "last_error_category", "last_error_code", "external_id", "sent_at",
			"dead_at", "created_at", "updated_at",
		}
		for _, name := range names {
			require.Contains(r, record, name)
		}
		require.Len(r, record, len(names))
		require.Nil(r, record["idempotency_key"])
		due, err := time.Parse(time.RFC3339, record["due_at"].(string))
		require.NoError(r, err)
		require.WithinDuration(r, time.Now(), due, time.Minute)
		require.Contains(r, r.ok("list", "--json", "--reveal"), `"headers": null`)
	})
}

func TestExplain(t *testing.T) {
	each(t, func(r *rig) {
		ids := r.enqueue(mails(2)...)
		r.change(failed(), ids[0])
		one, two := fmt.Sprint(ids[0]), fmt.Sprint(ids[1])
		require.Regexp(r, "^Record "+one+" .*network/timeout.*\nRecord "+two+" .*\n$", r.ok("explain", one, two))
		require.Regexp(r, "^Record "+one+" ", r.ok("explain", "--json=false", one), "flags before what is none")

		missing := r.exits(exitNothing, "explain", "999", one)
		require.Contains(r, missing.stdout, "Record "+one)
		require.Contains(r, missing.stderr, "there is no record 999")
		asJSON := r.exits(exitNothing, "explain", one, "--json", "999")
		got := decode[[]explanationJSON](r.T, asJSON.stdout)
		require.Len(r, got, 2)
		require.True(r, got[0].Found)
		require.Contains(r, *got[0].Explanation, "network/timeout")
		require.Equal(r, explanationJSON{ID: 999}, got[1])
	})
}

// TestTenantColumn is about outboxes whose tenants are the application's own.
func TestTenantColumn(t *testing.T) {
	for typ, tenant := range map[string]string{"uuid": "0190b6a6-6f4e-7000-8000-000000000001", "bigint": "42"} {
		t.Run(typ, func(t *testing.T) {
			each(t, func(first *rig) {
				r := newRig(first.T, first.dsn, outbox.Plugin{Tenant: outbox.TenantColumn{Name: "club_id", Type: typ}})
				ids := r.enqueue(outbox.Message{Topic: "email", TenantID: tenant, IdempotencyKey: "k"}, outbox.Message{Topic: "email", TenantID: tenant})
				require.Equal(r, []int64{ids[1], ids[0]}, r.listed("--tenant", tenant))
				require.Contains(r, r.ok("list"), tenant)
				require.Equal(r, "1 record cancelled\n", r.ok("cancel", "--tenant", tenant, "--key", "k"))
				r.change(failed(), ids[1])
				require.Equal(r, "1 record redriven\n", r.ok("redrive", "--tenant", tenant))
				r.change(sent(), ids[1])
				require.Equal(r, "1 record would be purged; nothing was changed\n", r.ok("purge", "--older-than", "7d", "--tenant", tenant, "--dry-run"))
				require.Equal(r, "1 record purged\n", r.ok("purge", "--older-than", "7d", "--tenant", tenant))
			})
		})
	}
}
