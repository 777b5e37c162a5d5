#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# siege.sh [SECONDS] - one user takes as much as it can, in every way at once.  No call of
# another user, who stays within its guarantees, fails.  Prints the latencies of that user,
# alone and during the siege.
. "$(dirname "$0")/lib"
seconds=${1:-8}
needs_root setpriv
A="setpriv --reuid 1001 --regid 1001 --clear-groups"
C="setpriv --reuid 1002 --regid 1002 --clear-groups"
cp "$B/tests/mount/siege" "$T/siege"
chmod 755 "$T/siege"
start
ok "a guarantee" setfattr -n user.kvfs.reserve.dram -v 8M "$M/.kvfs/tenants/1002"
ok "a guarantee" setfattr -n user.kvfs.reserve.ssd -v 32M "$M/.kvfs/tenants/1002"
echo "alone:"
$C "$T/siege" work "$SOCK" "$M" 5 || fail "calls fail without anybody else"
$A "$T/siege" attack "$SOCK" "$M" $((seconds + 2)) > /dev/null 2>&1 &
attack=$!
sleep 1
echo "besieged:"
$C "$T/siege" work "$SOCK" "$M" "$seconds" || fail "calls fail"
wait "$attack"
echo "afterwards:"
$C "$T/siege" work "$SOCK" "$M" 3 || fail "calls fail afterwards"
stop
