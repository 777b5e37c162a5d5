#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# owner.sh [SECONDS] - two clients of a user write into the memory that they have mapped
# for their GPU, and punch holes into it, while a third client saves and reads.  The daemon
# survives, another user's blocks are intact, private and shared ones, and no block on SSD
# is damaged, even after SIGKILL.
. "$(dirname "$0")/lib"
seconds=${1:-5}
needs_root setpriv
cp "$B/tests/mount/owner" "$T/owner"
chmod 755 "$T/owner"
user() { # user UID ARGUMENTS...: run the program owner as a user
	setpriv --reuid "$1" --regid "$1" --clear-groups "$T/owner" "${@:2}"
}
mkfifo "$T/end"
all=()
run() { # run NAME UID ACT: start a client, which ends when $T/end is closed
	user "$2" "$3" "$SOCK" > "$T/$1" < "$T/end" &
	all+=("$1:$!")
}
BASE=$ALL,dram=64M,ssd=512M,segment=8M,scrub=0
meddle() { # meddle OPTIONS: the whole test, with a daemon that has these options
	start "$1"
	before=$(metric kvfs_corrupt_blocks_total)
	all=()
	run saver 1001 saves
	run meddler1 1001 meddles
	run meddler2 1001 meddles
	run beside 1002 beside
	exec 9> "$T/end"
	sleep "$seconds"
	harmed() { [ "$(metric kvfs_corrupt_blocks_total)" -gt "$before" ]; }
	for ((i = 0; i < 600; i++)); do harmed && break; sleep 0.1; done
	exec 9>&-
	for one in "${all[@]}"; do
		wait "${one#*:}" && continue
		# A huge page that the user punched away may be in use elsewhere: SIGBUS.
		[ "$?:$1" = 135:hugepages=auto ] && [ "${one%:*}" != beside ] ||
			fail "$1: ${one%:*}: $(cat "$T/${one%:*}")"
	done
	echo "$1: meddled with $(cat "$T/meddler1"), beside: $(cat "$T/beside")"
	harmed || fail "nothing was harmed"
	# A new owner of the space gets only intact blocks.
	ok "another owner" chown 1003:1003 "$M/own"
	ok "another owner" chmod 0700 "$M/own"
	kill -KILL "$(daemon_pids)"
	gone
	umount -l "$M"
	start "$1"
	for space in own:1003 private:1002 shared:1004; do
		user "${space#*:}" checks "$SOCK" "${space%:*}" > "$T/checks" ||
			fail "$1: after SIGKILL, ${space%:*}: $(cat "$T/checks")"
		echo "after SIGKILL, ${space%:*}: $(cat "$T/checks")"
	done
	eq "damaged blocks after SIGKILL" "$(metric kvfs_corrupt_blocks_total)" 0
	stop
	"$B/kvfs-fsck" --data "$S" > "$T/fsck" || fail "$1: fsck: $(cat "$T/fsck")"
	rm -rf "$S"
}
meddle hugepages=off
meddle hugepages=auto
meddle hugepages=off,arena=rw
