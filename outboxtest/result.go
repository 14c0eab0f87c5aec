package outboxtest

import (
	"context"
	"runtime"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
)

// Result is what a [Recorder] does with one delivery. The zero Result accepts it with a made-up id.
type Result struct {
	play func(ctx context.Context, d outbox.Delivery) (externalID string, err error)
}

// Do answers as f does.
func Do(f func(ctx context.Context, d outbox.Delivery) (externalID string, err error)) Result {
	return Result{f}
}

// Accept takes the message under the provider's id.
func Accept(externalID string) Result {
	return Do(func(context.Context, outbox.Delivery) (string, error) { return externalID, nil })
}

// Fail answers with err: a [policy.Failure], or any other error, which is transient.
func Fail(err error) Result {
	return Do(func(context.Context, outbox.Delivery) (string, error) { return "", err })
}

// Refuse answers with a permanent failure, whatever class the category has.
func Refuse(category policy.Category, code string) Result {
	return Fail(&policy.Failure{Category: category, Code: code, Class: policy.Permanent})
}

// Panic panics with v.
func Panic(v any) Result {
	return Do(func(context.Context, outbox.Delivery) (string, error) { panic(v) })
}

// Exit ends the goroutine that the transport runs in, as t.FailNow does.
func Exit() Result {
	return Do(func(context.Context, outbox.Delivery) (string, error) {
		runtime.Goexit()
		return "", nil
	})
}

// Hang waits until the attempt's context ends, and gives its error.
func Hang() Result {
	return Do(func(ctx context.Context, _ outbox.Delivery) (string, error) {
		<-ctx.Done()
		return "", ctx.Err()
	})
}

// Deaf ignores the attempt's context: it waits until the channel is closed, and then accepts.
func Deaf(until <-chan struct{}) Result {
	return Do(func(context.Context, outbox.Delivery) (string, error) {
		<-until
		return "", nil
	})
}
