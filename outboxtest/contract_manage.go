package outboxtest

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
)

var manageChecks = []check{
	{"purge deletes by the time of the end", checkPurge},
	{"purge selects", checkPurgeSelects},
	{"purge never touches what lives", checkPurgeRefusals},
	{"purge stops with its context", checkPurgeStops},
	{"redrive gives a fresh budget", checkRedrive},
	{"redrive selects", checkRedriveSelects},
	{"redrive spreads", checkRedriveRate},
	{"redrive touches only the dead", checkRedriveDeadOnly},
	{"cancel withdraws what waits", checkCancel},
	{"cancel is part of the transaction", checkCancelRollback},
	{"filters that select by mistake are refused", checkFilters},
	{"an expired message is not sent", checkExpired},
}

// longAgo is a time at which records can have ended; it is not the worker's clock that counts.
var longAgo = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)

// ended makes records that ended at a time, however long ago they were enqueued.
func ended(status outbox.Status, at time.Time) values {
	column := "dead_at"
	if status == outbox.StatusSent {
		column = "sent_at"
	}
	return values{"status": status, column: at, "created_at": longAgo.AddDate(-1, 0, 0)}
}

// endings enqueues one record for each way to end and one for each way to live.
func endings(t *testing.T, db *gorm.DB, at time.Time) map[outbox.Status]int64 {
	t.Helper()
	all := map[outbox.Status]int64{}
	for _, status := range []outbox.Status{
		outbox.StatusSent, outbox.StatusDiscarded, outbox.StatusFailed, outbox.StatusCancelled, outbox.StatusExpired,
	} {
		all[status] = enqueue(t, db, mail(string(status)))[0].ID
		change(t, db, ended(status, at), all[status])
	}
	all[outbox.StatusPending] = enqueue(t, db, mail("pending"))[0].ID
	all[outbox.StatusProcessing] = enqueue(t, db, mail("processing"))[0].ID
	change(t, db, leased(1, "created_at"), all[outbox.StatusProcessing])
	return all
}

func checkPurge(t *testing.T, db *gorm.DB) {
	install(t, db)
	enqueue(t, db, mail("young, and in front: ids do not always grow with time"))
	all := endings(t, db, longAgo)
	late := enqueue(t, db, mail("enqueued long ago, ended today"))[0].ID
	change(t, db, values{
		"status": "sent", "sent_at": gorm.Expr("created_at"), "due_at": longAgo,
	}, late)
	change(t, db, values{"created_at": longAgo}, late)

	o := outbox.PurgeOptions{OlderThan: 30 * 24 * time.Hour, ChunkSize: 1, DryRun: true}
	n, err := outbox.Purge(db, o)
	require.NoError(t, err)
	require.EqualValues(t, 5, n)
	require.Len(t, left(t, db), 9, "a dry run deletes nothing")
	o.DryRun = false
	n, err = outbox.Purge(db, o)
	require.NoError(t, err)
	require.EqualValues(t, 5, n)
	require.Equal(t, []int64{1, all[outbox.StatusPending], all[outbox.StatusProcessing], late}, left(t, db))
	n, err = outbox.Purge(db, outbox.PurgeOptions{Before: longAgo.AddDate(100, 0, 0)})
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
}

// left are the ids of the records that are there.
func left(t *testing.T, db *gorm.DB) (ids []int64) {
	t.Helper()
	for _, r := range records(t, db) {
		ids = append(ids, r.ID)
	}
	return ids
}

func checkPurgeSelects(t *testing.T, db *gorm.DB) {
	install(t, db)
	all := endings(t, db, longAgo)
	sms := enqueue(t, db, outbox.Message{Topic: "sms", TenantID: "acme"})[0].ID
	change(t, db, ended(outbox.StatusSent, longAgo), sms)
	for _, tt := range []struct {
		options outbox.PurgeOptions
		gone    int64
	}{
		{outbox.PurgeOptions{Topic: "fax"}, 0},
		{outbox.PurgeOptions{TenantID: "acme"}, 1},
		{outbox.PurgeOptions{Statuses: []outbox.Status{outbox.StatusFailed, outbox.StatusExpired}}, 2},
		{outbox.PurgeOptions{Topic: topic, Statuses: []outbox.Status{outbox.StatusSent}}, 1},
	} {
		tt.options.Before = longAgo.Add(time.Second)
		n, err := outbox.Purge(db, tt.options)
		require.NoError(t, err)
		require.Equal(t, tt.gone, n, "%+v", tt.options)
	}
	require.Len(t, left(t, db), len(all)-3)
}

func checkPurgeRefusals(t *testing.T, db *gorm.DB) {
	install(t, db)
	all := endings(t, db, longAgo)
	for name, o := range map[string]outbox.PurgeOptions{
		"no time":           {},
		"two times":         {Before: longAgo, OlderThan: time.Hour},
		"negative age":      {OlderThan: -time.Hour},
		"pending":           {OlderThan: time.Hour, Statuses: []outbox.Status{outbox.StatusSent, outbox.StatusPending}},
		"processing":        {OlderThan: time.Hour, Statuses: []outbox.Status{outbox.StatusProcessing}},
		"no status at all":  {OlderThan: time.Hour, Statuses: []outbox.Status{}},
		"unknown status":    {OlderThan: time.Hour, Statuses: []outbox.Status{"done"}},
		"chunk of nothing":  {OlderThan: time.Hour, ChunkSize: -1},
		"everything a time": {OlderThan: time.Hour, ChunkSize: 10001},
	} {
		n, err := outbox.Purge(db, o)
		require.ErrorIs(t, err, outbox.ErrInvalid, name)
		require.Zero(t, n, name)
	}
	require.ErrorIs(t, db.Transaction(func(tx *gorm.DB) error {
		_, err := outbox.Purge(tx, outbox.PurgeOptions{OlderThan: time.Hour})
		return err
	}), outbox.ErrInvalid, "in a transaction")
	require.Len(t, left(t, db), len(all))
}

func checkPurgeStops(t *testing.T, db *gorm.DB) {
	install(t, db)
	endings(t, db, longAgo)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	n, err := outbox.Purge(db.WithContext(ctx), outbox.PurgeOptions{OlderThan: time.Hour})
	require.ErrorIs(t, err, context.Canceled)
	require.Zero(t, n)
}

// die enqueues messages that are discarded, in this order.
func die(t *testing.T, db *gorm.DB, failure policy.Failure, kinds ...string) []int64 {
	t.Helper()
	var dead []int64
	for _, kind := range kinds {
		dead = append(dead, enqueue(t, db, mail(kind))[0].ID)
		requireSummary(t, outbox.Summary{Claimed: 1, Discarded: 1}, once(t, db, configure(NewRecorder(Fail(failure)))))
	}
	return dead
}

func checkRedrive(t *testing.T, db *gorm.DB) {
	install(t, db)
	m := mail("one")
	m.MaxAttempts = 3
	id := enqueue(t, db, m)[0].ID
	for range 3 {
		change(t, db, dueNow, id)
		once(t, db, configure(NewRecorder(Fail(errContract))))
	}
	require.Equal(t, outbox.StatusFailed, record(t, db, id).Status)

	n, err := outbox.Redrive(db, outbox.Filter{IDs: []int64{id}})
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
	r := record(t, db, id)
	requireSound(t, r)
	require.Equal(t, outbox.StatusPending, r.Status)
	require.Zero(t, r.Attempts)

	rec := NewRecorder(Fail(errContract), Fail(errContract), Accept("at last"))
	for range 3 {
		once(t, db, configure(rec))
		change(t, db, dueNow, id)
	}
	require.Equal(t, outbox.StatusSent, record(t, db, id).Status)
	require.Equal(t, []int{1, 2, 3}, attempts(rec.Deliveries()))
}

func attempts(deliveries []outbox.Delivery) []int {
	all := make([]int, len(deliveries))
	for i, d := range deliveries {
		all[i] = d.Attempt
	}
	return all
}

func checkRedriveSelects(t *testing.T, db *gorm.DB) {
	install(t, db)
	refused := policy.Failure{Category: policy.CategoryRejected, Code: "550"}
	unpaid := policy.Failure{Category: policy.CategoryBilling}
	dead := die(t, db, refused, "a", "b", "c")
	dead = append(dead, die(t, db, unpaid, "d")...)
	for _, tt := range []struct {
		name   string
		filter outbox.Filter
		want   int64
	}{
		{"another topic", outbox.Filter{Topic: "sms"}, 0},
		{"another tenant", outbox.Filter{TenantID: "acme"}, 0},
		{"before it happened", outbox.Filter{EndedTo: longAgo}, 0},
		{"counted only", outbox.Filter{All: true, DryRun: true}, 4},
		{"counted only, some", outbox.Filter{All: true, DryRun: true, Limit: 3}, 3},
		{"type", outbox.Filter{Type: "b"}, 1},
		{"category and code, the first to die", outbox.Filter{Category: "rejected", Code: "550", Limit: 1}, 1},
		{"category", outbox.Filter{Category: "billing", EndedFrom: longAgo}, 1},
		{"all", outbox.Filter{All: true}, 1},
		{"none left", outbox.Filter{All: true}, 0},
	} {
		n, err := outbox.Redrive(db, tt.filter)
		require.NoError(t, err, tt.name)
		require.Equal(t, tt.want, n, tt.name)
	}
	require.Len(t, left(t, db), len(dead))
}

func checkRedriveRate(t *testing.T, db *gorm.DB) {
	install(t, db)
	ids := die(t, db, policy.Failure{Category: policy.CategoryRejected}, "a", "b", "c")
	_, err := outbox.Redrive(db, outbox.Filter{All: true, Rate: 0.1})
	require.NoError(t, err)
	first := record(t, db, ids[0]).DueAt
	for i, id := range ids {
		require.WithinDuration(t, first.Add(time.Duration(i)*10*time.Second), record(t, db, id).DueAt, 2*time.Millisecond)
	}
}

func checkRedriveDeadOnly(t *testing.T, db *gorm.DB) {
	install(t, db)
	all := endings(t, db, longAgo)
	before := records(t, db)
	n, err := outbox.Redrive(db, outbox.Filter{All: true})
	require.NoError(t, err)
	require.EqualValues(t, 2, n)
	for _, r := range before {
		if r.ID == all[outbox.StatusDiscarded] || r.ID == all[outbox.StatusFailed] {
			require.Equal(t, outbox.StatusPending, record(t, db, r.ID).Status)
		} else {
			require.Equal(t, r, record(t, db, r.ID))
		}
	}
	require.ErrorIs(t, db.Transaction(func(tx *gorm.DB) error {
		_, err := outbox.Redrive(tx, outbox.Filter{All: true})
		return err
	}), outbox.ErrInvalid, "in a transaction")
}

func checkCancel(t *testing.T, db *gorm.DB) {
	install(t, db)
	m := mail("reminder")
	m.TenantID, m.IdempotencyKey, m.Delay = "acme", "invoice-7", time.Hour
	reminder := enqueue(t, db, m)[0].ID
	all := endings(t, db, longAgo)
	cancel := func(f outbox.Filter) (n int64) {
		require.NoError(t, db.Transaction(func(tx *gorm.DB) (err error) {
			n, err = outbox.Cancel(tx, f)
			return err
		}))
		return n
	}
	require.EqualValues(t, 0, cancel(outbox.Filter{TenantID: "other", IdempotencyKey: "invoice-7"}))
	require.EqualValues(t, 1, cancel(outbox.Filter{TenantID: "acme", IdempotencyKey: "invoice-7"}))
	require.EqualValues(t, 0, cancel(outbox.Filter{TenantID: "acme", IdempotencyKey: "invoice-7"}))
	for status, id := range all {
		want := int64(0)
		if status == outbox.StatusPending {
			want = 1
		}
		require.Equal(t, want, cancel(outbox.Filter{IDs: []int64{id}}), status)
	}
	r := record(t, db, reminder)
	require.Equal(t, outbox.StatusCancelled, r.Status)
	require.NotNil(t, r.DeadAt)
	change(t, db, dueNow, reminder)
	requireSummary(t, outbox.Summary{Claimed: 1, Sent: 1}, once(t, db, configure(NewRecorder()))) // the one left processing
	_, err := outbox.Cancel(db, outbox.Filter{IDs: []int64{reminder}})
	require.ErrorIs(t, err, outbox.ErrNoTransaction)
}

func checkCancelRollback(t *testing.T, db *gorm.DB) {
	install(t, db)
	id := enqueue(t, db, mail("one"))[0].ID
	require.ErrorIs(t, db.Transaction(func(tx *gorm.DB) error {
		n, err := outbox.Cancel(tx, outbox.Filter{IDs: []int64{id}})
		require.NoError(t, err)
		require.EqualValues(t, 1, n)
		return errContract
	}), errContract)
	require.Equal(t, outbox.StatusPending, record(t, db, id).Status)
}

func checkFilters(t *testing.T, db *gorm.DB) {
	install(t, db)
	for name, f := range map[string]outbox.Filter{
		"nothing":              {},
		"all and something":    {All: true, Topic: topic},
		"no ids":               {IDs: []int64{}},
		"id zero":              {IDs: []int64{0}},
		"no statuses":          {Statuses: []outbox.Status{}},
		"unknown status":       {Statuses: []outbox.Status{"done"}},
		"range ends first":     {EndedFrom: longAgo, EndedTo: longAgo},
		"range ends first too": {EnqueuedFrom: longAgo, EnqueuedTo: longAgo.Add(-1)},
		"year zero":            {EndedFrom: time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC)},
		"negative limit":       {All: true, Limit: -1},
		"negative rate":        {All: true, Rate: -1},
		"rate no number":       {All: true, Rate: math.NaN()},
		"endless rate":         {All: true, Rate: math.Inf(1)},
		"NUL":                  {Topic: "a\x00"},
		"invalid UTF-8":        {Type: "\xff"},
	} {
		_, err := outbox.Redrive(db, f)
		require.ErrorIs(t, err, outbox.ErrInvalid, name)
		require.Equal(t, 1, strings.Count(err.Error(), outbox.ErrInvalid.Error()), "said once: %v", err)
	}
	for name, f := range map[string]outbox.Filter{"rate": {All: true, Rate: 1}, "dry run": {All: true, DryRun: true}} {
		_, err := outbox.List(db, outbox.ListOptions{Filter: f})
		require.ErrorIs(t, err, outbox.ErrInvalid, name)
		require.ErrorIs(t, db.Transaction(func(tx *gorm.DB) error {
			_, err := outbox.Cancel(tx, f)
			return err
		}), outbox.ErrInvalid, name)
	}
}

func checkExpired(t *testing.T, db *gorm.DB) {
	install(t, db)
	otp := func(kind string, expires time.Time) outbox.Message {
		m := mail(kind)
		m.ExpiresAt = expires
		return m
	}
	receipts := enqueue(t, db, otp("late", longAgo), otp("in time", time.Now().Add(24*time.Hour)), otp("for ever", time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)))
	rec := NewRecorder()
	s := newProcessor(t, db, configure(rec)).ProcessOnce(context.Background())
	requireSummary(t, outbox.Summary{Claimed: 3, Sent: 2, Expired: 1}, s)
	require.ElementsMatch(t, []string{"in time", "for ever"}, kinds(rec.Deliveries()))
	r := record(t, db, receipts[0].ID)
	require.Equal(t, outbox.StatusExpired, r.Status)
	require.Zero(t, r.Attempts)
	require.NotNil(t, r.DeadAt)
	require.Nil(t, r.SentAt)
	require.ErrorIs(t, db.Transaction(func(tx *gorm.DB) error {
		_, err := outbox.Enqueue(tx, otp("before time", time.Date(1900, 1, 1, 0, 0, 0, 0, time.UTC)))
		return errors.Join(err)
	}), outbox.ErrInvalid)
}
