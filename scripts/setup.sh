#!/bin/sh
# setup.sh: makes sure that this machine has what the tests need besides Go: make, a C compiler (the race detector links
# with it) and the binaries of a PostgreSQL and of a RabbitMQ server. Uses what it finds; installs the rest with the system's packages.
set -eu
cd "$(dirname "$0")/.."

say() { echo "setup: $*"; }
die() {
	echo "setup: $*" >&2
	exit 1
}

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
: >"$tmp/why" # what the last failed look said

has_make() { command -v make >/dev/null; }
has_compiler() { printf '#include <stdlib.h>\nint main(void) { return 0; }\n' | $(go env CC) -x c - -o "$tmp/a.out" 2>"$tmp/why"; }
has_postgres() { pg_bin=$("$tmp/pgbin" 2>"$tmp/why"); }
# The places where the tests look: findRabbitMQ in transports/amqp/broker_test.go.
has_rabbitmq() {
	for rabbitmq in /usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin /usr/lib/rabbitmq/bin /opt/homebrew/sbin /usr/local/sbin; do
		[ ! -x "$rabbitmq/rabbitmq-server" ] || return 0
	done
	rabbitmq=$(command -v rabbitmq-server) || { echo "no rabbitmq-server" >"$tmp/why"; return 1; }
}

# package_of WHAT: the packages that bring it, in the words of this system's package manager.
package_of() {
	case "$manager:$1" in
	apt-get:compiler) echo gcc libc6-dev ;;
	dnf:compiler) echo gcc glibc-devel ;;
	apk:compiler) echo gcc musl-dev ;;
	pacman:compiler) echo gcc ;;
	brew:compiler) die "macOS brings its own C compiler: run xcode-select --install" ;;
	apt-get:postgres | apk:postgres | pacman:postgres) echo postgresql ;;
	dnf:postgres) echo postgresql-server ;;
	brew:postgres) echo postgresql@17 ;;
	apt-get:rabbitmq | dnf:rabbitmq | apk:rabbitmq) echo rabbitmq-server ;;
	*:rabbitmq) echo rabbitmq ;;
	*:make) echo make ;;
	esac
}

# privileged COMMAND...: runs it as root, through sudo where that is needed.
privileged() {
	if [ "$(id -u)" = 0 ]; then
		"$@"
	elif command -v sudo >/dev/null; then
		sudo "$@"
	else
		die "installing $packages needs root, and there is no sudo: run scripts/setup.sh as root"
	fi
}

# install WHAT: installs its packages.
install() {
	manager=
	for m in apt-get dnf apk pacman brew; do
		if command -v "$m" >/dev/null; then
			manager=$m
			break
		fi
	done
	[ -n "$manager" ] || die "cannot install $1: none of apt-get, dnf, apk, pacman, brew is here; install it by hand"
	packages=$(package_of "$1")
	say "$1 is missing: installing $packages with $manager"
	[ "$1" = make ] || [ "$1" = compiler ] || say "should the package start a server of its own: no test uses it"
	# shellcheck disable=SC2086 # several packages are several words
	case $manager in
	apt-get)
		privileged apt-get update -qq
		privileged env DEBIAN_FRONTEND=noninteractive apt-get install -qq -o Dpkg::Use-Pty=0 -y --no-install-recommends $packages
		;;
	dnf) privileged dnf install -y $packages ;;
	apk) privileged apk add $packages ;;
	pacman) privileged pacman -Sy --noconfirm --needed $packages ;;
	brew) brew install $packages ;; # refuses to work as root
	esac || die "$manager could not install $packages: see above"
}

# need WHAT: installs it unless it is there, and looks again.
need() {
	if "has_$1"; then
		return
	fi
	install "$1"
	"has_$1" || die "$1 is still missing after installing it: $(cat "$tmp/why")"
}

command -v go >/dev/null || die "Go is not on PATH: get it from https://go.dev/dl"
need make
need compiler
say "C compiler: $(go env CC)"

# The tests' own search decides which server is found, so that this script cannot disagree with them.
(cd tests && GOWORK=off go build -buildvcs=false -o "$tmp/pgbin" ./internal/pgtest/pgbin)
if [ -n "${OUTBOX_PG_BIN-}" ] && ! has_postgres; then
	die "$(cat "$tmp/why")"
fi
need postgres
need rabbitmq
say "RabbitMQ: in $rabbitmq"
say "PostgreSQL: $("$pg_bin/postgres" --version), in $pg_bin"
