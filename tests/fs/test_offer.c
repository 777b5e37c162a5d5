/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_offer.c - workers map and unmap the memory that clients offer, and messages that
 * come after an offer wait for its end.
 *
 * OWNS      a daemon for all tests, and the descriptors it makes.
 *
 * LOCKING   counters are atomic: threads of the daemon write them.
 */
#include <dirent.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>

#include "cache/core/account.h"
#include "tests/fs/daemon.h"

#define MIB (UINT64_C(1) << 20)
#define ALL (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE)

static struct daemon d;
/* Bytes that the control thread has mapped or unmapped, and the most bytes that
 * a worker has unmapped in one call. */
static _Atomic uint64_t by_control, most;

static bool is_called(const char *name)
{
	char own[16];

	return prctl(PR_GET_NAME, own) == 0 && strcmp(own, name) == 0;
}

/* Replace munmap(2) of libc, also for calls from libraries. */
int munmap(void *at, size_t n)
{
	if (is_called("kvfs-control"))
		atomic_fetch_add(&by_control, n);
	else if (is_called("kvfs-waits") || is_called("kvfs-ingest"))
		atomic_store(&most, KV_MAX(atomic_load(&most), n));
	return (int)syscall(SYS_munmap, at, n);
}

static int start(void **state)
{
	(void)state;
	daemon_start(&d, 0);
	return 0;
}

static int stop(void **state)
{
	(void)state;
	daemon_stop(&d);
	return 0;
}

static int memory(uint64_t bytes, int seals)
{
	int fd = memfd_create("offered", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
	assert_int_equal(fallocate(fd, 0, 0, (off_t)bytes), 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

static uint64_t send_offer(struct peer *p, uint64_t bytes, int fd)
{
	struct wire_staging staging = {bytes};

	return peer_send(
		p, &(struct wire_header){.type = WIRE_STAGING, .count = 1},
		&staging, sizeof(staging), fd);
}

static uint64_t used(enum kv_finite what)
{
	return kv_accounts_used(kv_cache_accounts(d.cache), what);
}

static void wait_until_nothing_is_held(void)
{
	for (int i = 0; i < 20000 && (daemon_counts(&d).connections ||
				      used(KV_FINITE_STAGINGS));
	     i++)
		usleep(1000);
	assert_int_equal(daemon_counts(&d).connections, 0);
	assert_int_equal(used(KV_FINITE_STAGINGS), 0);
	assert_int_equal(used(KV_FINITE_MAPPED), 0);
	assert_int_equal(used(KV_FINITE_REQUESTS), 0);
}

static void workers_unmap_in_steps(void **state)
{
	int fd = memory(64 * MIB, ALL);
	struct peer p;
	bool mapped;

	(void)state;
	daemon_peer(&d, &p, 0777);
	for (int i = 0; i < 3; i++) {
		uint64_t tag = send_offer(&p, 64 * MIB, fd);

		assert_true(peer_reply(&p, tag, PEER_WAIT_MS) > 0);
		assert_int_equal(PEER_HEADER(&p)->status, 0);
		assert_int_equal(peer_save(&p, 10 + (uint32_t)i, 1), 0);
	}
	/* the daemon maps client memory on Linux 6.5 and later */
	mapped = used(KV_FINITE_MAPPED) > 0;
	peer_close(&p);
	close(fd);
	wait_until_nothing_is_held();
	assert_int_equal(atomic_load(&by_control), 0);
	if (mapped)
		assert_in_range(atomic_load(&most), 1, 16 * MIB);
}

/* Return the CPU time of thread @tid of this process, or with 0 of the caller. */
static uint64_t cpu_ns(pid_t tid)
{
	struct timespec t;

	assert_int_equal(
		clock_gettime((clockid_t)(~(unsigned)tid << 3 | 6), &t), 0);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static pid_t control_thread(void)
{
	DIR *dir = opendir("/proc/self/task");
	struct dirent *entry;
	char path[300], name[16];
	pid_t tid = 0;
	FILE *f;

	while ((entry = readdir(dir))) {
		snprintf(path, sizeof(path), "/proc/self/task/%s/comm",
			 entry->d_name);
		f = fopen(path, "r");
		if (f && fgets(name, sizeof(name), f) &&
		    strcmp(name, "kvfs-control\n") == 0)
			tid = (pid_t)strtol(entry->d_name, NULL, 10);
		if (f)
			fclose(f);
	}
	closedir(dir);
	assert_int_not_equal(tid, 0);
	return tid;
}

/* Freeing memory takes time.  The thread that closes the memory last spends
 * this time. */
static void workers_free_what_clients_leave(void **state)
{
	const uint64_t bytes = 128 * MIB;
	const pid_t control = control_thread();
	uint64_t own = 0, spent;
	struct peer p;

	(void)state;
	for (int i = 0, fd; i < 4; i++) {
		fd = memory(bytes, ALL);
		own -= cpu_ns(0);
		close(fd);
		own += cpu_ns(0);
	}
	spent = cpu_ns(control);
	for (int i = 0, fd; i < 4; i++) {
		daemon_peer(&d, &p, 0777);
		fd = memory(bytes, i % 2 ? ALL : F_SEAL_SHRINK);
		assert_int_not_equal(send_offer(&p, bytes, fd), 0);
		close(fd);
		peer_close(&p);
	}
	wait_until_nothing_is_held();
	spent = cpu_ns(control) - spent;
	assert_in_range(spent, 0, own / 2);
}

/* Offer @bytes of @fd as staging memory, and at once save block @key from the
 * end of this memory.  Return the tag of the save, whose reply is the third
 * one. */
static uint64_t offer_and_save(struct peer *p, int fd, uint64_t bytes,
			       uint32_t key)
{
	const struct wire_header reserve = {.type = WIRE_RESERVE, .count = 1};
	const struct wire_header header = {.type = WIRE_SAVE, .count = 1};
	struct wire_save save = {.len = 32, .offset = bytes - DAEMON_PAYLOAD};
	struct wire_key wire;

	peer_keys(&wire, key, 1);
	memcpy(save.key, wire.key, 32);
	assert_int_not_equal(send_offer(p, bytes, fd), 0);
	assert_int_not_equal(peer_send(p, &reserve, &wire, sizeof(wire), -1),
			     0);
	return peer_send(p, &header, &save, sizeof(save), -1);
}

static void messages_wait_for_the_offer_before_them(void **state)
{
	struct peer p;

	(void)state;
	daemon_peer(&d, &p, 0777);
	for (uint32_t i = 0; i < 20; i++) {
		const uint64_t bytes = (1 + i) * 8 * MIB;
		int fd = memory(bytes, i % 2 ? ALL : F_SEAL_SHRINK);
		uint64_t tag = offer_and_save(&p, fd, bytes, 100 + i);

		assert_true(peer_reply(&p, tag - 2, PEER_WAIT_MS) > 0);
		assert_int_equal(PEER_HEADER(&p)->status, 0);
		assert_true(peer_reply(&p, tag - 1, PEER_WAIT_MS) > 0);
		assert_int_equal(peer_saved(&p, tag), 0);
		assert_int_equal(peer_probe(&p, 100 + i), WIRE_DRAM);
		close(fd);
	}
	peer_close(&p);
	wait_until_nothing_is_held();
}

static void what_a_client_sent_before_it_left_is_done(void **state)
{
	struct peer p, other;

	(void)state;
	daemon_peer(&d, &other, 0777);
	for (uint32_t i = 0; i < 20; i++) {
		int fd = memory(32 * MIB, ALL), n = 0;

		daemon_peer(&d, &p, 0777);
		assert_int_not_equal(offer_and_save(&p, fd, 32 * MIB, 200 + i),
				     0);
		peer_close(&p);
		close(fd);
		while (peer_probe(&other, 200 + i) != WIRE_DRAM &&
		       n++ < PEER_WAIT_MS)
			usleep(1000);
		assert_int_equal(peer_probe(&other, 200 + i), WIRE_DRAM);
	}
	peer_close(&other);
	wait_until_nothing_is_held();
}

static void clients_that_leave_while_they_offer_leave_nothing(void **state)
{
	(void)state;
	for (int i = 0; i < 100; i++) {
		int fd = memory(4 * MIB, i % 2 ? ALL : F_SEAL_SHRINK);
		struct peer p;

		daemon_peer(&d, &p, 0777);
		assert_int_not_equal(send_offer(&p, 4 * MIB, fd), 0);
		if (i % 3 == 0) /* a bad message ends the connection */
			peer_raw(&p, "?", 1, -1, 0);
		peer_close(&p);
		close(fd);
	}
	wait_until_nothing_is_held();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(workers_unmap_in_steps),
		cmocka_unit_test(workers_free_what_clients_leave),
		cmocka_unit_test(messages_wait_for_the_offer_before_them),
		cmocka_unit_test(what_a_client_sent_before_it_left_is_done),
		cmocka_unit_test(
			clients_that_leave_while_they_offer_leave_nothing),
	};

	return cmocka_run_group_tests(tests, start, stop);
}
