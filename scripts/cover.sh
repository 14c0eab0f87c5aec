#!/bin/sh
# cover.sh: how much of the root module the tests of both the root and the tests module run, taken together. Writes
# coverage.out (see it with `go tool cover -html=coverage.out`) and prints the share of each function.
set -eu
cd "$(dirname "$0")/.."
export GOWORK=off CGO_ENABLED=1

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

packages=$(go list ./... | paste -s -d , -)
go test -count=1 -covermode=atomic -coverpkg="$packages" -coverprofile="$tmp/root.out" ./...
(cd tests && go test -count=1 -timeout "${TIMEOUT:-15m}" -covermode=atomic -coverpkg="$packages" -coverprofile="$tmp/tests.out" ./...)

# Both profiles count the same blocks; go tool cover adds up what it meets twice.
{
	echo "mode: atomic"
	cat "$tmp/root.out" "$tmp/tests.out" | grep -v '^mode:'
} >coverage.out
go tool cover -func=coverage.out
