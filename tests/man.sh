#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# man.sh PAGE... - check the manual: groff and man accept every page silently, links
# included; every function in kvfs.h has a page, or a link to the page that names it;
# attributes have their full names.
root=$(cd "$(dirname "$0")/.." && pwd)
tree=$(mktemp -d) || exit 1
trap 'rm -rf "$tree"' EXIT
for section in 1 3 5 7 8; do ln -s "$root/man" "$tree/man$section"; done
failed=0
fail() {
	echo "$*"
	failed=1
}
cd "$tree" || exit 1
for page in "$@"; do
	page=man${page##*.}/${page##*/}
	said=$( (groff -man -ww -Tutf8 -z "$page"; man --warnings=all -l "$page" >/dev/null) 2>&1)
	[ -z "$said" ] || fail "$page: $said"
done
cd "$root" || exit 1
for name in $(grep -oE '^[a-z].*\bkvfs_[a-z_]+\(' kernels/kvfs.h | grep -oE 'kvfs_[a-z_]+\($' | tr -d '('); do
	page=man/$name.3
	[ -f "$page" ] || { fail "kvfs.h: $name has no page"; continue; }
	! read -r so target <"$page" || [ "$so" != .so ] || page=man/${target#man3/}
	sed -n '/^\.SH NAME/,/^\.SH SYN/p' "$page" | grep -qw "$name" || fail "$page: does not name $name"
	sed -n '/^\.SH SYN/,/^\.SH DESC/p' "$page" | grep -qw "$name" || fail "$page: no synopsis of $name"
done
for page in man/kvfs_*.3; do
	name=${page##*/}
	grep -qE "\b${name%.3}\(" kernels/kvfs.h || fail "$page: no such function in kvfs.h"
done
limits=$(grep -ohE '"(quota|reserve|rate)\.[a-z]+"' fs/mount/*.[ch] fs/base/*.[ch] | sort -u | tr -d '"')
[ -n "$limits" ] || fail "no attributes of limits in fs/mount and fs/base"
for name in $limits; do
	short=$(grep -nF "$name" $(ls man/*.[1-9] | grep -v commands) | sed "s/user\\.kvfs\\.$name//g" | grep -F "$name") &&
		fail "an attribute without user.kvfs.: $short"
done
exit $failed
