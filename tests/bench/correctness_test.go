package main

import (
	"context"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox/tests/bench/internal/contender"
	"github.com/gorm-outbox/outbox/tests/bench/internal/report"
	"github.com/gorm-outbox/outbox/tests/bench/internal/trial"
	"github.com/stretchr/testify/require"
)

const few = 50

// filled is a session of a limit, whose table is easy to spoil, with a few messages.
func filled(t *testing.T) *trial.Session {
	t.Helper()
	d, ok := contender.Find("raw-lease")
	require.True(t, ok)
	s, err := trial.Start(context.Background(), open(t), d)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	_, err = s.Run(context.Background(), trial.Task{Role: trial.Prepare, Setup: true, To: few})
	require.NoError(t, err)
	require.NoError(t, s.CheckStored(context.Background(), few, 0))
	require.NoError(t, s.OpenLedger(few))
	return s
}

func drain(t *testing.T, s *trial.Session) {
	t.Helper()
	_, err := s.Run(context.Background(), trial.Task{Role: trial.Drain, Until: few, Limit: time.Second})
	require.NoError(t, err)
}

func spoil(t *testing.T, s *trial.Session, statement string) {
	t.Helper()
	require.NoError(t, s.Exec(context.Background(), statement))
}

func TestRepeatedMessageIsFound(t *testing.T) {
	s := filled(t)
	spoil(t, s, "INSERT INTO raw_messages (payload) SELECT payload FROM raw_messages WHERE id = 1")
	require.ErrorContains(t, s.CheckStored(context.Background(), few, 0), "51 are stored, 50 of them different")
	drain(t, s)
	require.ErrorContains(t, s.Ledger.Check(true), "1 deliveries repeated a message, such as number 0")
}

func TestLostMessageIsFound(t *testing.T) {
	s := filled(t)
	spoil(t, s, "DELETE FROM raw_messages WHERE id = 1")
	require.ErrorContains(t, s.CheckStored(context.Background(), few, 0), "49 are stored")
	drain(t, s)
	require.ErrorContains(t, s.Ledger.Check(true), "1 of 50 messages were not delivered, such as number 0")
}

func TestUnrecordedMessageIsFound(t *testing.T) {
	s := filled(t)
	drain(t, s)
	require.NoError(t, s.Ledger.Check(true))
	require.NoError(t, s.CheckRecorded(context.Background()))
	spoil(t, s, "UPDATE raw_messages SET attempts = 2 WHERE id = 1")
	require.ErrorContains(t, s.CheckRecorded(context.Background()), "1 messages were handled and are not recorded so")
}

func TestMissingOrderIsFound(t *testing.T) {
	s := filled(t)
	require.ErrorContains(t, s.CheckStored(context.Background(), few, few), "the app wrote 50 rows and has 0")
}

// TestChildThatFails must not be taken for a slow one.
func TestChildThatFails(t *testing.T) {
	s := filled(t)
	_, err := s.Run(context.Background(), trial.Task{Role: trial.Prepare, Setup: true})
	require.ErrorContains(t, err, `prepare of raw-lease: ERROR: relation "orders" already exists`)
}

func TestProblemsFailTheRun(t *testing.T) {
	require.NoError(t, report.Samples{{Case: "C1"}}.Problems())
	require.ErrorContains(t, report.Samples{{Case: "C1", Contender: "outbox", Run: 2, Problem: "lost"}}.Problems(), "C1 outbox, run 2: lost")
}
