package workload

import "github.com/gorm-outbox/outbox/tests/bench/internal/report"

// Targets are what this library is to reach, as ratios within one run wherever that is possible. A target whose
// contenders were not measured is left out of the report.
func Targets() []report.Target {
	ref := func(name, contender, key string) report.Ref {
		return report.Ref{Case: name, Contender: contender, Key: key}
	}
	rate := func(name, contender string) report.Ref { return ref(name, contender, Rate) }
	const ours, raw, river = "outbox-1000", "raw-lease", "river-tuned"
	return []report.Target{
		{Name: "A8: tx/s with a message ÷ without", Top: rate("A8", "outbox"), Bottom: rate("A8", "no-outbox-gorm"), Floor: 0.65, Aim: 0.75},
		{Name: "A32: tx/s with a message ÷ without", Top: rate("A32", "outbox"), Bottom: rate("A32", "no-outbox-gorm"), Floor: 0.52, Aim: 0.65},
		{Name: "A8: wake-up on ÷ off", Top: rate("A8", "outbox-wake"), Bottom: rate("A8", "outbox"), Floor: 0.92, Aim: 0.98},
		{Name: "A32: wake-up on ÷ off", Top: rate("A32", "outbox-wake"), Bottom: rate("A32", "outbox"), Floor: 0.92, Aim: 0.98},
		{Name: "B: EnqueueAll ÷ raw-lease", Top: rate("B", "outbox"), Bottom: rate("B", raw), Floor: 0.40, Aim: 0.65},
		{Name: "C1: ÷ raw-lease", Top: rate("C1", ours), Bottom: rate("C1", raw), Floor: 0.70, Aim: 0.95},
		{Name: "C1: ÷ river-tuned", Top: rate("C1", ours), Bottom: rate("C1", river), Floor: 3.3, Aim: 5},
		{Name: "C1 with keys: ÷ raw-lease", Top: rate("C1", "outbox-keys"), Bottom: rate("C1", raw), Floor: 0.50, Aim: 0.65},
		{Name: "C1 with the defaults: ÷ river-tuned", Top: rate("C1", "outbox"), Bottom: rate("C1", river), Floor: 1.5, Aim: 3},
		{Name: "C2: ÷ raw-lease with as many", Top: rate("C2", ours), Bottom: rate("C2", raw), Floor: 0.65, Aim: 0.9},
		{Name: "C4: ÷ raw-lease with as many", Top: rate("C4", ours), Bottom: rate("C4", raw), Floor: 0.65, Aim: 0.9},
		{Name: "D20ms: ÷ the ideal 5,000/s", Top: rate("D20ms", ours), Scale: 1.0 / 5000, Floor: 0.95, Aim: 0.98},
		{Name: "D1ms: ÷ raw-lease", Top: rate("D1ms", ours), Bottom: rate("D1ms", raw), Floor: 0.55, Aim: 0.8},
		{Name: "E, wake-up on: p50 in ms", Top: ref("E", "outbox-wake", P50), AtMost: true, Floor: 2, Aim: 1},
		{Name: "E, wake-up on: p99 in ms", Top: ref("E", "outbox-wake", P99), AtMost: true, Floor: 10, Aim: 4},
		{Name: "E, wake-up on: worst in ms", Top: ref("E", "outbox-wake", Worst), AtMost: true, Floor: 50, Aim: 25},
		{Name: "E, polling every 1 s: p99 in ms", Top: ref("E", "outbox", P99), AtMost: true, Floor: 1050},
		{Name: "F-sent ÷ F-plain", Top: rate("F-sent", ours), Bottom: rate("F-plain", ours), Floor: 0.85, Aim: 0.95},
		{Name: "F-future ÷ F-plain", Top: rate("F-future", ours), Bottom: rate("F-plain", ours), Floor: 0.85, Aim: 0.95},
		{Name: "F-other ÷ F-plain", Top: rate("F-other", ours), Bottom: rate("F-plain", ours), Floor: 0.85, Aim: 0.95},
		{Name: "X: second round ÷ first", Top: ref("X", ours, SecondFirst), Floor: 0.8, Aim: 0.95},
		{Name: "X: last tenth ÷ first", Top: ref("X", ours, LastFirst), Floor: 0.8, Aim: 0.95},
		{Name: "G1: statements/s", Top: ref("G1", "outbox", StatementsS), AtMost: true, Floor: 2, Aim: 1},
		{Name: "G20: statements/s", Top: ref("G20", "outbox", StatementsS), AtMost: true, Floor: 2, Aim: 1},
		{Name: "C1: WAL bytes per message", Top: ref("C1", ours, WAL), AtMost: true, Floor: 700, Aim: 500},
		{Name: "C1: client CPU ÷ raw-lease's", Top: ref("C1", ours, ClientCPU), Bottom: ref("C1", raw, ClientCPU), AtMost: true, Floor: 4, Aim: 2},
		{Name: "C1: sent records deleted ÷ kept", Top: rate("C1", "outbox-delete"), Bottom: rate("C1", ours), Floor: 1.2},
	}
}
