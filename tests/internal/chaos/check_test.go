package chaos

import (
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/stretchr/testify/require"
)

var start = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)

// at is so many milliseconds into the run.
func at(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }

// sound is the history of a run in which one worker was killed inside a delivery, and another took over: nothing is wrong
// with it.
func sound() *History {
	return &History{
		Timeout:      time.Second,
		Facts:        []StoredFact{{ID: "f1", Key: "k1"}, {ID: "f2"}},
		Acknowledged: []string{"f1", "f2"},
		RolledBack:   []string{"f3"},
		Records: []Record{
			{ID: 1, Fact: "f1", Key: "k1", Topic: Orders, Status: outbox.StatusSent, Attempts: 2, MaxAttempts: 3, ExternalID: "b-1"},
			{ID: 2, Fact: "f2", Topic: Once, Status: outbox.StatusFailed, Attempts: 1, MaxAttempts: 3},
		},
		Writes: []Write{
			claimed(1, "a", "t1", 0, 100, Write{WasStatus: outbox.StatusPending}),
			claimed(2, "a", "t2", 0, 110, Write{WasStatus: outbox.StatusPending}),
			claimed(1, "b", "t3", 1, 6000, Write{WasStatus: outbox.StatusProcessing, WasOwner: "a", WasToken: "t1", WasUntil: at(5100)}),
			decided(1, "b", "t3", 2, 6100, Write{Status: outbox.StatusSent, External: "b-1"}),
			{Record: 2, Writer: "b", At: at(6200), WasStatus: outbox.StatusProcessing, Status: outbox.StatusFailed, WasAttempts: 1,
				Attempts: 1, WasOwner: "a", WasToken: "t2", WasUntil: at(5110), Category: "outcome_unknown", Code: "lease_expired"},
		},
		Deliveries: []Delivery{
			{ID: "a-1", Record: 1, Fact: "f1", Topic: Orders, Attempt: 1, Worker: "a", Behaviour: Slow, Begun: at(200), Ended: at(200)},
			{ID: "b-1", Record: 1, Fact: "f1", Topic: Orders, Attempt: 2, Worker: "b", Behaviour: Quick, Begun: at(6010), Ended: at(6020), Outcome: Accepted},
		},
		Lives: []Life{
			{Worker: "a", Killed: at(300), Dead: at(310)},
			{Worker: "b", Dead: at(9000), Report: &Report{
				Attempts: map[outbox.Status]int{outbox.StatusSent: 1},
				Rounds:   &outbox.Summary{Claimed: 2, Sent: 1, Failed: 1},
			}},
		},
	}
}

// claimed fills in a claim, of a lease of five seconds.
func claimed(record int64, worker, token string, attempts, ms int, w Write) Write {
	w.Record, w.Writer, w.Owner, w.Token, w.At, w.Until = record, worker, worker, token, at(ms), at(ms+5000)
	w.Status, w.WasAttempts, w.Attempts = outbox.StatusProcessing, attempts, attempts+1
	return w
}

// decided fills in an outcome.
func decided(record int64, worker, token string, attempts, ms int, w Write) Write {
	w.Record, w.Writer, w.WasOwner, w.WasToken, w.At = record, worker, worker, token, at(ms)
	w.WasStatus, w.WasAttempts, w.Attempts = outbox.StatusProcessing, attempts, attempts
	return w
}

func TestASoundHistory(t *testing.T) {
	r := sound().Check()

	require.Empty(t, r.Violations)
	require.Equal(t, map[string]int{causeKilled: 1}, r.Duplicates)
	require.Equal(t, map[string]int{causeKilled: 2}, r.Again)
	require.Equal(t, 2, r.Delivered)
	require.Equal(t, 1, r.Counted)
	require.Contains(t, r.String(), "delivered again: its worker was killed 1;")
}

func TestEveryBrokenPromiseIsSeen(t *testing.T) {
	for name, tt := range map[string]struct {
		broken func(h *History)
		says   string
	}{
		"lost fact":               {func(h *History) { h.Acknowledged = append(h.Acknowledged, "f9") }, "fact f9 was committed, and is gone"},
		"undone fact":             {func(h *History) { h.RolledBack = []string{"f2"} }, "fact f2 was rolled back, and is there"},
		"no message":              {func(h *History) { h.Facts = append(h.Facts, StoredFact{ID: "f4"}) }, "fact f4 has 0 messages"},
		"two messages of a key":   {func(h *History) { h.Records[1].Key = "k1" }, "fact f1 has 2 messages with its key k1"},
		"message of nothing":      {func(h *History) { h.Records[1].Fact = "f3" }, "message 2 tells of f3, which never was"},
		"rolled back, sent":       {func(h *History) { h.Deliveries[1].Fact = "f3" }, "delivery b-1 tells of f3, which never was"},
		"not ended":               {func(h *History) { h.Records[1].Status = outbox.StatusProcessing }, "message 2 has not ended"},
		"too many attempts":       {func(h *History) { h.Records[0].MaxAttempts = 1 }, "message 1 was tried 2 times, of 1 allowed"},
		"attempts miscounted":     {func(h *History) { h.Records[0].Attempts = 3 }, "message 1 counts 3 attempts, its claims 2"},
		"sent by nobody":          {func(h *History) { h.Records[0].ExternalID = "a-1" }, `message 1 is sent by "a-1"`},
		"claimed beyond the last": {func(h *History) { h.Records[0].MaxAttempts = 1 }, "message 1: b claimed it for attempt 2 of 1"},
		"not as last written":     {func(h *History) { h.Records[1].Status = outbox.StatusDiscarded }, "message 2 is not what its last write made of it"},
		"stolen lease":            {func(h *History) { h.Writes[2].WasUntil = at(6001) }, "1ms before the end of its lease"},
		"zombie write":            {func(h *History) { h.Writes[3].Writer = "a" }, "message 1: a wrote sent, and the claim was that of b"},
		"write with an old token": {func(h *History) { h.Writes[3].WasToken = "t1" },
			"message 1: b wrote sent, and the claim was that of b"},
		"write after the end": {func(h *History) {
			h.Writes = append(h.Writes, claimed(1, "b", "t4", 2, 7000, Write{WasStatus: outbox.StatusSent}))
		}, "message 1 was sent, and b made it processing"},
		"write by a stranger":   {func(h *History) { h.Writes[4].Writer = "psql" }, `message 2 was written by "psql", which is no worker`},
		"uncharged claim":       {func(h *History) { h.Writes[2].Attempts = 1 }, "message 1: b claimed it for b, and attempts went from 1 to 1"},
		"charged outcome":       {func(h *History) { h.Writes[3].Attempts = 3 }, "attempts went from 2 to 3"},
		"another's delivery":    {func(h *History) { h.Writes[3].External = "a-1" }, "message 1: b wrote sent"},
		"unclaimed delivery":    {func(h *History) { h.Deliveries[1].Begun = at(5999) }, "delivery b-1 of message 1, attempt 2, was made under no claim"},
		"attempt made twice":    {func(h *History) { h.Deliveries = append(h.Deliveries, h.Deliveries[1]) }, "attempt 2 at message 1 was made twice"},
		"wrong outcome":         {func(h *History) { h.Deliveries[1].Outcome = Refused }, "message 1: b wrote sent"},
		"claim without a fault": {func(h *History) { h.Lives[0].Killed = time.Time{} }, "message 1: the claim of a for attempt 1 came to nothing"},
		"killed too late":       {func(h *History) { h.Lives[0].Killed = at(5200) }, "message 1 was delivered again after a-1 had delivered it"},
		"two at a time":         {func(h *History) { h.Lives[0].Dead = at(6015) }, "message 1 went into b-1 while it was inside a-1"},
		"twice, not once":       {func(h *History) { h.Records[0].Topic = Once }, "message 1 is to be delivered once at most, and b claimed it after a"},
		"counted too much":      {func(h *History) { h.Lives[1].Report.Rounds.Sent++ }, "b counted 2 sent, and wrote 1"},
		"counted too little":    {func(h *History) { h.Lives[1].Report.Rounds = &outbox.Summary{Claimed: 2, Lost: 1, Failed: 1} }, "b counted 0 sent, and wrote 1"},
		"reported too little":   {func(h *History) { h.Lives[1].Report.Attempts = nil }, "b reported 0 attempts as sent, and wrote 1"},
	} {
		t.Run(name, func(t *testing.T) {
			h := sound()
			tt.broken(h)

			require.Contains(t, joined(h.Check().Violations), tt.says)
		})
	}
}

func joined(texts []string) (all string) {
	for _, text := range texts {
		all += text + "\n"
	}
	return all
}

// What explains one thing must not explain another.
func TestCauses(t *testing.T) {
	for name, tt := range map[string]struct {
		fault func(h *History)
		want  string // empty: nothing explains it
	}{
		"stopped":               {func(h *History) { h.Lives[0].Stopped = []Span{{Worker: "a", From: at(150), To: at(7000)}} }, causeStopped},
		"cut off to the end":    {func(h *History) { h.Outages = []Span{{Worker: "a", From: at(150), To: at(5500)}} }, causeOutage},
		"all cut off":           {func(h *History) { h.Outages = []Span{{From: at(4000), To: at(5500)}} }, causeOutage},
		"cut off and in time":   {func(h *History) { h.Outages = []Span{{Worker: "a", From: at(150), To: at(2000)}} }, ""},
		"another's outage":      {func(h *History) { h.Outages = []Span{{Worker: "b", From: at(150), To: at(5500)}} }, ""},
		"no time to run":        {func(h *History) { h.Stalls = []Span{{Worker: "a", From: at(150), To: at(5500)}} }, causeStarved},
		"stopped when all over": {func(h *History) { h.Lives[0].Stopped = []Span{{Worker: "a", From: at(7000), To: at(8000)}} }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			h := sound()
			h.Lives[0].Killed = time.Time{}
			h.Deliveries[0].Outcome, h.Deliveries[0].Ended = Accepted, at(400)
			tt.fault(h)

			r := h.Check()

			if tt.want == "" {
				require.Contains(t, joined(r.Violations), "message 1: the claim of a for attempt 1 came to nothing")
				require.Contains(t, joined(r.Violations), "message 1 was delivered again")
				return
			}
			require.Empty(t, r.Violations)
			require.Equal(t, map[string]int{tt.want: 1}, r.Duplicates)
		})
	}
}

func TestOverlapsOfTheDeafAndTheStopped(t *testing.T) {
	h := sound()
	h.Deliveries[0].Outcome, h.Deliveries[0].Ended = Accepted, at(6500)
	h.Lives[0].Killed = time.Time{}
	h.Lives[0].Stopped = []Span{{Worker: "a", From: at(300), To: at(6300)}}
	r := h.Check()
	require.Empty(t, r.Violations)
	require.Equal(t, map[string]int{causeStopped: 1}, r.Overlaps)
	require.Equal(t, 1, r.Fenced)

	h = sound()
	h.Deliveries[0].Outcome, h.Deliveries[0].Ended, h.Deliveries[0].Behaviour = Accepted, at(6500), Deaf
	h.Writes[2] = claimed(1, "b", "t3", 1, 6000, Write{WasStatus: outbox.StatusPending})
	h.Writes = append(h.Writes[:2:2], append([]Write{decided(1, "a", "t1", 1, 1500, Write{
		Status: outbox.StatusPending, Category: "timeout", Code: "timeout",
	})}, h.Writes[2:]...)...)
	r = h.Check()
	require.Empty(t, r.Violations)
	require.Equal(t, map[string]int{causeDeaf: 1}, r.Overlaps)
	require.Equal(t, map[string]int{causeDeaf: 1}, r.Duplicates)
	require.Equal(t, map[string]int{"retried: timeout": 1, causeKilled: 1}, r.Again)
}

func TestReleases(t *testing.T) {
	h := sound()
	release := decided(1, "a", "t0", 1, 50, Write{Status: outbox.StatusPending})
	release.Attempts = 0
	h.Writes = append([]Write{claimed(1, "a", "t0", 0, 20, Write{WasStatus: outbox.StatusPending}), release}, h.Writes...)
	r := h.Check()
	require.Empty(t, r.Violations)
	require.Equal(t, map[string]int{"released": 1, causeKilled: 2}, r.Again)

	h.Deliveries[0].Begun = at(30)
	require.Contains(t, joined(h.Check().Violations), "a wrote pending")
}
