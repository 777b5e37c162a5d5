#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# parts.sh - loads copy blocks while the daemon still reads others from SSD, and are
# cancelled, closed, forked and left without a daemon meanwhile.
. "$(dirname "$0")/lib"
start dram=512M,ssd=512M,segment=32M
"$B/tests/mount/parts" saves "$M" 0 || fail "no blocks"
for what in loads cancels gives_up forks closes dies; do
	restart dram=512M,ssd=512M,segment=32M # so that all blocks are on SSD only
	"$B/tests/mount/parts" $what "$M" "$(daemon_pids)" || fail "$what"
	leases() { [ "$(metric kvfs_leases)" = 0 ]; }
	[ $what = dies ] && break
	for ((i = 0; i < 100; i++)); do leases && break; sleep 0.1; done
	leases || fail "$what: leases are left"
done
gone
umount -l "$M"
