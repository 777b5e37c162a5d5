#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# run.sh: long
# rush.sh [N] - one user saves faster than the SSD writes, or than it has room, or begins
# blocks of all sizes without end.  Meanwhile N blocks of another user without guarantees
# find room, in memory and on SSD; and blocks that were durable on a full SSD are reported
# as evicted.
. "$(dirname "$0")/lib"
n=${1:-100}
needs_root setpriv
cp "$B/tests/mount/rush" "$T/rush"
chmod 755 "$T/rush"
user() { # user UID COMMAND...: run COMMAND of the program rush as a user
	setpriv --reuid "$1" --regid "$1" --clear-groups "$T/rush" "${@:2}"
}
mkfifo "$T/end"
# beside SSD COMMAND N - run user 1002's work while user 1001 runs `rush COMMAND SOCKET N`
beside() {
	start "ssd=$1"
	user 1001 "$2" "$SOCK" "$3" > "$T/begun" < "$T/end" &
	rush=$!
	exec 9> "$T/end"
	sleep 2
	user 1002 work "$SOCK" "$n" > "$T/work" ||
		fail "ssd=$1, beside $2 $3: $(cat "$T/work")"
	ok "the other goes on" kill -0 $rush
	echo "ssd=$1, beside $2 $3: $(cat "$T/work")"
	exec 9>&-
	wait $rush
	stop
	rm -rf "$S"
}
BASE=$ALL,dram=128M,segment=8M,hugepages=off,scrub=0
beside 1G saves 65536
beside 1G saves 512
beside 64M saves 65536
beside 64M saves 4194304
beside 1G sizes 40
start ssd=64M
user 0 turnover "$SOCK" 40 > "$T/work" || fail "on a full SSD: $(cat "$T/work")"
echo "on a full SSD: $(cat "$T/work")"
stop
