package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/gorm-outbox/outbox/tests/bench/internal/contender"
	"github.com/gorm-outbox/outbox/tests/bench/internal/report"
	"github.com/gorm-outbox/outbox/tests/bench/internal/server"
	"github.com/gorm-outbox/outbox/tests/bench/internal/workload"
)

// measure takes all repetitions of a case and prints its table. In each repetition every contender has its turn, and
// each time another one begins, so that nobody always works on what the same other has left behind.
func (o options) measure(ctx context.Context, srv *server.Server, c workload.Case) report.Samples {
	taking := slices.DeleteFunc(slices.Clone(o.contenders), func(d contender.Definition) bool { return !d.In(c.Case) })
	var samples report.Samples
	for run := range o.runs {
		for i := range taking {
			if ctx.Err() != nil {
				break
			}
			began := time.Now()
			sample := c.Measure(ctx, srv, taking[(run+i)%len(taking)], o.sizes, run+1)
			samples = append(samples, sample)
			tell(sample, time.Since(began))
		}
	}
	if len(samples) > 0 {
		fmt.Println(c.Render(samples, report.ByPosition(contenderNames())))
	}
	return samples
}

// tell shows progress on the side, where it does not get between the tables.
func tell(s report.Sample, took time.Duration) {
	text := "ok"
	if s.Problem != "" {
		text = strings.ReplaceAll(s.Problem, "\n", "\n\t")
	}
	fmt.Fprintf(os.Stderr, "%s %s, run %d, %.1f s: %s\n", s.Case, s.Contender, s.Run, took.Seconds(), text)
}
