#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# deb.sh - run the autopkgtest of the Debian packages on a bare Debian 12.  Exits 77 as
# bare.sh does.
set -u
cd "$(dirname "$0")/.." || exit 1
. tests/debian
D=${B:-build}/deb
[ -n "$(echo "$D"/kvfs_*.deb)" ] || fail "there are no packages: run \"make deb\""
[ -w /dev/fuse ] || skip "no /dev/fuse"
T=$(mktemp -d "${TMPDIR:-/tmp}/kvfs-deb.XXXXXX") || exit 1
trap 'rm -rf --one-file-system "$T"' EXIT
trap 'exit 1' INT TERM
# apt drops its rights to a user of its own, which must reach the files below $T.
chmod 755 "$T"
R=$T/root
debian bookworm "$R" --include=autopkgtest,dpkg-dev || fail "mmdebstrap"
cp "$D"/*.deb "$D"/*.dsc "$D"/*.tar.* "$R/srv"
inside "$R" 1200 bash -exc 'cd /srv; apt-get update; autopkgtest --no-built-binaries *.deb *.dsc -- null' >"$T/out" 2>&1 ||
	fail "the autopkgtest fails"
grep '^quick-start *PASS' "$T/out" || fail "the autopkgtest did not run"
