#!/bin/sh
# each.sh [-x DIR]... COMMAND...: runs the command in every module of the repository, each on its own (GOWORK=off, as
# users build them). It goes on after a failure and fails in the end. -x leaves a module out, and says so.
set -u
cd "$(dirname "$0")/.." || exit 1

left_out=
while [ "${1-}" = -x ]; do
	left_out="$left_out $2"
	shift 2
done

failed=
for dir in $(find . -name go.mod -not -path '*/.*/*' -not -path '*/testdata/*' | sed 's|/go.mod$||; s|^\./||' | sort); do
	case "$left_out " in *" $dir "*)
		echo "== $dir: left out of: $*"
		continue
		;;
	esac
	echo "== $dir: $*"
	(cd "$dir" && GOWORK=off "$@") || failed="$failed $dir"
done

if [ -n "$failed" ]; then
	echo "failed in$failed: $*" >&2
	exit 1
fi
