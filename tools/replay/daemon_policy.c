/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon_policy.c - the daemon's own policies, linked from cache/.
 *
 * OWNS      nodes for all blocks of the trace, and a ghost of four times the
 *           capacity, as the daemon has it.
 *
 * LOCKING   none: one thread.
 */
#include <errno.h>
#include <stdlib.h>

#include "cache/evict/ghost.h"
#include "cache/evict/policy.h"
#include "tools/replay/sim.h"

struct state {
	const struct kv_sim *sim;
	struct kv_eviction eviction;
	struct kv_policy policy;
	struct kv_ghost ghost;
	struct kv_evict_node *nodes;
	uint32_t clock;
};

static struct kv_evict_node *node_of(void *arg, uint32_t block)
{
	return &((struct state *)arg)->nodes[block];
}

static void end(void *arg)
{
	struct state *state = arg;

	kv_eviction_fini(&state->eviction);
	kv_ghost_fini(&state->ghost);
	free(state->nodes);
	free(state);
}

static void *begin(const struct kv_sim *sim, const char *name)
{
	struct state *state = calloc(1, sizeof(*state));
	int r = -ENOMEM;

	if (!state)
		return NULL;
	state->sim = sim;
	state->nodes = calloc(sim->unique + 1, sizeof(*state->nodes));
	if (state->nodes)
		r = kv_ghost_init(
			&state->ghost,
			KV_MAX((uint64_t)sim->capacity * KV_GHOST_FOR_A_BLOCK,
			       KV_GHOST_MIN));
	if (r == 0)
		kv_ghost_fit(&state->ghost, sim->capacity);
	if (r == 0)
		r = kv_eviction_init(&state->eviction, name, &state->clock,
				     node_of, state);
	if (r < 0) {
		end(state);
		errno = -r;
		return NULL;
	}
	kv_policy_init(&state->policy, &state->eviction);
	return state;
}

static uint64_t hash_of(uint32_t block)
{
	uint64_t x = (block + 1) * 0x9e3779b97f4a7c15u;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	return x ^ x >> 27;
}

static void ask(struct state *state, uint32_t block, uint32_t position)
{
	if (state->eviction.shadow)
		kv_shadow_cache_ask(state->eviction.shadow, hash_of(block),
				    position);
}

static void touch(void *arg, uint32_t block, uint32_t position)
{
	struct state *state = arg;

	ask(state, block, position);
	kv_policy_touch(&state->policy, block);
}

static void insert(void *arg, uint32_t block, uint32_t position,
		   uint32_t parent)
{
	struct state *state = arg;
	struct kv_arrival arrival = {
		.parent = KV_NONE,
		.position = position,
		.past = kv_ghost_take(&state->ghost, hash_of(block))};

	if (parent != KV_REPLAY_NONE && kv_policy_has(&state->policy, parent))
		arrival.parent = parent;
	ask(state, block, position);
	state->policy.burst = KV_NONE;
	kv_policy_insert(&state->policy, block, &arrival);
}

static void over(void *arg, uint32_t block)
{
	struct state *state = arg;

	kv_policy_renew(&state->policy, block);
}

static bool may_go(void *arg, uint32_t block)
{
	return !kv_sim_pinned(arg, block);
}

static uint32_t victim(void *arg, uint32_t block)
{
	struct state *state = arg;
	uint32_t out =
		kv_policy_victim(&state->policy, may_go, (void *)state->sim);

	(void)block;
	if (out == KV_NONE)
		return KV_REPLAY_NONE;
	kv_ghost_put(&state->ghost, hash_of(out),
		     kv_policy_past(&state->policy, out));
	kv_policy_remove(&state->policy, out);
	return out;
}

const struct kv_replay_policy kv_replay_daemon = {
	.name = "",
	.begin = begin,
	.end = end,
	.touch = touch,
	.insert = insert,
	.over = over,
	.victim = victim,
};
