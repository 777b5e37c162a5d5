#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# clock.sh - the daemon's wall clock jumps by days and decades, forward and back, while
# blocks are saved, read and uploaded, and between mounts: nothing expires by that, is lost
# or hangs.
. "$(dirname "$0")/lib"
if nm -D "$B/kvfs" | grep -qE ' U __(asan|tsan)_'; then
	echo "a library before a sanitizer's"
	exit 77
fi
cat > "$T/clock.c" <<'C'
/* Add the seconds in the file $KVFS_CLOCK to the wall clock. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const long none, *seconds = &none;

__attribute__((constructor)) static void begin(void)
{
	seconds = mmap(NULL, sizeof(none), PROT_READ, MAP_SHARED, open(getenv("KVFS_CLOCK"), O_RDONLY), 0);
}

int clock_gettime(clockid_t clock, struct timespec *t)
{
	int r = (int)syscall(SYS_clock_gettime, clock, t);

	if (r == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
		t->tv_sec += *seconds;
	return r;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone)
{
	struct timespec now;
	int r = clock_gettime(CLOCK_REALTIME, &now);

	(void)zone;
	*t = (struct timeval){now.tv_sec, now.tv_nsec / 1000};
	return r;
}

time_t time(time_t *ret)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	if (ret)
		*ret = now.tv_sec;
	return now.tv_sec;
}
C
cc -shared -fPIC -O1 -o "$T/clock.so" "$T/clock.c" || fail "cc"
jump() { python3 -c 'import struct, sys; open(sys.argv[1], "r+b").write(struct.pack("q", int(sys.argv[2]) * 86400))' "$T/clock" "$1" || fail "jump"; }
head -c 8 /dev/zero > "$T/clock"
moved() { KVFS_CLOCK=$T/clock LD_PRELOAD=$T/clock.so "$@"; }
mount_moved() { moved "$B/kvfs" -o "$BASE,scrub=20M,control=$SOCK" "$S" "$M" || fail "kvfs does not start, $1"; }
N=0
# all_well WHEN: save blocks, and read all that were ever saved
all_well() {
	local i
	for i in 1 2 3; do
		N=$((N + 1))
		block "$T/b$N" --seed "$N" --bytes $((5000 * i))
		ok "save, $1" timeout 60 mkdir -p "$M/s/$(printf %02x "$N")"
		ok "save, $1" timeout 60 cp "$T/b$N" "$M/s/$(place "$N")"
	done
	ok "sync, $1" timeout 60 sync "$M/s"
	for ((i = 1; i <= N; i++)); do
		ok "block $i, $1" timeout 60 cmp "$T/b$i" "$M/s/$(place "$i")"
	done
	ok "health, $1" "$B/kvfs" --health "$M" 60
}

mount_moved "at first"
mkdir "$M/s" "$M/s/f0" "$M/e" || fail mkdir
# No block expires: this test takes less than an hour, whatever the wall clock shows.
for s in s e; do setfattr -n user.kvfs.ttl -v 1h "$M/$s" || fail ttl; done
setfattr -n user.kvfs.rate.put -v 100M "$M/s" || fail rate.put
all_well "at first"
stamp=$(stat -c %Y "$M/s/$(place 1)")
jump 40
all_well "40 days later"
now=$(stat -c %Y "$M/s/$(place "$N")")
[ $((now - stamp)) -gt $((39 * 86400)) ] || fail "the clock did not move: $stamp, $now"
eq "the time of an old block" "$(stat -c %Y "$M/s/$(place 1)")" "$stamp"
# An upload whose process has ended is removed ten seconds later, however the wall clock
# jumps.
cp "$T/b1" "$M/s/f0/.$(key 240).tmp" || fail "upload"
for day in 400 -400; do
	jump "$day"
	sleep 1.5
done
ok "the end of an upload" mv "$M/s/f0/.$(key 240).tmp" "$M/s/f0/$(key 240)"
same "the upload" "$T/b1" "$M/s/f0/$(key 240)"
"$B/tests/mount/storm" "$SOCK" e save 20000 3000 > "$T/storm" 2>&1 &
for day in 0 11000 -25000 3 -3; do
	jump "$day"
	all_well "at day $day"
done
wait $! || fail "an engine while the clock jumps: $(cat "$T/storm")"
sync "$M/e" || fail sync
saved=$(metric 'kvfs_space_blocks{space="e"}')
[ "$saved" -gt 2900 ] || fail "only $saved blocks of the engine"

# Mount with the clock in the past and in the future, after a clean end and after SIGKILL.
for day in -400 400 -8000 0; do
	stop
	jump "$day"
	mount_moved "at day $day"
	all_well "mounted at day $day"
	eq "the engine's blocks" "$(metric 'kvfs_space_blocks{space="e"}')" "$saved"
	kill -KILL "$(daemon_pids)"
	umount -l "$M" 2> /dev/null || fusermount3 -uz "$M"
	gone
	jump $((-day))
	mount_moved "after SIGKILL, at day $((-day))"
	all_well "after SIGKILL, at day $((-day))"
	eq "the engine's blocks" "$(metric 'kvfs_space_blocks{space="e"}')" "$saved"
done
[ "$(metric kvfs_corrupt_blocks_total)" = 0 ] || fail "damaged blocks"
eq "expired" "$(metric kvfs_expired_total)" 0

# A block that is unused expires in time, also if the wall clock goes back meanwhile, and
# its access time follows the wall clock.
mkdir "$M/x" && put x 1 "$T/b1" || fail put
setfattr -n user.kvfs.ttl -v 4 "$M/x" || fail ttl
jump -30
sleep 2.5
[ $(($(moved date +%s) - $(stat -c %X "$M/s/$(place 1)"))) -lt 300 ] || fail "the access time stays"
for ((i = 0; i < 300; i++)); do [ -e "$M/x/$(place 1)" ] || break; sleep 0.1; done
absent "an unused block" "$M/x/$(place 1)"
eq "the engine's blocks" "$(metric 'kvfs_space_blocks{space="e"}')" "$saved"
stop
ok "a sound store" "$B/kvfs-fsck" --data "$S"
