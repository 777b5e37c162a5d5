#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# foreign.sh [PAIRS [BOUND]] - the duration of a call, by the socket or by the mount, does
# not reveal whether another user has a block.  With 20000 pairs the AUC of each call is
# known to 0.006, with the usual 2000 to 0.02.
. "$(dirname "$0")/lib"
needs_root setpriv
A="setpriv --reuid 1001 --regid 1001 --clear-groups"
C="setpriv --reuid 1002 --regid 1002 --clear-groups"
cp "$B/tests/mount/foreign" "$T/foreign"
chmod 755 "$T/foreign"
start
id=$($A "$T/foreign" save "$SOCK") || fail "cannot save"
$C "$T/foreign" ask "$SOCK" "$M" "$id" "${1:-2000}" "${2:-0.05}" || fail "a call tells"
stop
