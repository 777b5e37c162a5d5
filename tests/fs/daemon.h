/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon.h - a real cache and its control socket, in the test's own process and in a
 * directory of its own.
 */
#ifndef KV_TESTS_FS_DAEMON_H
#define KV_TESTS_FS_DAEMON_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <cmocka.h>

#include "fs/base/access.h"
#include "fs/control/control.h"
#include "tests/fs/peer.h"

#define DAEMON_LAYOUT \
	"{\"tensors\":[{\"name\":\"k\",\"dtype\":\"U8\",\"shape\":[65536]}]}"
#define DAEMON_OTHER \
	"{\"tensors\":[{\"name\":\"k\",\"dtype\":\"U8\",\"shape\":[65535]}]}"
#define DAEMON_PAYLOAD 65536u

struct daemon {
	char dir[64], store[80], path[80];
	struct kv_cache *cache;
	/* rules for the callers of the mount: the default ones, unless a test
	 * changes them */
	struct kv_rules rules;
	pthread_mutex_t lock;
	/* guarded by lock, because daemon_retire reads it on other threads */
	struct kv_control *control;
	struct kv_gate *gate;
};

static inline void daemon_retire(void *arg, uint32_t id)
{
	struct daemon *d = arg;

	pthread_mutex_lock(&d->lock);
	kv_control_retire(d->control, id);
	pthread_mutex_unlock(&d->lock);
}

/* Wait until all segments of DRAM exist: then a reservation without room fails
 * for good. */
static inline void daemon_wait_grown(struct daemon *d)
{
	struct kv_cache_stats stats;

	do {
		usleep(1000);
		kv_cache_stats(d->cache, &stats);
	} while (stats.dram_segments < stats.dram_segments_max);
}

/* Start the daemon with an SSD tier of @ssd bytes; 0: without the tier. */
static inline void daemon_start(struct daemon *d, uint64_t ssd)
{
	struct kv_cache_config config = {
		.store = d->store,
		.dram = 32 << 20,
		.ssd = ssd,
		.ssd_given = true,
		.segment = 8 << 20,
		.hugepages = KV_HUGE_OFF,
		.evict = "lru",
		.retire = daemon_retire,
		.arg = d,
	};
	struct kv_control *control;
	char *why = NULL;
	int r;

	memset(d, 0, sizeof(*d));
	pthread_mutex_init(&d->lock, NULL);
	strcpy(d->dir, "/tmp/kvfs-control-XXXXXX");
	assert_non_null(mkdtemp(d->dir));
	assert_int_equal(chmod(d->dir, 0755), 0);
	snprintf(d->store, sizeof(d->store), "%s/store", d->dir);
	snprintf(d->path, sizeof(d->path), "%s/control", d->dir);
	assert_int_equal(kv_gate_start(&d->gate), 0);
	r = kv_cache_open(&config, &d->cache, &why);
	if (r < 0)
		fail_msg("kv_cache_open: %s (%d)", why ? why : "?", r);
	daemon_wait_grown(d);
	d->rules.uid = geteuid();
	d->rules.gid = getegid();
	d->rules.mode = geteuid() == 0 ? 01777 : 0755;
	r = kv_control_start(d->cache, &d->rules, d->gate, d->path, NULL, NULL,
			     &control, &why);
	if (r < 0)
		fail_msg("kv_control_start: %s (%d)", why ? why : "?", r);
	pthread_mutex_lock(&d->lock);
	d->control = control;
	pthread_mutex_unlock(&d->lock);
}

static inline void daemon_stop_control(struct daemon *d)
{
	struct kv_control *control;

	pthread_mutex_lock(&d->lock);
	control = kv_steal(d->control);
	pthread_mutex_unlock(&d->lock);
	kv_control_stop(control);
}

static inline void daemon_stop(struct daemon *d)
{
	char command[100];

	daemon_stop_control(d);
	kv_cache_close(d->cache);
	kv_gate_stop(d->gate);
	pthread_mutex_destroy(&d->lock);
	assert_int_not_equal(access(d->path, F_OK), 0);
	snprintf(command, sizeof(command), "rm -rf %s", d->dir);
	assert_int_equal(system(command), 0);
}

/* Copies of the fields of struct kv_control_counts, which are not atomic. */
struct daemon_counts {
	uint64_t connections, messages, stray_releases, forced_releases;
	uint64_t dropped_reservations, protocol_errors, slow, refused;
};

static inline struct daemon_counts daemon_counts(struct daemon *d)
{
	struct kv_control_counts counts;

	kv_control_counts(d->control, &counts);
	return (struct daemon_counts){
		.connections = counts.connections,
		.messages = counts.messages,
		.stray_releases = counts.stray_releases,
		.forced_releases = counts.forced_releases,
		.dropped_reservations = counts.dropped_reservations,
		.protocol_errors = counts.protocol_errors,
		.slow = counts.slow,
		.refused = counts.refused,
	};
}

static inline struct kv_cache_stats daemon_stats(struct daemon *d)
{
	struct kv_cache_stats stats;

	kv_cache_stats(d->cache, &stats);
	return stats;
}

/* Connect a client that has sent HELLO and STAGING, with room for 16 blocks, and opened
 * the space "s", or made it with DAEMON_LAYOUT and @mode. */
static inline void daemon_peer(struct daemon *d, struct peer *p, uint32_t mode)
{
	assert_true(peer_connect(p, d->path));
	assert_int_equal(peer_hello(p), 0);
	assert_int_equal(
		peer_space(p, "s", DAEMON_LAYOUT, WIRE_SPACE_CREATE, mode), 0);
	assert_int_equal(peer_staging(p, 16 * DAEMON_PAYLOAD), 0);
}

static inline bool daemon_is_idle(struct daemon *d)
{
	struct kv_cache_stats stats = daemon_stats(d);

	return stats.leases == 0 && stats.saving == 0;
}

/* Wait until no block is leased or being saved.  Return the milliseconds waited, or -1
 * after 20 seconds. */
static inline long daemon_wait_idle(struct daemon *d)
{
	uint64_t start = kv_now_ns();

	do {
		if (daemon_is_idle(d))
			return (long)((kv_now_ns() - start) / 1000000);
		usleep(2000);
	} while (kv_now_ns() - start < 20000000000u);
	return -1;
}

/* Wait until @n clients are connected.  A connection ends after its leases and
 * reservations have been released. */
static inline void daemon_wait_connections(struct daemon *d, uint64_t n)
{
	for (int i = 0; i < 20000 && daemon_counts(d).connections != n; i++)
		usleep(1000);
	assert_int_equal(daemon_counts(d).connections, n);
}

#endif
