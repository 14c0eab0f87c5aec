#!/bin/sh
# lint.sh: the checks that need no database, for every module. All of them run, and it fails when any of them does.
set -u
cd "$(dirname "$0")/.." || exit 1

staticcheck=honnef.co/go/tools/cmd/staticcheck@v0.8.2 # needs Go 1.26: lint runs with the newest Go

status=0
check() { "$@" || status=1; }

no_unformatted_files() {
	echo "== gofmt -s"
	unformatted=$(gofmt -s -l .) || return 1
	[ -z "$unformatted" ] || { printf 'not formatted (gofmt -s -w .):\n%s\n' "$unformatted" >&2; return 1; }
}

check no_unformatted_files
check scripts/each.sh go vet ./...
check scripts/each.sh go run "$staticcheck" ./...
check scripts/each.sh go mod tidy -diff
check scripts/vuln.sh
echo "== shape: lengths, comments, sleeping tests, import arrows"
(cd tests && GOWORK=off go test -count=1 ./internal/shape) || status=1
exit $status
