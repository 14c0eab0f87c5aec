#!/bin/sh
# matrix.sh [-a] [MAJOR]...: the tests that meet the planner, the catalog or the dialect, on PostgreSQL of each of these
# major versions, or of all that are supported. -a runs all of the integration tests instead. The servers come from
# scripts/postgres-binaries.sh. It goes on after a failure and fails in the end.
set -u
cd "$(dirname "$0")/.." || exit 1

# The contract; the whole life under every protocol; claims and their plans; schema and migrations; isolation levels.
tests='TestContract|TestC07|TestC10_TheClaimRule|TestC20|TestC30|TestPlans|TestSchema|TestIsolation|TestWorkersUnder|TestWakeUp'
tests="$tests|TestClaims|TestAClaimNeeds|TestAClaimUnder|TestTheStatements|TestSecurity_Roles"
skip='/sqlite|/postgres_otherwise' # the engine that has no versions, and the contract once more
if [ "${1-}" = -a ]; then
	tests=. skip='/sqlite|TestC33_ARestoredDump' # which needs client programs of the server's version
	shift
fi
[ $# -gt 0 ] || set -- 13 14 15 16 17 18

program=$(mktemp -d)
trap 'rm -rf "$program"' EXIT
(cd tests && GOWORK=off go test -c -o "$program/integration" .) || exit 1

failed=
for major; do
	bin=$(scripts/postgres-binaries.sh "$major") || { failed="$failed $major"; continue; }
	echo "== PostgreSQL $major: $("$bin/postgres" --version)"
	(cd tests && OUTBOX_PG_BIN=$bin "$program/integration" -test.run "^($tests)" -test.skip "$skip" -test.timeout "${TIMEOUT:-15m}") || failed="$failed $major"
done

[ -z "$failed" ] || { echo "failed on PostgreSQL$failed" >&2; exit 1; }
