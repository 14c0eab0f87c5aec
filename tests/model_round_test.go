package tests

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// job is a round of a processor, as another process has it.
type job struct {
	worker worker
	config outbox.ProcessorConfig
	topics []string
	limit  int // of one claim
	script *script
	claims []delivered    // what the oracle says that it takes, in its order
	want   outbox.Summary // what the oracle says of it, so far
}

// delivered is a delivery as the oracle expects it.
type delivered struct {
	ID                                          int64
	Tenant, Topic, Type, MessageID, ProviderKey string
	Attempt, MaxAttempts                        int
	UnknownBefore                               bool
}

// newJob draws the terms of a round.
func (m *machine) newJob(t *rapid.T, w worker, topics ...[]string) *job {
	m.names++
	j := &job{worker: w, script: newScript(), topics: rapid.SampledFrom(topics).Draw(t, "topics")}
	batch := rapid.SampledFrom([]int{100, 1, 2, 3}).Draw(t, "batch")
	concurrency := rapid.SampledFrom([]int{8, 1, 2}).Draw(t, "concurrency")
	if len(j.topics) > 1 { // their shares are another test's business: here each has room enough
		batch, concurrency = 100, 100
	}
	j.config = outbox.ProcessorConfig{
		Transports: map[string]outbox.Transport{}, AtMostOnce: map[string]bool{},
		BatchSize: batch, Concurrency: concurrency, Lease: modelLease, Timeout: modelLease / 3, Owner: fmt.Sprint("worker-", m.names),
		Backoff: policy.Backoff{Base: modelBackoff, Max: modelMost, Factor: 2, Jitter: 1e-12},
	}
	j.limit = batch
	for _, topic := range j.topics {
		j.config.Transports[topic] = j.script
		if topic == onceTopic {
			j.config.AtMostOnce[topic] = true
			j.limit = min(batch, concurrency) // nothing is claimed ahead of the transports
		}
	}
	return j
}

// take has the oracle claim.
func (m *machine) take(j *job) {
	for _, topic := range j.topics {
		for _, r := range m.oracle.claim(topic, j.config.Owner, j.limit/len(j.topics), &j.want) {
			j.claims = append(j.claims, delivered{
				ID: r.receipt.ID, Tenant: r.tenant, Topic: r.topic, Type: r.kind, MessageID: r.receipt.MessageID,
				ProviderKey: providerKeyOf(r), Attempt: r.attempts, MaxAttempts: r.most, UnknownBefore: r.unknownSince != never,
			})
		}
	}
}

// processor is what runs the round.
func (m *machine) processor(t *rapid.T, j *job) *outbox.Processor {
	db := j.worker.keeps
	if m.oracle.deleteSent {
		db = j.worker.deletes
	}
	p, err := outbox.NewProcessor(db, j.config)
	require.NoError(t, err)
	return p
}

// draw has the transports answer something, each claim for itself.
func (m *machine) draw(t *rapid.T, claims []delivered, dying bool) (all map[int64]answer, forget map[int64]bool) {
	all, forget = map[int64]answer{}, map[int64]bool{}
	for _, c := range claims {
		a := rapid.SampledFrom(answers).Draw(t, fmt.Sprint("answer to ", c.ID))
		if a.died && !dying {
			a = answers[0]
		}
		all[c.ID] = a
		if a.died {
			forget[c.ID] = true
		}
		m.note("answered: "+a.name, 1)
	}
	return all, forget
}

// settle has the oracle judge the answers to a job.
func (m *machine) settle(j *job, claims []delivered, all map[int64]answer) {
	for _, c := range claims {
		a := all[c.ID]
		m.oracle.settle(c.ID, j.config.Owner, a, &j.want)
		if a.died {
			j.want.LastError = forgetful
		}
	}
}

// requireEnd compares what a round did, and what it said of it.
func (m *machine) requireEnd(t *rapid.T, j *job, got outbox.Summary, attempted []delivered) {
	require.Equal(t, j.want, got)
	seen := []delivered{}
	for _, d := range j.script.deliveries() {
		seen = append(seen, delivered{
			ID: d.ID, Tenant: d.TenantID, Topic: d.Topic, Type: d.Type, MessageID: d.MessageID, ProviderKey: d.ProviderKey,
			Attempt: d.Attempt, MaxAttempts: d.MaxAttempts, UnknownBefore: !d.UnknownSince.IsZero(),
		})
	}
	byID := func(a, b delivered) int { return cmp.Compare(a.ID, b.ID) }
	slices.SortFunc(seen, byID)
	want := append([]delivered{}, attempted...)
	slices.SortFunc(want, byID)
	require.Equal(t, want, seen)
	m.note("deliveries", len(seen))
	m.note("lost to another claim", got.Lost)
	m.note("released", got.Released)
	m.note("never recorded", got.Errors)
}

// round is a round that nothing interferes with, but that some of its outcomes may be forgotten.
func (m *machine) round(t *rapid.T) {
	j := m.newJob(t, m.g.workers[0], []string{"email"}, []string{onceTopic}, []string{"email", onceTopic})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if rapid.IntRange(0, 9).Draw(t, "too late") == 9 {
		cancel() // before it began: it claims nothing
	} else {
		m.take(j)
	}
	all, forget := m.draw(t, j.claims, true)
	j.worker.pool.set(noFault, forget)
	j.script.tell(all)
	got := counts(m.processor(t, j).ProcessOnce(ctx))
	m.settle(j, j.claims, all)
	m.requireEnd(t, j, got, j.claims)
}

// faultyRound is a round whose database fails once.
func (m *machine) faultyRound(t *rapid.T) {
	j := m.newJob(t, m.g.workers[0], []string{"email"}, []string{onceTopic})
	fault := rapid.SampledFrom([]string{claimRefused, claimLost, writeRefused, writeLost}).Draw(t, "fault")
	m.note(fault, 1)
	switch fault {
	case claimRefused:
		j.want = outbox.Summary{Errors: 1, LastError: string(passing)}
	case claimLost: // the leases are there, and nobody knows of them
		due := m.oracle.due(j.topics[0])
		m.oracle.claimBatch(due[:min(len(due), j.limit)], j.config.Owner, new(outbox.Summary))
		j.want = outbox.Summary{Errors: 1, LastError: lostAnswer}
	default:
		m.take(j)
	}
	all, _ := m.draw(t, j.claims, false)
	j.worker.pool.set(fault, nil)
	j.script.tell(all)
	got := counts(m.processor(t, j).ProcessOnce(context.Background()))
	m.settle(j, j.claims, all)
	if len(j.claims) > 0 {
		j.want.LastError = map[string]string{writeRefused: string(passing), writeLost: lostAnswer}[fault]
	}
	m.requireEnd(t, j, got, j.claims)
}

// heldJob is a round whose transports do not answer yet: a worker that stalls, and may find that others have gone on.
type heldJob struct {
	*job
	cancel  context.CancelFunc
	summary chan outbox.Summary
}

// hold starts a round and has its transports stand still.
func (m *machine) hold(t *rapid.T) {
	slot := slices.Index(m.held[:], nil)
	if slot < 0 {
		t.Skip("all are held")
	}
	j := m.newJob(t, m.g.workers[1+slot], []string{"email"}, []string{onceTopic})
	m.take(j)
	ctx, cancel := context.WithCancel(context.Background())
	h := &heldJob{job: j, cancel: cancel, summary: make(chan outbox.Summary, 1)}
	m.held[slot] = h
	h.worker.pool.set(noFault, nil)
	p := m.processor(t, j)
	go func() { h.summary <- counts(p.ProcessOnce(ctx)) }()
	for range j.inside() {
		next(t, "a delivery", j.script.entered)
	}
	if len(j.claims) == 0 { // there was nothing to hold
		m.end(t, slot, j.claims)
	}
	m.note("held", 1)
}

// inside is how many claims are with a transport at once.
func (j *job) inside() int { return min(j.config.Concurrency, len(j.claims)) }

// letGo has the transports of a held round answer. If its processor is to stop, what has not begun is released.
func (m *machine) letGo(t *rapid.T) {
	slot := rapid.IntRange(0, heldAtOnce-1).Draw(t, "which")
	h := m.held[slot]
	if h == nil {
		t.Skip("it is not held")
	}
	attempted := h.claims
	if rapid.Bool().Draw(t, "stop") {
		h.cancel()
		attempted = h.claims[:h.inside()]
	}
	// After a refusal, what was written before is told from another claim's writing by the record, which says nothing
	// where it has been deleted.
	all, forget := m.draw(t, attempted, !m.oracle.deleteSent)
	h.worker.pool.set(noFault, forget)
	h.script.tell(all)
	m.settle(h.job, attempted, all)
	for _, c := range h.claims[len(attempted):] {
		m.oracle.release(c.ID, h.config.Owner, &h.want)
	}
	m.end(t, slot, attempted)
}

// end waits for the end of a held round.
func (m *machine) end(t *rapid.T, slot int, attempted []delivered) {
	h := m.held[slot]
	got := next(t, "the end of a round", h.summary)
	h.cancel()
	m.held[slot] = nil
	m.requireEnd(t, h.job, got, attempted)
}

// abandon ends a held round, whatever comes of it.
func (h *heldJob) abandon() {
	h.cancel()
	h.script.open()
	<-h.summary
}

// next gives the next value of a channel.
func next[T any](t require.TestingT, what string, values <-chan T) (v T) {
	deadline := time.NewTimer(workerPatience)
	defer deadline.Stop()
	select {
	case v = <-values:
	case <-deadline.C:
		require.FailNow(t, "waited in vain: "+what)
	}
	return v
}
