#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# fallback.sh - the system refuses io_uring, O_DIRECT, huge pages, locked memory, root
# rights.  kvfs works without them, shows that in .kvfs/config, and blocks are exact.
# Refusals that make kvfs slower are also on standard error and in .kvfs/stats.
. "$(dirname "$0")/lib"
BASE=$ALL,dram=32M,ssd=64M,segment=8M,scrub=0
config() { sed -n "s/^$1=//p" "$M/.kvfs/config"; }
# says WHAT NAME PATTERN: fail unless .kvfs/config has NAME=PATTERN
says() { grep -qE "^$2=$3" "$M/.kvfs/config" || fail "$1: config says '$2=$(config "$2")'"; }
# reports WHAT PATTERN: fail unless the file `why`, standard error of the start, and
# .kvfs/stats report PATTERN
reports() {
	grep -qE "^kvfs: warning: $2" "$T/why" || fail "$1: standard error is '$(cat "$T/why")'"
	[ "$M" = none ] || grep -qE "^fallback  $2" "$M/.kvfs/stats" || fail "$1: stats are '$(cat "$M/.kvfs/stats")'"
}
blocks() { "$H/blocks" "$1" "$SOCK" "${@:2}" || fail "blocks $*"; }
# Save, read from a cold cache and through the mount, and evict from both tiers.
exact() { # exact WHAT COMMAND...: the command starts a daemon on $S
	local what=$1 out
	shift
	out=$(blocks durable 0 64)
	[[ $out == "done 64 "* ]] || fail "$what: $out"
	out=$(blocks durable 1000 600)
	[[ $out == "done 600 "* ]] || fail "$what: $out"
	out=$(blocks check 1500 96)
	[[ $out == "done 96 "* ]] || fail "$what: $out"
	kill_daemon
	"$@" || fail "$what: a second start"
	out=$(blocks check 1500 96)
	[[ $out == "done 96 "* ]] || fail "$what, after a crash: $out"
	out=$(blocks check 1000 600)
	[[ $out == *"refused 0 "* ]] || fail "$what, older ones: $out"
	find "$M/a" -type f ! -name .layout | tail -n 50 | xargs cat > /dev/null || fail "$what: the mount"
	eq "$what: damaged blocks" "$(metric kvfs_corrupt_blocks_total)" 0
	eq "$what: I/O errors" "$(metric kvfs_io_errors_total)" 0
	stop
	rm -rf "$S"
	echo "ok: $what"
}

# io_uring refused, as by Docker, or not in the kernel
no_uring() { "$H/without" "$kind" "$B/kvfs" -o "$BASE,${1-}hugepages=off,control=$SOCK" "$S" "$M"; }
for kind in uring nouring; do
	"$H/without" $kind true || break
	no_uring 2> "$T/why" || fail "$kind: kvfs does not start"
	says "$kind" io '.*thread'
	why='Operation not permitted'
	[ $kind = uring ] || why='Function not implemented'
	reports "$kind" "requests to the SSD by threads \\(io_uring_setup: $why\\)"
	exact "$kind" no_uring
done
no_uring ssd=0, 2> "$T/why" || fail "ssd=0 without io_uring: kvfs does not start"
eq "without an SSD tier nothing is slower" "$(cat "$T/why"; grep fallback "$M/.kvfs/stats")" ""
stop
rm -rf "$S"

# The kernel refuses huge pages.
if "$H/without" hugetlb true; then
	no_hugetlb() { "$H/without" hugetlb "$B/kvfs" -o "$BASE,control=$SOCK" "$S" "$M"; }
	no_hugetlb || fail "hugetlb refused: kvfs does not start"
	says "hugetlb refused" hugepage_segments '0 of '
	exact "hugetlb refused" no_hugetlb
fi

# clean WHAT PATTERN COMMAND...: COMMAND must fail, print PATTERN, and leave no
# files
clean() {
	local what=$1 pattern=$2 rc
	shift 2
	timeout 60 "$@" "$B/kvfs" -o "$BASE,hugepages=off,control=$SOCK" "$S" "$M" > "$T/why" 2>&1
	rc=$?
	[ $rc = 1 ] || fail "$what: status $rc: $(cat "$T/why")"
	grep -qE "$pattern" "$T/why" || fail "$what: it says '$(cat "$T/why")'"
	[ -z "$(daemon_pids)" ] && ! mountpoint -q "$M" || fail "$what: something is left"
	rm -rf "$S"
	echo "ok: $what: $(cat "$T/why")"
}
if "$H/without" memfd true; then
	clean "memfd_create refused" 'dram=.*(not permitted)' "$H/without" memfd
	clean "fallocate refused" 'dram=.*(not supported)' "$H/without" fallocate
fi
clean "files of 1 MiB at most" '(too large|SSD|index|dram)' prlimit --fsize=1048576
clean "16 descriptors" '(Too many open files|descriptors)' prlimit --nofile=16

# 64 descriptors are enough for a few clients.  A limit on the file size that only the SSD
# tier exceeds makes the daemon run without that tier.
few() { prlimit --nofile=64 "$B/kvfs" -o "$BASE,hugepages=off,control=$SOCK" "$S" "$M"; }
few || fail "64 descriptors: kvfs does not start"
exact "64 descriptors" few

# Huge pages are switched off.
no_huge() { start hugepages=off; }
no_huge
says "hugepages=off" hugepage_segments '0 of '
says "hugepages=off" io 'io_uring'
eq "hugepages=off" "$(grep fallback "$M/.kvfs/stats")" ""
exact "hugepages=off" no_huge

# O_DIRECT is refused: ramfs does not support it.
if [ "$(id -u)" = 0 ] && mkdir "$T/ram" && mount -t ramfs ramfs "$T/ram" 2> /dev/null; then
	S=$T/ram/store
	no_direct() { start hugepages=off; }
	no_direct 2> "$T/why"
	reports "O_DIRECT refused" "$S refuses O_DIRECT"
	says "O_DIRECT refused" direct_io 'off'
	exact "O_DIRECT refused" no_direct
	umount "$T/ram" || fail "umount of the ramfs"
	S=$T/store
fi

# A user without special rights, who may lock 64 KiB of memory.  Huge pages are off, because
# this user gets them if a daemon of root has raised nr_overcommit_hugepages.
[ "$(id -u)" = 0 ] || exit 0
command -v setpriv > /dev/null || exit 0
U=$T/user
mkdir "$U" "$U/mnt" && chown -R 65534:65534 "$U" || fail "a directory for the user"
as_user() { setpriv --reuid 65534 --regid 65534 --clear-groups prlimit --memlock=65536 "$@"; }
as_user test -x "$B/kvfs" || { echo "the build is closed to other users: no user's daemon"; exit 0; }
M=$U/mnt S=$U/store SOCK=$U/sock
by_user() { as_user "$B/kvfs" -o "$BASE,hugepages=off,control=$SOCK" "$S" "$M"; }
if ! by_user 2> "$T/why"; then
	grep -qi 'fuse\|mount' "$T/why" || fail "a user's daemon: $(cat "$T/why")"
	echo "a user may not mount here, so without: $(cat "$T/why")"
	M=none
	by_user 2> "$T/why" || fail "a user's daemon without a mount"
fi
[ "$M" = none ] || as_user grep -q '^locked_segments=0 of' "$M/.kvfs/config" ||
	fail "a user's daemon: config says $(as_user grep locked "$M/.kvfs/config")"
grep() { as_user grep "$@"; }
reports "a user's daemon" "dram: 32M cannot be locked \(RLIMIT_MEMLOCK is too low\)"
unset -f grep
for range in "0 64" "1000 600"; do
	out=$(as_user "$H/blocks" durable "$SOCK" $range) || fail "a user's blocks"
	[[ $out == *"refused 0 "* ]] || fail "a user's blocks: $out"
done
kill_daemon
by_user || fail "a user's second start, over the dead mount"
out=$(as_user "$H/blocks" check "$SOCK" 1500 96) || fail "a user's blocks"
[[ $out == "done 96 "* ]] || fail "a user's blocks after a crash: $out"
if [ "$M" = none ]; then
	kill -TERM "$(daemon_pids)"
else
	as_user fusermount3 -u "$M" || fail "fusermount3 -u"
fi
gone
[ ! -e "$SOCK" ] || fail "the socket is left behind"
echo "ok: a user with 64 KiB of locked memory"

# A container: such a user without io_uring, /dev/fuse and /dev/shm, on a read-only root
chmod 711 "$T" && mkdir "$T/none" && M=none
contained() {
	unshare -m sh -c 'mount --bind "$0" "$0" && mount -o remount,bind,ro / && mount --bind "$0/none" /dev/shm && exec "$@"' "$T" \
		setpriv --reuid 65534 --regid 65534 --clear-groups --bounding-set=-all --no-new-privs \
		prlimit --memlock=65536 "$H/without" uring "$@"
}
if contained true 2> "$T/why"; then
	rm -rf "$S"
	contained "$B/kvfs" -o "$BASE,hugepages=off,control=$SOCK" "$S" none 2> "$T/why" || fail "in a container: $(cat "$T/why")"
	reports "in a container" "dram: 32M cannot be locked"
	reports "in a container" "requests to the SSD by threads"
	eq "in a container: lines" "$(wc -l < "$T/why")" 2
	contained test ! -w "$here" || fail "the root is not read-only"
	out=$(contained "$H/blocks" durable "$SOCK" 0 64) || fail "in a container: $out"
	kill -TERM "$(daemon_pids)"
	gone
	echo "ok: a container"
else
	echo "no container can be made: $(cat "$T/why")"
fi
