#!/bin/sh
# soak.sh: the chaos test for longer, round after round with a new seed each, until a round fails or the time is over.
#
#   CHAOS_FOR=30m        for how long (10m)
#   CHAOS_ROUNDS=5       at least so many rounds (1)
#   CHAOS_MESSAGES=10000 in each round, 125 a second (5000)
#   CHAOS_SEED=1         of the first round (random); a failing run prints its own
#   CHAOS_CLOCKS=0       leaves the workers' clocks right
#
# Here the workers' clocks are wrong, by up to ten minutes both ways. Go reads the clock without the C library, so the
# usual tools cannot fake it: the test is built with a time.Now that adds what OUTBOX_TEST_CLOCK says.
set -eu
cd "$(dirname "$0")/../tests"

: "${CHAOS_FOR=10m}" "${CHAOS_MESSAGES=5000}" "${CHAOS_CLOCKS=1}"
export CHAOS_FOR CHAOS_MESSAGES CHAOS_CLOCKS GOWORK=off CGO_ENABLED=1

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
overlay=
if [ "$CHAOS_CLOCKS" = 1 ]; then
	std=$(go env GOROOT)/src/time
	cat >"$work/clock.go" <<-'GO'
		package time

		import "syscall"

		var testClock = func() int64 {
			text, _ := syscall.Getenv("OUTBOX_TEST_CLOCK")
			by, _ := ParseDuration(text)
			return int64(by / Second)
		}()
	GO
	sed '/^func Now() Time {/,/^}/ s/sec, nsec, mono := runtimeNow()/&; sec += testClock/' "$std/time.go" >"$work/time.go"
	printf '{"Replace": {"%s/time.go": "%s/time.go", "%s/outbox_test_clock.go": "%s/clock.go"}}\n' \
		"$std" "$work" "$std" "$work" >"$work/overlay.json"
	overlay="-overlay=$work/overlay.json"
fi
go test -race $overlay -count=1 -run '^TestChaos$' -v -timeout 0 .
