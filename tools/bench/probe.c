/* SPDX-License-Identifier: Apache-2.0 */
/*
 * probe.c - which of 128 keys are there, against Redis.
 *
 * OWNS      the Redis server, for the time of the measurement.
 *
 * LOCKING   none.
 */
#include "tools/bench/figures.h"

#include <errno.h>
#include <stdio.h>

#include "tools/bench/clock.h"
#include "tools/bench/redis.h"
#include "tools/bench/sample.h"

#define KEYS 128
#define PRESENT 64
#define CALLS 20000
#define TURN 500 /* calls of the one before the other's turn */

static int probe_turn(struct kv_bench_rig *rig, const kvfs_key *keys,
		      struct kv_bench_sample *us)
{
	kvfs_query query = {rig->space, keys, KEYS};
	uint8_t states[KEYS];
	uint64_t begin;
	int i;

	for (i = 0; i < TURN; i++) {
		begin = kv_bench_now();
		if (kvfs_probe(&query, 1, states) != PRESENT)
			return -EIO;
		kv_bench_sample_add(us,
				    (double)(kv_bench_now() - begin) / 1000);
	}
	return 0;
}

static int redis_turn(struct kv_bench_redis *redis, struct kv_bench_sample *us)
{
	uint64_t begin;
	int i;

	for (i = 0; i < TURN; i++) {
		begin = kv_bench_now();
		if (kv_bench_redis_exists(redis) != PRESENT)
			return -EIO;
		kv_bench_sample_add(us,
				    (double)(kv_bench_now() - begin) / 1000);
	}
	return 0;
}

static void report(struct kv_bench_rig *rig, struct kv_bench_sample *probe,
		   struct kv_bench_sample *redis)
{
	static const struct {
		const char *name, *goal;
		double percent, most;
	} figures[] = {
		{"probe128_p50", "<= 30 us, ratio >= 3", 50, 30},
		{"probe128_p99", "<= 200 us, ratio >= 3", 99, 200},
	};
	size_t i;

	for (i = 0; i < sizeof(figures) / sizeof(figures[0]); i++) {
		double percent = figures[i].percent;
		struct kv_bench_figure figure = {
			.name = figures[i].name,
			.value = kv_bench_sample_percentile(probe, percent),
			.reference = kv_bench_sample_percentile(redis, percent),
			.unit = "us",
			.against = "Redis, 128 EXISTS, UNIX socket",
			.goal = figures[i].goal,
		};

		figure.ratio = figure.reference / figure.value;
		figure.met =
			figure.value <= figures[i].most && figure.ratio >= 3;
		kv_bench_report_add(rig->bench->report, &figure);
	}
}

static int measure(struct kv_bench_rig *rig, const kvfs_key *keys,
		   struct kv_bench_redis *redis)
{
	struct kv_bench_sample probe = {0}, exists = {0}, warm = {0};
	int r, calls;

	r = probe_turn(rig, keys, &warm);
	if (r == 0)
		r = redis_turn(redis, &warm);
	for (calls = 0; calls < CALLS && r == 0; calls += TURN) {
		r = probe_turn(rig, keys, &probe);
		if (r == 0)
			r = redis_turn(redis, &exists);
	}
	if (r == 0)
		report(rig, &probe, &exists);
	kv_bench_sample_fini(&probe);
	kv_bench_sample_fini(&exists);
	kv_bench_sample_fini(&warm);
	return r;
}

int kv_bench_probe(struct kv_bench_rig *rig)
{
	struct kv_bench_redis *redis;
	kvfs_key keys[KEYS];
	char names[KEYS][65];
	int r, i;

	if (!kv_bench_program_found("redis-server")) {
		kv_bench_report_skip(rig->bench->report, "probe128_p50",
				     "redis-server is not installed");
		kv_bench_report_skip(rig->bench->report, "probe128_p99",
				     "redis-server is not installed");
		return 0;
	}
	r = kv_bench_rig_keys(rig, keys, KEYS);
	if (r < 0)
		return r;
	for (i = 0; i < KEYS; i++) {
		if (i < PRESENT)
			keys[i] = rig->keys[i];
		kvfs_key_name(&keys[i], names[i]);
	}
	r = kv_bench_redis_new(&rig->bench->children, rig->bench->dir, names,
			       KEYS, PRESENT, &redis);
	if (r < 0)
		return r;
	r = measure(rig, keys, redis);
	kv_bench_redis_free(redis);
	return r;
}
