#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# readme.sh - run the commands of README.md (its blocks marked sh) and the first two
# examples of kvfs(1) as typed, as root in this checkout.  Their files go to an overlay
# above the machine's root, which is removed at the end.  apt-get is left out if
# everything is installed.
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
# These examples need packages that the tests do not install; languages.sh, python.sh and
# bare.sh run them.
sed -Ei '/^(python|bindgen|rustc|c\+\+|\.\/prompt)/d' "$T/typed"

# The daemon of one example ends before the next example begins.
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
# The examples expect that their directories do not exist; this removes the directories in
# the overlay.
rm -rf "$T/root/tmp/store" "$T/root/var/lib/kvfs"
exec chroot "$T/root" sh -ec "cd '$root'; . '$T/typed'"
END
# The shell is the first process of a PID namespace, so its children end with it.
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
