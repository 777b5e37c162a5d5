#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# userns.sh - engines in user namespaces, in which the machine's root has no user id: which
# daemons they connect to, and which sockets they refuse; and a daemon in a user namespace,
# which admits only users that it can tell apart.
. "$(dirname "$0")/lib"
needs_root setpriv
as() { local id=$1; shift; setpriv --reuid "$id" --regid "$id" --clear-groups "$@"; }
if ! as 1000 unshare -Ur true 2> /dev/null; then
	echo "needs user namespaces for everybody"
	exit 77
fi
# Use directories to which no other user can write, unlike /tmp.
D=$(mktemp -d /run/kvfs-test.XXXXXX)
trap 'rm -rf "$D"; cleanup' EXIT
chmod 755 "$D" && mkdir "$D/bin" && cp "$B/tests/mount/ask" "$B/tests/crash/blocks" "$B/kvfs" "$D/bin" || fail "cp"
chmod -R go+rX "$D/bin" && ask=$D/bin/ask
block "$T/b" && chmod 644 "$T/b"
gone() { # wait until no daemon of this test is left
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
	# Root of a namespace has only the rights of its user outside, and is no operator.
	not "unshare $how: another user's" "Permission denied" as 1000 unshare $how "$ask" "$SOCK" private probe
done
ok "saves, leases and reads in a namespace" as 1000 unshare -Ur "$D/bin/blocks" durable "$SOCK" 0 24
as 1000 unshare -Ur "$D/bin/blocks" check "$SOCK" 0 24 | grep -q '\b24\b' || fail "what was saved in a namespace"

# A link that other users can change leads only to the socket that was checked.
ln -s "$SOCK" "$T/link"
eq "a link in /tmp to a guarded place" "$(as 1000 unshare -Ur "$ask" "$T/link" inside probe "$(key 1)")" 1
# A socket in a directory to which other users can write may be theirs.
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

# Another user's daemon is not trusted, as outside of a namespace.
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

# A daemon in a namespace refuses users that it cannot tell apart.
SOCK=$D/shared/sock
as 1000 unshare -Ur "$D/bin/kvfs" -o "dram=16M,ssd=0,segment=8M,hugepages=off,control=$SOCK" "$T/none" none 2>/dev/null &&
	fail "a store where it may not write"
mkdir -m 777 "$T/room"
as 1000 unshare -Ur "$D/bin/kvfs" -o "dram=16M,ssd=0,segment=8M,hugepages=off,control=$SOCK" "$T/room/s" none || fail "a daemon in a namespace"
ok "its own user" as 1000 "$ask" "$SOCK" made make
not "root of the machine, who has no number there" "$E" "$ask" "$SOCK" made make
kill "$(pgrep -f -- "^[^ ]*kvfs .*$SOCK")"
gone
