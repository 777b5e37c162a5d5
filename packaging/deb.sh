#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# deb.sh - build the Debian packages of this checkout in $B/deb and run lintian on them;
# called by make.
set -eu
cd "$(dirname "$0")/.."
D=${B:-build}/deb
version=$(sed -n '1s/.*(\(.*\)-.*/\1/p' packaging/debian/changelog)
[ "$version" = "$VERSION" ] ||
	{ echo "packaging/debian/changelog has version $version, the Makefile $VERSION" >&2; exit 1; }
missing=
for program in dpkg-checkbuilddeps dh chrpath lintian; do
	command -v $program >/dev/null || missing+=" $program"
done
[ -n "$missing" ] || missing=$(dpkg-checkbuilddeps packaging/debian/control 2>&1 | sed 's/.*dependencies://')
[ -z "$missing" ] ||
	{ echo "packages that make deb needs are missing:$missing: run \"make deps FOR=deb\", which installs them" >&2; exit 1; }

rm -rf "$D"
mkdir -p "$D/kvfs-$version"
git ls-files -co --exclude-standard | while read -r f; do [ ! -e "$f" ] || echo "$f"; done |
	tar -cT - | tar -xC "$D/kvfs-$version"
tar -C "$D" --sort=name --owner=0 --group=0 -czf "$D/kvfs_$version.orig.tar.gz" "kvfs-$version"
cp -r packaging/debian "$D/kvfs-$version/debian"
# The flags of the calling make are not those of the package's build.
(cd "$D/kvfs-$version" && env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS -u CFLAGS -u LDFLAGS \
	dpkg-buildpackage --no-sign) >"$D/log" 2>&1 || { tail -n 30 "$D/log" >&2; exit 1; }
lintian --allow-root --fail-on error,warning "$D"/*.changes
ls "$D"/*.deb
