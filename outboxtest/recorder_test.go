package outboxtest_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/outboxtest"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/stretchr/testify/require"
)

var errTest = errors.New("no")

func send(t *testing.T, rec *outboxtest.Recorder, d outbox.Delivery) (string, error) {
	t.Helper()
	return rec.Send(context.Background(), d)
}

func TestRecorderPlaysItsScript(t *testing.T) {
	rec := outboxtest.NewRecorder(outboxtest.Accept("a"), outboxtest.Fail(errTest)).
		Then(outboxtest.Refuse(policy.CategoryNumber, "131026"), outboxtest.Result{})

	id, err := send(t, rec, outbox.Delivery{})
	require.NoError(t, err)
	require.Equal(t, "a", id)
	_, err = send(t, rec, outbox.Delivery{})
	require.ErrorIs(t, err, errTest)
	_, err = send(t, rec, outbox.Delivery{})
	require.Equal(t, policy.Permanent, policy.Classify(err))
	for n := 4; n <= 6; n++ {
		id, err = send(t, rec, outbox.Delivery{})
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("outboxtest-%d", n), id)
	}
	require.Equal(t, 6, rec.Count())
}

func TestRecorderKeepsResultsForSome(t *testing.T) {
	rec := outboxtest.NewRecorder(outboxtest.Accept("script")).
		For(outboxtest.OfType("bad"), outboxtest.Fail(errTest)).
		For(outboxtest.OfType("bad"), outboxtest.Accept("later"))

	id, _ := send(t, rec, outbox.Delivery{Type: "good"})
	require.Equal(t, "script", id)
	_, err := send(t, rec, outbox.Delivery{Type: "bad"})
	require.ErrorIs(t, err, errTest)
	id, _ = send(t, rec, outbox.Delivery{Type: "bad"})
	require.Equal(t, "later", id)
	id, _ = send(t, rec, outbox.Delivery{Type: "bad"})
	require.Equal(t, "outboxtest-4", id)
}

func TestRecorderKeepsCopies(t *testing.T) {
	rec := &outboxtest.Recorder{}
	d := outbox.Delivery{Payload: []byte(`{}`), Headers: map[string]string{"lang": "es"}}
	_, err := send(t, rec, d)
	require.NoError(t, err)
	d.Payload[0], d.Headers["lang"] = '!', "spoilt"
	require.Equal(t, outbox.Delivery{Payload: []byte(`{}`), Headers: map[string]string{"lang": "es"}}, rec.Deliveries()[0])
}

func TestRecorderResults(t *testing.T) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	rec := outboxtest.NewRecorder(outboxtest.Hang(), outboxtest.Panic("x"), outboxtest.Exit())

	_, err := rec.Send(ended, outbox.Delivery{})
	require.ErrorIs(t, err, context.Canceled)
	require.PanicsWithValue(t, "x", func() { _, _ = send(t, rec, outbox.Delivery{}) })
	returned := true
	inOtherGoroutine(func() {
		returned = false
		_, _ = rec.Send(ended, outbox.Delivery{})
		returned = true
	})
	require.False(t, returned, "Exit ends the goroutine")
	require.Equal(t, 1, rec.Concurrent(), "whatever they do, deliveries end")
}

func inOtherGoroutine(f func()) {
	var wait sync.WaitGroup
	wait.Add(1)
	go func() {
		defer wait.Done()
		f()
	}()
	wait.Wait()
}

func TestRecorderCountsWhatIsInsideTogether(t *testing.T) {
	until := make(chan struct{})
	rec := outboxtest.NewRecorder(outboxtest.Deaf(until), outboxtest.Deaf(until), outboxtest.Deaf(until))
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	var wait sync.WaitGroup
	for _, id := range []string{"a", "b", "a"} {
		wait.Add(1)
		go func() {
			defer wait.Done()
			_, err := rec.Send(ended, outbox.Delivery{MessageID: id})
			if err != nil {
				t.Error("Deaf must ignore its context:", err)
			}
		}()
	}
	require.Len(t, rec.WaitFor(t, 3), 3)
	require.Equal(t, 2, rec.Concurrent())
	close(until)
	wait.Wait()
	_, err := send(t, rec, outbox.Delivery{MessageID: "a"})
	require.NoError(t, err)
	require.Equal(t, 2, rec.Concurrent())
}

func TestRecorderWaitsFor(t *testing.T) {
	rec := outboxtest.NewRecorder()
	require.Empty(t, rec.WaitFor(t, 0))
	arrived := make(chan []outbox.Delivery)
	for i := 0; i < 2; i++ {
		go func() { arrived <- rec.WaitFor(t, 3) }()
	}
	for i := 0; i < 3; i++ {
		_, _ = send(t, rec, outbox.Delivery{})
	}
	for i := 0; i < 2; i++ {
		select {
		case deliveries := <-arrived:
			require.Len(t, deliveries, 3)
		case <-time.After(10 * time.Second):
			require.FailNow(t, "WaitFor does not wake up")
		}
	}
}

// fakeTB is a test that may fail.
type fakeTB struct{ text string }

func (*fakeTB) Helper() {}

func (f *fakeTB) Errorf(format string, args ...any) { f.text += fmt.Sprintf(format, args...) + "\n" }

func (*fakeTB) FailNow() { runtime.Goexit() }

// failure is the text with which check fails; empty if it does not.
func failure(check func(t outboxtest.TB)) string {
	t := &fakeTB{}
	inOtherGoroutine(func() { check(t) })
	return t.text
}
