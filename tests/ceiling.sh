#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# ceiling.sh [SECONDS] - what an operation costs the daemon, with 1, 8 and 64 clients: CPU time
# of the control thread and of all threads, and the time for which cache->lock is held.  From
# these follows how many operations a second one node can do.  Needs a C compiler and an idle
# machine; not part of any test run.
. "$(dirname "$(realpath "$0")")/mount/lib"
seconds=${1:-3}
cat > "$T/holds.c" <<'END'
/* Preloaded into the daemon: for each mutex, add up how often and for how long it is held. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#define N 4096
#define DEPTH 16
struct entry { _Atomic uint64_t at, n, ns; };
static struct entry spare[N], *table = spare;
static _Thread_local struct { void *m; uint64_t since; } held[DEPTH];
static int (*lock)(pthread_mutex_t *), (*try)(pthread_mutex_t *), (*unlock)(pthread_mutex_t *);
static int (*wait)(pthread_cond_t *, pthread_mutex_t *);
static int (*timed)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
static uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}
static void find(void)
{
	lock = dlsym(RTLD_NEXT, "pthread_mutex_lock");
	try = dlsym(RTLD_NEXT, "pthread_mutex_trylock");
	unlock = dlsym(RTLD_NEXT, "pthread_mutex_unlock");
	wait = dlvsym(RTLD_NEXT, "pthread_cond_wait", "GLIBC_2.3.2");
	timed = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
}
__attribute__((constructor)) static void begin(void)
{
	const char *path = getenv("HOLDS");
	int fd = path ? open(path, O_RDWR | O_CREAT, 0600) : -1;
	void *map;
	find();
	if (fd < 0 || ftruncate(fd, sizeof(spare)) < 0)
		return;
	map = mmap(NULL, sizeof(spare), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map != MAP_FAILED)
		table = map;
	close(fd);
}
static void took(void *m)
{
	for (int i = 0; i < DEPTH; i++)
		if (!held[i].m) {
			held[i].m = m;
			held[i].since = now();
			return;
		}
}
static void gave(void *m)
{
	uint64_t ns = 0, at = (uint64_t)m / 8 % N, was;
	int i;
	for (i = 0; i < DEPTH && held[i].m != m; i++)
		;
	if (i == DEPTH)
		return;
	ns = now() - held[i].since;
	held[i].m = NULL;
	for (int tries = 0; tries < N; tries++, at = (at + 1) % N) {
		was = 0;
		if (table[at].at == (uint64_t)m || __atomic_compare_exchange_n((uint64_t *)&table[at].at, &was, (uint64_t)m, 0, 5, 5) || was == (uint64_t)m)
			break;
	}
	table[at].n++;
	table[at].ns += ns;
}
int pthread_mutex_lock(pthread_mutex_t *m)
{
	int r;
	if (!lock)
		find();
	r = lock(m);
	if (r == 0)
		took(m);
	return r;
}
int pthread_mutex_trylock(pthread_mutex_t *m)
{
	int r;
	if (!try)
		find();
	r = try(m);
	if (r == 0)
		took(m);
	return r;
}
int pthread_mutex_unlock(pthread_mutex_t *m)
{
	if (!unlock)
		find();
	gave(m);
	return unlock(m);
}
int pthread_cond_wait(pthread_cond_t *c, pthread_mutex_t *m)
{
	int r;
	gave(m);
	r = wait(c, m);
	took(m);
	return r;
}
int pthread_cond_timedwait(pthread_cond_t *c, pthread_mutex_t *m, const struct timespec *t)
{
	int r;
	gave(m);
	r = timed(c, m, t);
	took(m);
	return r;
}
END
${CC:-cc} -O2 -shared -fPIC -w -o "$T/holds.so" "$T/holds.c" -ldl || fail "no C compiler"

# cpu DAEMON: print ns of CPU of the control thread, and of all threads
cpu() {
	local task
	for task in "/proc/$1"/task/*; do
		echo "$(cat "$task/comm") $(cat "$task/schedstat")"
	done 2> /dev/null | awk '
		$1 == "kvfs-control" { control += $2 }
		{ all += $2 }
		END { printf "%.0f %.0f ", control, all }'
}
# held BEFORE AFTER: print ns for which one lock was held, and how often; that with most ns
held() {
	[ -s "$2" ] || { echo "0 0"; return; }
	for f; do od -An -v -t u8 -w24 "$f"; done | awk '
		$1 in n && $3 - ns[$1] > most { most = $3 - ns[$1]; times = $2 - n[$1] }
		{ n[$1] = $2; ns[$1] = $3 }
		END { printf "%.0f %.0f\n", most, times }'
}
# one OPERATION CLIENTS [PRELOAD]: print operations, seconds, failures, ns of CPU before and
# after, and what held() prints
one() {
	local before after line pid
	rm -rf "$S" "$T/holds" "$T/holds.before" "$T/holds.after"
	HOLDS=$T/holds LD_PRELOAD=${3:-} "$B/kvfs" \
		-o "$ALL,dram=512M,ssd=0,hugepages=off,control=$SOCK" "$S" "$M" || fail "no daemon"
	# The daemon is the process with most threads.
	pid=$(for p in $(daemon_pids); do echo "$(ls "/proc/$p/task" | wc -l) $p"; done | sort -n | tail -n 1)
	pid=${pid#* }
	"$B/tests/mount/load" "$M" save || fail "save"
	coproc "$B/tests/mount/load" "$M" "$1" "$2" "$seconds"
	read -r line <&"${COPROC[0]}"
	before=$(cpu "$pid")
	cp "$T/holds" "$T/holds.before" 2> /dev/null
	echo >&"${COPROC[1]}"
	read -r line <&"${COPROC[0]}"
	after=$(cpu "$pid")
	cp "$T/holds" "$T/holds.after" 2> /dev/null
	wait
	unmount "$M"
	gone
	echo "$line $before $after $(held "$T/holds.before" "$T/holds.after")"
}
echo "operation clients ops/s control_us all_us held_us locks failed ceiling_control ceiling_lock"
for what in ${WHAT:-probe lease chain put}; do
	for clients in ${CLIENTS:-1 8 64}; do
		# The second run has the lock measured, which slows it down.
		{ one $what $clients; one $what $clients "$T/holds.so"; } | awk -v what=$what -v clients=$clients '
			{ n = $1 ? $1 : 1; failed += $3 }
			NR == 1 { rate = n / $2; control = ($6 - $4) / n / 1e3; all = ($7 - $5) / n / 1e3 }
			NR == 2 { held = $8 / n / 1e3; locks = $9 / n }
			END { printf "%s %d %.0f %.1f %.1f %.2f %.1f %d %.0f %.0f\n", what, clients, rate, control,
				all, held, locks, failed, control ? 1e6 / control : 0, held ? 1e6 / held : 0 }'
	done
done
