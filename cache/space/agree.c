/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agree.c - agreement with other nodes about the seed of a shared space whose
 * seed was not agreed on when the space was made, because it was shared later,
 * a backend did not answer, or it existed before the mount.
 *
 * Once a backend answers, the space's seed is published there, or the seed of
 * other nodes is found there.  A space without blocks whose seed was drawn here
 * adopts the other seed.  A space with blocks keeps its own, because its blocks
 * cannot be found under another seed.
 *
 * OWNS       the thread that asks; the layouts that were replaced.
 *
 * INVARIANTS
 *   (1) A layout that a client has seen lives as long as the space: it is
 *       replaced at most once per mount, and kept.
 *
 * LOCKING    cache->lock; not held while a backend is asked.
 */
#include "cache/remote/remote.h"
#include "cache/space/space.h"

#include <stdio.h>

#define PERIOD_NS UINT64_C(1000000000)
#define RETRY_NS UINT64_C(5000000000)

/* Compare the seed found at a backend, @there, with the seed in @layout on
 * which the nodes have agreed. */
static void compare(struct kv_cache *cache, struct kv_space *space, bool own,
		    const struct kv_layout *there, struct kv_layout **layout,
		    uint32_t untold)
{
	bool kept, may, first;

	/* A seed given by a user is kept, whatever seed other nodes have. */
	if (there->seed == (*layout)->seed || !own) {
		kv_lock(cache);
		kept = space->own_seed;
		space->own_seed = space->differs = false;
		space->untold = untold;
		kv_unlock(cache);
		if (kept)
			kv_space_persist(cache, space);
		return;
	}
	kv_lock(cache);
	may = !space->blocks && !space->removed && !space->former &&
	      strlen(space->layout->json) == strlen((*layout)->json);
	first = !space->differs;
	space->differs = !may;
	if (may) {
		space->former = space->layout;
		space->layout = kv_steal(*layout);
		space->own_seed = false;
		space->untold = untold;
	}
	kv_unlock(cache);
	if (may)
		kv_space_persist(cache, space);
	else if (first)
		fprintf(stderr,
			"kvfs: warning: space %s: other nodes have another "
			"seed, and it has blocks: see kvfs-remote(7)\n",
			space->name);
}

static void agree(struct kv_cache *cache, struct kv_space *space,
		  uint32_t answering)
{
	_cleanup_(kv_layout_freep) struct kv_layout *layout = NULL;
	struct kv_agreement agreement = {0};
	const struct kv_layout *there = NULL;
	bool own, first;
	int r;

	kv_lock(cache);
	own = space->own_seed;
	if (space->shared && !space->removed && (space->untold & answering) &&
	    !(space->differs && space->blocks) &&
	    kv_now_ns() >= space->agree_ns)
		there = space->layout;
	kv_unlock(cache);
	if (!there)
		return;
	r = kv_layout_parse(there->json, strlen(there->json), &layout);
	if (r == 0)
		r = kv_remote_agree(cache, space, own, &layout, &agreement);
	kv_lock(cache);
	space->agree_ns = kv_now_ns() + RETRY_NS;
	kv_unlock(cache);
	if (r < 0)
		return;
	compare(cache, space, own, there, &layout, agreement.untold);
	/* Nodes that ask one backend first miss the blocks of nodes that ask
	 * another backend first. */
	if (!agreement.other)
		return;
	kv_lock(cache);
	first = !space->split;
	space->split = true;
	if (first)
		kv_note(cache, "seeds_differ=%s (of %s and of %s)", space->name,
			agreement.first, agreement.other);
	kv_unlock(cache);
	if (first)
		fprintf(stderr,
			"kvfs: warning: space %s: remote=%s has another seed "
			"than remote=%s: see kvfs-remote(7)\n",
			space->name, agreement.other, agreement.first);
}

static void agree_all(void *arg)
{
	struct kv_cache *cache = arg;
	struct kv_space *space;
	uint32_t id = 0, answering;

	while (!kv_periodic_stopping(&cache->agreeing) &&
	       (answering = kv_remote_answering(cache)) &&
	       (space = kv_space_next(cache, id))) {
		id = space->id;
		agree(cache, space, answering);
		kv_space_put(space);
	}
}

int kv_spaces_agree_start(struct kv_cache *cache)
{
	if (!cache->remote || cache->config.read_only)
		return 0;
	return kv_periodic_start(&cache->agreeing, "kvfs-agree", PERIOD_NS,
				 agree_all, cache);
}
