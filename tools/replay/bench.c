/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench.c - figures of the eviction policies and of the miss curve.
 *
 * OWNS      nothing beyond a run.
 *
 * LOCKING   none: one thread.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "cache/evict/miss_curve.h"
#include "cache/evict/policy.h"
#include "tools/bench/bench.h"
#include "tools/replay/replay.h"

#define BLOCKS (1u << 20)
#define TURNS (4u << 20)
#define PAIRS 31u /* pairs of runs, with and without the miss curve */
#define USES 100000u
#define USE_NS 7.0 /* nanoseconds: 1 % of the time to lease a block */

/* Compare a policy with lru, at a capacity of 1/@part of the trace's blocks. */
static int hit_rate(struct kv_bench_report *report,
		    const struct kv_trace *trace, const char *name,
		    uint32_t part)
{
	uint64_t hits = 0, lru = 0;
	struct kv_bench_figure f = {.unit = "rate", .against = "lru"};
	char suffix[16];
	uint32_t capacity = trace->unique / part ? trace->unique / part : 1;
	int r = kv_replay_run(trace, "lru", capacity, NULL, &lru);

	if (r == 0 && strcmp(name, "bound") == 0)
		r = kv_replay_bound(trace, capacity, NULL, &hits);
	else if (r == 0)
		r = kv_replay_run(trace, name, capacity, NULL, &hits);
	if (r < 0)
		return r;
	snprintf(suffix, sizeof(suffix), "%s_1/%u", name, part);
	f.name = "hit_rate";
	f.suffix = suffix;
	f.value = (double)hits / (double)kv_trace_asked(trace);
	f.reference = (double)lru / (double)kv_trace_asked(trace);
	if (strcmp(name, "lhd") == 0)
		f.least_ratio = 0.99;
	kv_bench_report_add(report, &f);
	return 0;
}

static struct kv_evict_node *node_of(void *arg, uint32_t block)
{
	return (struct kv_evict_node *)arg + block;
}

static bool any(void *arg, uint32_t block)
{
	(void)arg;
	(void)block;
	return true;
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static uint32_t random_block(uint32_t *seed)
{
	*seed = *seed * 1664525 + 1013904223;
	return *seed >> 12;
}

/* Time a touch, and an eviction with an insertion, among a million blocks. */
static int costs(struct kv_bench_report *report, const char *name)
{
	struct kv_bench_figure f = {"policy_touch", name, .unit = "ns",
				    .most = 1000};
	struct kv_arrival arrival = {.parent = KV_NONE};
	struct kv_eviction *eviction = malloc(sizeof(*eviction));
	struct kv_evict_node *nodes = calloc(BLOCKS, sizeof(*nodes));
	struct kv_policy policy;
	uint32_t clock = 0, seed = 1, victim;
	double since;
	int r = eviction && nodes ? 0 : -ENOMEM;

	if (r == 0)
		r = kv_eviction_init(eviction, name, &clock, node_of, nodes);
	if (r < 0)
		goto out;
	kv_policy_init(&policy, eviction);
	for (uint32_t i = 0; i < BLOCKS; i++) {
		arrival.now_ns += 1000000000;
		kv_policy_insert(&policy, i, &arrival);
	}
	since = now();
	for (uint32_t i = 0; i < TURNS; i++)
		kv_policy_touch(&policy, random_block(&seed));
	f.value = (now() - since) / TURNS;
	kv_bench_report_add(report, &f);
	arrival.now_ns = 0;
	since = now();
	for (uint32_t i = 0; i < BLOCKS; i++) {
		victim = kv_policy_victim(&policy, any, NULL);
		kv_policy_remove(&policy, victim);
		arrival.now_ns += 1000000000;
		kv_policy_insert(&policy, victim, &arrival);
	}
	f.value = (now() - since) / BLOCKS;
	f.name = "policy_victim";
	kv_bench_report_add(report, &f);
out:
	free(eviction);
	free(nodes);
	return r;
}

/* Return the nanoseconds to hash a key, and to update @curve if not NULL. */
static double time_uses(struct kv_miss_curve *curve, uint32_t keys,
			uint32_t *seed)
{
	const uint64_t bytes = 65536;
	volatile uint64_t last;
	double since = now();

	for (uint32_t i = 0; i < USES; i++) {
		uint64_t hash = random_block(seed) % keys + 1;

		hash *= 0x9e3779b97f4a7c15u;
		hash = (hash ^ hash >> 32) * 0xbf58476d1ce4e5b9u;
		last = hash;
		if (curve)
			kv_miss_curve_use(curve, last, bytes, keys / 4 * bytes);
	}
	return (now() - since) / USES;
}

static int ascending(const void *a, const void *b)
{
	const double *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

static int monitor_cost(struct kv_bench_report *report, const char *name,
			uint32_t keys)
{
	struct kv_bench_figure f = {"monitor_use", name, .unit = "ns",
				    .most = USE_NS};
	double more[PAIRS];
	struct kv_miss_curve *curve;
	uint32_t seed = 1;
	int r = kv_miss_curve_new(&curve);

	if (r < 0)
		return r;
	for (uint32_t i = 0; i < 4 * keys; i += USES) /* warm up */
		time_uses(curve, keys, &seed);
	for (uint32_t i = 0; i < PAIRS; i++) {
		more[i] = -time_uses(NULL, keys, &seed);
		more[i] += time_uses(curve, keys, &seed);
	}
	qsort(more, PAIRS, sizeof(more[0]), ascending);
	kv_miss_curve_free(curve);
	f.value = more[PAIRS / 2];
	kv_bench_report_add(report, &f);
	return 0;
}

static int figures(struct kv_bench_report *report, const struct kv_trace *trace)
{
	static const uint32_t parts[] = {50, 20, 10, 5};
	const struct kv_bench_figure bytes = {
		.name = "policy_bytes_block",
		.value = sizeof(struct kv_evict_node),
		.unit = "bytes"};
	int r = 0;

	for (size_t i = 0; i < KV_ARRAY_LEN(parts); i++) {
		for (unsigned p = 0; r == 0 && kv_policy_name(p); p++)
			r = hit_rate(report, trace, kv_policy_name(p),
				     parts[i]);
		if (r == 0)
			r = hit_rate(report, trace, "bound", parts[i]);
	}
	for (unsigned i = 0; r == 0 && kv_policy_name(i); i++)
		r = costs(report, kv_policy_name(i));
	kv_bench_report_add(report, &bytes);
	if (r == 0)
		r = monitor_cost(report, "2k", 2000);
	if (r == 0)
		r = monitor_cost(report, "20k", 20000);
	if (r == 0)
		r = monitor_cost(report, "1m", BLOCKS);
	return r;
}

int kv_replay_bench(const char *path, const char *trace_path,
		    uint32_t block_size)
{
	struct kv_trace *trace = NULL;
	char *why = NULL;
	struct kv_bench_report *report = NULL;
	int r = trace_path ? kv_trace_read(trace_path, block_size, &trace, &why)
			   : kv_trace_generate(1, &trace),
	    closed;

	if (r == 0)
		r = kv_bench_report_new(path, "ae", NULL, &report);
	if (r == 0)
		r = figures(report, trace);
	closed = kv_bench_report_close(report);
	r = r < 0 ? r : closed;
	if (r < 0)
		fprintf(stderr, "%s\n", why ? why : strerror(-r));
	kv_trace_free(trace);
	free(why);
	return r;
}
