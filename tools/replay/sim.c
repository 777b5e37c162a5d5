/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim.c - a trace against a policy and a capacity.
 *
 * OWNS      which blocks are resident; the policy only says who leaves.
 *
 * LOCKING   none: one thread.
 */
#include "tools/replay/sim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

const char *const kv_replay_names[] = {"lru",	 "flru",  "lhd", "arc",
				       "s3fifo", "sieve", NULL};

struct sim {
	struct kv_sim pub;
	bool *resident;
	uint32_t *asked;
	const struct kv_replay_policy *policy;
	void *state;
	uint64_t hits;
};

static const struct kv_replay_policy *find(const char *name)
{
	static const struct kv_replay_policy *const own[] = {
		&kv_replay_arc, &kv_replay_s3fifo, &kv_replay_sieve};

	for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
		if (strcmp(name, own[i]->name) == 0)
			return own[i];
	return &kv_replay_daemon;
}

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static bool make_room(struct sim *sim, uint32_t block)
{
	uint32_t victim;

	if (sim->pub.used < sim->pub.capacity)
		return true;
	victim = sim->policy->victim(sim->state, block);
	if (victim == KV_REPLAY_NONE)
		return false;
	sim->resident[victim] = false;
	sim->pub.used--;
	return true;
}

static void use(struct sim *sim, const uint32_t *blocks, size_t at)
{
	uint32_t block = blocks[at];

	if (sim->resident[block]) {
		sim->policy->touch(sim->state, block, (uint32_t)at);
		return;
	}
	if (!make_room(sim, block))
		return;
	sim->policy->insert(sim->state, block, (uint32_t)at,
			    at ? blocks[at - 1] : KV_REPLAY_NONE);
	sim->resident[block] = true;
	sim->pub.used++;
}

static void request(struct sim *sim, const uint32_t *blocks, size_t n)
{
	size_t hits = 0, first = n;

	sim->pub.request++;
	while (hits < n && sim->resident[blocks[hits]])
		hits++;
	sim->hits += hits;
	for (size_t i = 0; i < n; i++)
		sim->asked[blocks[i]] = sim->pub.request;
	if (n > sim->pub.capacity)
		n = sim->pub.capacity;
	if (sim->policy->over)
		first = hits;
	first = first < n ? first : n;
	for (size_t i = first; i-- > 0;)
		use(sim, blocks, i);
	for (size_t i = first; i < n; i++)
		use(sim, blocks, i);
	while (sim->policy->over && n-- > 0)
		if (sim->resident[blocks[n]])
			sim->policy->over(sim->state, blocks[n]);
}

static int begin(struct sim *sim, const struct kv_trace *trace,
		 const char *policy, uint32_t capacity)
{
	sim->resident = calloc(trace->unique + 1, sizeof(*sim->resident));
	sim->asked = calloc(trace->unique + 1, sizeof(*sim->asked));
	if (!sim->resident || !sim->asked)
		return -ENOMEM;
	sim->pub = (struct kv_sim){.unique = trace->unique,
				   .capacity = capacity,
				   .resident = sim->resident,
				   .asked = sim->asked};
	sim->policy = find(policy);
	errno = ENOMEM;
	sim->state = sim->policy->begin(&sim->pub, policy);
	return sim->state ? 0 : -errno;
}

int kv_replay_run(const struct kv_trace *trace, const char *policy,
		  uint32_t capacity, void (*step)(double part),
		  struct kv_replay_result *ret_result)
{
	struct sim sim = {0};
	double since;
	int r = begin(&sim, trace, policy, capacity);

	since = seconds();
	for (size_t i = 0; r == 0 && i < trace->n; i++) {
		request(&sim, trace->blocks + trace->start[i],
			trace->start[i + 1] - trace->start[i]);
		if (step && i % 1024 == 0)
			step((double)i / (double)trace->n);
	}
	ret_result->hits = sim.hits;
	ret_result->seconds = seconds() - since;
	if (sim.state)
		sim.policy->end(sim.state);
	free(sim.resident);
	free(sim.asked);
	return r;
}
