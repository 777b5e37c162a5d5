#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# run.sh: long
# powercut.sh [ext4|xfs] - cut the power of the disk below a store, at many points of its
# life.  The writes that reached the disk are logged in order; a cut keeps all flushed
# writes, and any part of the others, in any order, torn into sectors.  Blocks acknowledged
# as durable by then are present byte for byte, blocks that were removed and flushed stay
# absent, and the store opens and works.
#
# The same with a disk that lies about flushes: blocks may be lost, but no wrong byte is
# served.  And with a daemon whose syncs do nothing, which the test must find.
# KVFS_IMAGES=1000: that many images instead of 200; KVFS_SEED=N: repeat a run.
. "$(dirname "$(realpath "$0")")/disks"
type=${1:-ext4}
images=${KVFS_IMAGES:-200}
seed=${KVFS_SEED:-$((RANDOM << 15 | RANDOM))}
RANDOM=$seed
case $type in
ext4) bytes=$((96 << 20)) ;;
xfs) bytes=$((320 << 20)) ;; # mkfs.xfs makes no smaller filesystem
esac
S=$F/store
J=$T/journal
# KVFS_DISKS=2: half of the segment files are on another disk, which loses its power at the
# same instant, but has flushed its cache at other times
more=
if [ "${KVFS_DISKS:-1}" = 2 ]; then
	export KVFS_SECOND=$T/fs2 KVFS_MORE=$T/fs2/more
	second=$KVFS_SECOND more=,store=$KVFS_MORE
	mkdir "$second"
fi

# life SECONDS [RUNNER]: run a daemon and its clients, then kill it
life() {
	local i
	${2:+"$2"} "$B/kvfs" -o "dram=32M,ssd=64M,segment=8M,hugepages=off,scrub=0,control=$SOCK$more" "$S" none ||
		fail "kvfs does not start"
	for i in 0 1 2; do "$H/saver" "$SOCK" "$J" $i $RANDOM "$D" & workers+=($!); done
	sleep "$1"
	end_load 0
}
end_daemon() { kill -TERM $(daemon_pids) && gone; }
cut_power() { # cut_power IMAGES LOG [lies]: replay the disk's LOG with power cuts, and check each
	nice "$H/cuts" "$2" $bytes "$type" "$F" "$1" "$seed" "$B/kvfs-fsck" ${3:+"$3"}
}

disk_begin "$type" $bytes "$T/log"
life 1.5
kill_daemon
life 1
end_daemon
life 1
kill_daemon
disk_end
cut_power "$images" "$T/log" || fail "a promise is broken"
out=$(cut_power $((images > 160 ? images / 8 : 20)) "$T/log" lies) || fail "a disk that lies makes us lie: $out"
echo "$out" | tail -n 1
[[ $out == *"lost 0 "* ]] && fail "a disk that forgets what was flushed is not found"

"$H/nosync" true || { echo "no seccomp: not tried without syncs"; exit 0; }
# Retry if all cuts came before the first acknowledgement, so that no loss was
# possible.
for i in 1 2 3 4; do
	rm "$T/log" "$J"
	disk_begin "$type" $bytes "$T/log"
	life $i "$H/nosync"
	kill_daemon
	disk_end
	out=$(cut_power 20 "$T/log")
	[[ $out == *"acknowledged 0 "* ]] || break
done
[[ $out == *"lost 0 "* ]] && fail "a daemon that does not sync is not found: $out"
echo "without syncs: $(tail -n 1 <<< "$out")"
