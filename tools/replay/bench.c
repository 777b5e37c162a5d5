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
#include "tools/replay/replay.h"
#define BLOCKS (1u << 20)
#define TURNS (4u << 20)
#define PAIRS 31u /* of runs with the miss curve and without */
#define USES 100000u
#define USE_NS 7.0 /* 1 % of the time to lease a block */

struct figure {
	char name[64];
	double value, reference;
	const char *unit, *goal;
	bool higher; /* is better */
};

static void print_figure(FILE *json, const struct figure *f, bool met)
{
	double ratio = 0;

	if (f->reference > 0 && f->value > 0)
		ratio = f->higher ? f->value / f->reference
				  : f->reference / f->value;
	printf("%-28s %11.4f %-5s %11.4f  %9.2f  %s%s%s\n", f->name, f->value,
	       f->unit, f->reference, ratio, f->goal ? f->goal : "",
	       f->goal ? ": " : "",
	       !f->goal ? ""
	       : met	? "met"
			: "MISSED");
	fprintf(json,
		"{\"figure\": \"%s\", \"value\": %.6g, \"unit\": \"%s\", "
		"\"reference\": %.6g, \"ratio\": %.6g, ",
		f->name, f->value, f->unit, f->reference, ratio);
	if (f->goal)
		fprintf(json, "\"goal\": \"%s\", \"met\": %s}\n", f->goal,
			met ? "true" : "false");
	else
		fprintf(json, "\"goal\": null, \"met\": null}\n");
}

/* Compare a policy with lru, with room for a part of the trace's blocks. */
static int hit_rate(FILE *json, const struct kv_trace *trace, const char *name,
		    uint32_t part)
{
	uint64_t hits = 0, lru = 0;
	struct figure f = {.unit = "rate", .higher = true};
	uint32_t capacity = trace->unique / part ? trace->unique / part : 1;
	int r = kv_replay_run(trace, "lru", capacity, NULL, &lru);

	if (r == 0 && strcmp(name, "bound") == 0)
		r = kv_replay_bound(trace, capacity, NULL, &hits);
	else if (r == 0)
		r = kv_replay_run(trace, name, capacity, NULL, &hits);
	if (r < 0)
		return r;
	snprintf(f.name, sizeof(f.name), "hit_rate_%s_1/%u", name, part);
	f.value = (double)hits / (double)kv_trace_asked(trace);
	f.reference = (double)lru / (double)kv_trace_asked(trace);
	if (strcmp(name, "lhd") == 0)
		f.goal = "ratio >= 0.99";
	print_figure(json, &f, f.value >= 0.99 * f.reference);
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

static void time_touches(FILE *json, struct kv_policy *policy, const char *name)
{
	struct figure f = {.unit = "ns", .goal = "<= 1000"};
	double since = now();
	uint32_t seed = 1;

	for (uint32_t i = 0; i < TURNS; i++)
		kv_policy_touch(policy, random_block(&seed));
	f.value = (now() - since) / TURNS;
	snprintf(f.name, sizeof(f.name), "policy_touch_%s", name);
	print_figure(json, &f, f.value <= 1000);
}

static void time_victims(FILE *json, struct kv_policy *policy, const char *name)
{
	struct kv_arrival arrival = {.parent = KV_NONE};
	struct figure f = {.unit = "ns", .goal = "<= 1000"};
	double since = now();

	for (uint32_t i = 0; i < BLOCKS; i++) {
		uint32_t victim = kv_policy_victim(policy, any, NULL);

		kv_policy_remove(policy, victim);
		arrival.now_ns += 1000000000;
		kv_policy_insert(policy, victim, &arrival);
	}
	f.value = (now() - since) / BLOCKS;
	snprintf(f.name, sizeof(f.name), "policy_victim_%s", name);
	print_figure(json, &f, f.value <= 1000);
}

/* Measure a touch, and a victim with its successor, among a million blocks. */
static int costs(FILE *json, const char *name)
{
	struct kv_arrival arrival = {.parent = KV_NONE};
	struct kv_eviction *eviction = malloc(sizeof(*eviction));
	struct kv_evict_node *nodes = calloc(BLOCKS, sizeof(*nodes));
	struct kv_policy policy;
	uint32_t clock = 0;
	int r = eviction && nodes ? 0 : -ENOMEM;

	if (r == 0)
		r = kv_eviction_init(eviction, name, &clock, node_of, nodes);
	if (r == 0) {
		kv_policy_init(&policy, eviction);
		for (uint32_t i = 0; i < BLOCKS; i++) {
			arrival.now_ns += 1000000000;
			kv_policy_insert(&policy, i, &arrival);
		}
		time_touches(json, &policy, name);
		time_victims(json, &policy, name);
	}
	free(eviction);
	free(nodes);
	return r;
}

/* Return the nanoseconds of a use: its key, and the miss curve if there is one. */
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

static int monitor_cost(FILE *json, const char *name, uint32_t keys)
{
	struct figure f = {.unit = "ns", .goal = "<= 7: 1 % of a lease's"};
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
	snprintf(f.name, sizeof(f.name), "monitor_use_%s", name);
	print_figure(json, &f, f.value <= USE_NS);
	return 0;
}

static int figures(FILE *json, const struct kv_trace *trace)
{
	static const uint32_t parts[] = {50, 20, 10, 5};
	struct figure bytes = {.name = "policy_bytes_block",
			       .value = sizeof(struct kv_evict_node),
			       .unit = "bytes"};
	int r = 0;

	for (size_t i = 0; i < KV_ARRAY_LEN(parts); i++) {
		for (unsigned p = 0; r == 0 && kv_policy_name(p); p++)
			r = hit_rate(json, trace, kv_policy_name(p), parts[i]);
		if (r == 0)
			r = hit_rate(json, trace, "bound", parts[i]);
	}
	for (unsigned i = 0; r == 0 && kv_policy_name(i); i++)
		r = costs(json, kv_policy_name(i));
	print_figure(json, &bytes, true);
	if (r == 0)
		r = monitor_cost(json, "2k", 2000);
	if (r == 0)
		r = monitor_cost(json, "20k", 20000);
	if (r == 0)
		r = monitor_cost(json, "1m", BLOCKS);
	return r;
}

int kv_replay_bench(const char *path, const char *trace_path,
		    uint32_t block_size)
{
	struct kv_trace *trace = NULL;
	char *why = NULL;
	FILE *json = NULL;
	int r = trace_path ? kv_trace_read(trace_path, block_size, &trace, &why)
			   : kv_trace_generate(1, &trace);

	if (r == 0) {
		json = fopen(path, "ae");
		r = json ? figures(json, trace) : -errno;
	}
	if (r < 0)
		fprintf(stderr, "%s\n", why ? why : strerror(-r));
	if (json && fclose(json) != 0 && r == 0)
		r = -EIO;
	kv_trace_free(trace);
	free(why);
	return r;
}
