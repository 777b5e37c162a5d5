/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agree.c - spaces whose seed other nodes may not know: one that was shared after it
 * was made, or made while a backend did not answer, or was there before the mount.
 *
 * Once a backend answers it is told the seed, or tells that of others.  A space
 * without blocks, and with a seed that was drawn here, then takes that; one with
 * blocks keeps its own, as its blocks are found by nothing else.
 *
 * OWNS       the thread that asks; the layouts that were replaced.
 *
 * INVARIANTS
 *   (1) A layout that was seen stays as long as the space: it is replaced once a
 *       mount at most, and kept.
 *
 * LOCKING    cache->lock; none while a backend is asked.
 */
#include "cache/remote/remote.h"
#include "cache/space/space.h"

#include <stdio.h>

#define PERIOD_NS UINT64_C(1000000000)
#define RETRY_NS UINT64_C(5000000000)

/* The layout that is to be agreed upon; NULL: there is no need. */
static const struct kv_layout *disputed(struct kv_cache *cache,
					const struct kv_space *space,
					uint32_t answering)
{
	const struct kv_layout *layout = NULL;

	kv_lock(cache);
	if (space->shared && !space->removed && (space->untold & answering) &&
	    !(space->differs && space->blocks) &&
	    kv_now_ns() >= space->agree_ns)
		layout = space->layout;
	kv_unlock(cache);
	return layout;
}

/* False: it has blocks, or was replaced before. */
static bool replace(struct kv_cache *cache, struct kv_space *space,
		    struct kv_layout **layout, uint32_t untold)
{
	bool may;

	kv_lock(cache);
	may = !space->blocks && !space->removed && !space->former &&
	      strlen(space->layout->json) == strlen((*layout)->json);
	if (may) {
		space->former = space->layout;
		space->layout = kv_steal(*layout);
		space->own_seed = space->differs = false;
		space->untold = untold;
	}
	kv_unlock(cache);
	return may;
}

static void settle(struct kv_cache *cache, struct kv_space *space,
		   uint32_t untold)
{
	bool kept;

	kv_lock(cache);
	kept = space->own_seed;
	space->own_seed = space->differs = false;
	space->untold = untold;
	kv_unlock(cache);
	if (kept)
		kv_space_persist(cache, space);
}

static void tell(struct kv_cache *cache, struct kv_space *space)
{
	bool told;

	kv_lock(cache);
	told = space->differs;
	space->differs = true;
	kv_unlock(cache);
	if (!told)
		fprintf(stderr,
			"kvfs: warning: space %s: other nodes have another "
			"seed, and it has blocks: see kvfs-remote(7)\n",
			space->name);
}

/* Who asks one of them first does not find what those have who ask the other. */
static void tell_split(struct kv_cache *cache, struct kv_space *space,
		       const struct kv_agreement *agreement)
{
	bool told;

	kv_lock(cache);
	told = space->split;
	space->split = true;
	if (!told)
		kv_note(cache, "seeds_differ=%s (of %s and of %s)", space->name,
			agreement->first, agreement->other);
	kv_unlock(cache);
	if (!told)
		fprintf(stderr,
			"kvfs: warning: space %s: remote=%s has another seed "
			"than remote=%s: see kvfs-remote(7)\n",
			space->name, agreement->other, agreement->first);
}

/* @there: its layout as it is, @layout: as the nodes have agreed. */
static void compare(struct kv_cache *cache, struct kv_space *space, bool own,
		    const struct kv_layout *there, struct kv_layout **layout,
		    uint32_t untold)
{
	/* A seed that was given stays, whatever others have. */
	if (there->seed == (*layout)->seed || !own)
		settle(cache, space, untold);
	else if (replace(cache, space, layout, untold))
		kv_space_persist(cache, space);
	else
		tell(cache, space);
}

static void agree(struct kv_cache *cache, struct kv_space *space,
		  uint32_t answering)
{
	const struct kv_layout *there = disputed(cache, space, answering);
	_cleanup_(kv_layout_freep) struct kv_layout *layout = NULL;
	struct kv_agreement agreement = {0};
	bool own;
	int r;

	if (!there)
		return;
	kv_lock(cache);
	own = space->own_seed;
	kv_unlock(cache);
	r = kv_layout_parse(there->json, strlen(there->json), &layout);
	if (r == 0)
		r = kv_remote_agree(cache, space, own, &layout, &agreement);
	kv_lock(cache);
	space->agree_ns = kv_now_ns() + RETRY_NS;
	kv_unlock(cache);
	if (r < 0)
		return;
	compare(cache, space, own, there, &layout, agreement.untold);
	if (agreement.other)
		tell_split(cache, space, &agreement);
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

void kv_spaces_agree_soon(struct kv_cache *cache)
{
	if (cache->agreeing.running)
		kv_periodic_wake(&cache->agreeing);
}

void kv_spaces_agree_stop(struct kv_cache *cache)
{
	kv_remote_hurry(cache);
	kv_periodic_stop(&cache->agreeing);
}
