#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# userns.sh - engines in user namespaces, where root of the machine is a user
# without a number: whom they connect to, and whom they do not take for a
# daemon; and a daemon in one, which lets in only whom it can tell from others.
. "$(dirname "$0")/lib"
needs_root setpriv
as() { local id=$1; shift; setpriv --reuid "$id" --regid "$id" --clear-groups "$@"; }
if ! as 1000 unshare -Ur true 2> /dev/null; then
	echo "needs user namespaces for everybody"
	exit 77
fi
# Directories that nobody else can write to: /tmp is none.
D=$(mktemp -d /run/kvfs-test.XXXXXX)
trap 'rm -rf "$D"; cleanup' EXIT
chmod 755 "$D" && mkdir "$D/bin" && cp "$B/tests/mount/ask" "$B/tests/crash/blocks" "$B/kvfs" "$D/bin" || fail "cp"
chmod -R go+rX "$D/bin" && ask=$D/bin/ask
block "$T/b" && chmod 644 "$T/b"
gone() { # the socket $1 or, without one, a lib's daemon
	for ((i = 0; i < 600; i++)); do
		[ -z "$(daemon_pids)$(pgrep -f -- "^[^ ]*kvfs .*$D/")" ] && return
		sleep 0.1
	done
	fail "a daemon does not end"
}

SOCK=$D/sock
start
ok "a namespaced engine makes a space" as 1000 unshare -Ur "$ask" "$SOCK" made make
eq "which belongs to its user" "$(stat -c %u "$M/made")" 1000
ok "its user makes another" as 1000 mkdir "$M/inside"
ok "it puts a block" as 1000 mkdir "$M/inside/01"
ok "it puts a block" as 1000 cp "$T/b" "$M/inside/$(place 1)"
ok "another makes one for itself" as 1001 mkdir -m 700 "$M/private"
for how in -U -Ur; do
	eq "unshare $how: by the socket" "$(as 1000 unshare $how "$ask" "$SOCK" inside acquire "$(key 1)")" 1
	eq "unshare $how: by the mount" "$(as 1000 unshare $how "$ask" "$M" inside acquire "$(key 1)")" 1
	# Root of a namespace is its user outside, and no operator.
	not "unshare $how: another user's" "Permission denied" as 1000 unshare $how "$ask" "$SOCK" private probe
done
ok "saves, leases and reads in a namespace" as 1000 unshare -Ur "$D/bin/blocks" durable "$SOCK" 0 24
as 1000 unshare -Ur "$D/bin/blocks" check "$SOCK" 0 24 | grep -q '\b24\b' || fail "what was saved in a namespace"

# A link that others can turn round leads nowhere else than what is looked at.
ln -s "$SOCK" "$T/link"
eq "a link in /tmp to a guarded place" "$(as 1000 unshare -Ur "$ask" "$T/link" inside probe "$(key 1)")" 1
# Where others can put a socket, it may be theirs.
E="not connected"
refused() {
	not "$1" "$E" as 1000 unshare -Ur "$ask" "$SOCK" made make
	not "$1, without a number" "$E" as 1000 unshare -U "$ask" "$SOCK" made make
}
for mode in 777 1777 775; do
	chmod $mode "$D"
	refused "a directory of mode $mode"
done
chmod 755 "$D"
chown 1000 "$SOCK"
not "a socket of another than the daemon's user" "$E" as 1000 unshare -Ur "$ask" "$SOCK" made make
chown 0 "$SOCK"
eq "as it was" "$(as 1000 unshare -Ur "$ask" "$SOCK" inside probe "$(key 1)")" 1
stop

# Another user's daemon is no more trusted than outside.
impostor() {
	SOCK=$1
	as 1001 "$D/bin/kvfs" -o "dram=16M,ssd=0,segment=8M,hugepages=off,control=$SOCK" "$T/other/s" none || fail "the other's daemon"
	chmod 777 "$SOCK"
	not "outside" "$E" as 1000 "$ask" "$SOCK" made make
	refused "$2"
	ok "its own user, from a namespace" as 1001 unshare -Ur "$ask" "$SOCK" made make
	kill "$(pgrep -f -- "^[^ ]*kvfs .*$SOCK")"
	gone
}
mkdir -m 755 "$T/other" && chown 1001 "$T/other"
impostor "$T/other/sock" "another's daemon in /tmp"
mkdir -m 1777 "$D/shared"
impostor "$D/shared/sock" "another's daemon in a directory for all"

# A daemon in a namespace takes nobody whom it cannot tell from others.
SOCK=$D/shared/sock
as 1000 unshare -Ur "$D/bin/kvfs" -o "dram=16M,ssd=0,segment=8M,hugepages=off,control=$SOCK" "$T/none" none 2>/dev/null &&
	fail "a store where it may not write"
mkdir -m 777 "$T/room"
as 1000 unshare -Ur "$D/bin/kvfs" -o "dram=16M,ssd=0,segment=8M,hugepages=off,control=$SOCK" "$T/room/s" none || fail "a daemon in a namespace"
ok "its own user" as 1000 "$ask" "$SOCK" made make
not "root of the machine, who has no number there" "$E" "$ask" "$SOCK" made make
kill "$(pgrep -f -- "^[^ ]*kvfs .*$SOCK")"
gone
