#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Two tenants, each with a user of its own: A uses a working set, B writes as fast as it
# can.  Within its guarantees A loses at most 2 % of its hits; without them, many.
. "$(dirname "$0")/lib"
needs_root setpriv
A="setpriv --reuid=4001 --regid=4001 --clear-groups"
C="setpriv --reuid=4002 --regid=4002 --clear-groups"
# Copy the program for users who may not read the files of the build.
cp "$B/tests/mount/flood" "$T/flood"
chmod 755 "$T/flood"
BASE=$ALL,dram=64M,ssd=144M,segment=8M,hugepages=off,scrub=0
STEP=40

begin() {
	start
	ok "A's space" $A mkdir "$M/a"
	ok "B's space" $C mkdir "$M/b"
}
# hits STEP: print how many of user A's 1152 look-ups hit
hits() {
	local out
	out=$($A "$T/flood" "$M" a replay "$1") || fail "replay: $out"
	echo "$out" >&2
	echo "${out%% of*}"
}
flooded() {
	local n
	$C "$T/flood" "$M" b flood &
	n=$(hits $STEP) || exit 1
	kill $! 2>/dev/null
	wait $! 2>/dev/null
	echo "$n"
}
end() {
	stop
	rm -rf "$S"
}

begin
ok "A saves" $A "$T/flood" "$M" a save
peace=$(hits 0) || exit 1
eq "hits in peace" "$peace" 1152
end

begin
setfattr -n user.kvfs.reserve.dram -v 24M "$M/a" || fail "reserve.dram"
setfattr -n user.kvfs.reserve.ssd -v 64M "$M/a" || fail "reserve.ssd"
ok "A saves" $A "$T/flood" "$M" a save
with=$(flooded) || exit 1
[ "$with" -ge $((peace * 98 / 100)) ] || fail "with a reserve A has $with hits of $peace"

end

begin
ok "A saves" $A "$T/flood" "$M" a save
without=$(flooded) || exit 1
[ "$without" -lt $((peace * 90 / 100)) ] || fail "without a reserve A has $without hits of $peace: no flood"
end
