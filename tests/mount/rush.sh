#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# rush.sh [SECONDS] - one user saves faster than the SSD takes it, or begins blocks
# of all sizes; what another saves finds room, who is guaranteed nothing.
. "$(dirname "$0")/lib"
seconds=${1:-6}
if [ "$(id -u)" != 0 ] || ! command -v setpriv > /dev/null; then
	echo "needs root and setpriv"
	exit 77
fi
cp "$B/tests/mount/rush" "$T/rush"
chmod 755 "$T/rush"
user() { # UID COMMAND...
	setpriv --reuid "$1" --regid "$1" --clear-groups "$T/rush" "${@:2}"
}
BASE=dram=128M,ssd=1G,segment=8M,hugepages=off,scrub=0
for bytes in 65536 512; do
	start
	user 1001 saves "$SOCK" $bytes $((seconds + 3)) > "$T/saved" 2>&1 &
	rush=$!
	sleep 2
	user 1002 work "$SOCK" $((seconds * 20)) > "$T/work" ||
		fail "beside one who saves blocks of $bytes: $(cat "$T/work")"
	echo "beside one who saves blocks of $bytes: $(cat "$T/work")"
	wait $rush
	stop
	rm -rf "$S"
done
start
mkfifo "$T/end"
user 1001 sizes "$SOCK" 40 > "$T/begun" < "$T/end" &
exec 9> "$T/end"
for ((i = 0; i < 600; i++)); do
	[ -s "$T/begun" ] && break
	sleep 0.1
done
user 1002 work "$SOCK" 20 > "$T/work" ||
	fail "beside one who began $(cat "$T/begun") sizes: $(cat "$T/work")"
echo "beside one who began $(cat "$T/begun") sizes: $(cat "$T/work")"
exec 9>&-
wait
stop
