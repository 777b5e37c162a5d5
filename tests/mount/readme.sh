#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# readme.sh - README.md's commands (its blocks marked sh) and kvfs(1)'s first two
# examples run as typed, one after the other, by root in this checkout.  What they
# write lies over the machine's root in a layer of its own, which goes with them.
# apt-get is left out where everything is installed.
. "$(dirname "$0")/lib"
. "$here/typed"
root=$(realpath "$here/../..")
skip() {
	echo "$*"
	exit 77
}
[ "$(id -u)" = 0 ] || skip "not root"
[ "$B" = "$root/build" ] || skip "not the build that README makes"
mkdir "$T/root" "$T/up" "$T/work" "$T/up.top" "$T/work.top"
typed_readme "$root/README.md" >"$T/typed"
[ -s "$T/typed" ] || fail "README.md has no commands"
if command -v git make >/dev/null; then
	sed -i '/^apt-get /d' "$T/typed"
fi
# These need packages that the tests do not install: languages.sh, python.sh and bare.sh run them.
sed -Ei '/^(python|bindgen|rustc|c\+\+|\.\/prompt)/d' "$T/typed"

# The daemon of one is gone before the next begins.
gone='while pgrep -x kvfs >/dev/null; do sleep 0.1; done'
{
	echo "$gone"
	for n in 1 2; do
		typed_page "$root/man/kvfs.1" $n
		echo "$gone"
	done
} >>"$T/typed"

cat >"$T/inside" <<'END'
set -e
overlay() { mount -t overlay overlay -o "lowerdir=$1,upperdir=$T/$2,workdir=$T/$3" "$T/root$1"; }
overlay / up work || exit 77
top=$(findmnt -nT "$root" -o TARGET)
[ "$top" = / ] || overlay "$top" up.top work.top
mount --rbind /dev "$T/root/dev"
mount --rbind /sys "$T/root/sys"
mount -t proc proc "$T/root/proc"
mount -t tmpfs tmpfs "$T/root/run"
# The examples expect none of their directories to be there; this removes the layer's.
rm -rf "$T/root/tmp/store" "$T/root/var/lib/kvfs"
exec chroot "$T/root" sh -ec "cd '$root'; . '$T/typed'"
END
# All that it started ends with it: it is the first process of a space of its own.
T=$T root=$root MAKEFLAGS='' timeout 300 unshare --mount --pid --fork --kill-child bash "$T/inside" >"$T/out" 2>&1
rc=$?
[ $rc != 77 ] || skip "no overlay filesystem here"
cat "$T/out"
[ $rc = 0 ] || fail "a command fails: $rc"
key=$(seq 16 | sha256sum | cut -c 1-64)
grep -q " $key\$" "$T/out" || fail "ls does not show the block"
digest=$(sed -n 's/^user.kvfs.digest="\(.*\)"/\1/p' "$T/out")
[ "$(grep -c '^user.kvfs.digest=' "$T/out")" = 2 ] || fail "not both digests are shown"
digest=${digest%%$'\n'*}
grep -q "^$digest  stdin\$" "$T/out" || fail "the digest is not that of the bytes"
