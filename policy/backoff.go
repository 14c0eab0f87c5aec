package policy

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// The defaults that a zero field of [Backoff] stands for.
const (
	DefaultBase   = 30 * time.Second
	DefaultMax    = time.Hour
	DefaultFactor = 2.0
	DefaultJitter = 0.2
)

// maxDelay bounds [Backoff.Max]. Far above any sensible wait, it keeps the arithmetic clear of overflow.
const maxDelay = 365 * 24 * time.Hour

// Backoff spaces the attempts of a record: exponential growth, a ceiling, and jitter, so that messages that failed
// together do not come back together. The zero value waits 30 s, 1 min, 2 min … up to 1 h, each ± 20 %.
type Backoff struct {
	Base   time.Duration // wait after the first failure; zero: 30 s
	Max    time.Duration // ceiling before jitter; zero: 1 h
	Factor float64       // growth from one attempt to the next, at least 1; zero: 2
	Jitter float64       // share of the wait by which it may be shorter or longer, at most 1; zero: 0.2
}

// WithDefaults gives b with its zero fields filled in.
func (b Backoff) WithDefaults() Backoff {
	if b.Base == 0 {
		b.Base = DefaultBase
	}
	if b.Max == 0 {
		b.Max = DefaultMax
	}
	if b.Factor == 0 {
		b.Factor = DefaultFactor
	}
	if b.Jitter == 0 {
		b.Jitter = DefaultJitter
	}
	return b
}

// Validate reports everything that makes b unusable, all in one error; nil if it is fine. Zero fields are judged by
// the default they stand for.
func (b Backoff) Validate() error {
	var errs []error
	b = b.WithDefaults()
	if b.Base <= 0 {
		errs = append(errs, fmt.Errorf("backoff base is %v, must be above 0", b.Base))
	}
	if b.Max < b.Base {
		errs = append(errs, fmt.Errorf("backoff max is %v, must be at least the base, %v", b.Max, b.Base))
	}
	if b.Max > maxDelay {
		errs = append(errs, fmt.Errorf("backoff max is %v, must be at most %v", b.Max, maxDelay))
	}
	if !(b.Factor >= 1) || math.IsInf(b.Factor, 0) { // written so that NaN is refused
		errs = append(errs, fmt.Errorf("backoff factor is %v, must be a number of at least 1", b.Factor))
	}
	if !(b.Jitter > 0 && b.Jitter <= 1) {
		errs = append(errs, fmt.Errorf("backoff jitter is %v, must be above 0 and at most 1", b.Jitter))
	}
	return errors.Join(errs...)
}

// Delay is how long to wait after the failure of the given attempt, 0 for the first: min(Max, Base × Factor^attempt),
// made shorter or longer by up to Jitter of itself. random in [0, 1) places it inside that range: 0 is the shortest,
// 0.5 the middle. The result is above zero for every attempt, the largest int included; a negative attempt counts
// as 0. b must have passed [Backoff.Validate].
func (b Backoff) Delay(attempt int, random float64) time.Duration {
	b = b.WithDefaults()
	// In floating point the power reaches +Inf instead of wrapping around, and the ceiling takes care of +Inf.
	wait := math.Min(float64(b.Base)*math.Pow(b.Factor, float64(max(attempt, 0))), float64(b.Max))
	wait *= 1 + b.Jitter*(2*random-1)
	return max(time.Duration(wait), 1)
}
