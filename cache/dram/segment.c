/* SPDX-License-Identifier: Apache-2.0 */
/*
 * segment.c - the arena's segments: made in the background, retired when
 * another access class needs their memory.
 *
 * OWNS     every kv_segment and kv_mapper, and the thread that makes and unmaps
 *          them.
 *
 * STATES   of a segment, and the function that makes each step:
 *
 *          (made) -> SPARE     grower
 *           SPARE -> IN USE    kv_segment_slots, for one class
 *          IN USE -> RETIRED   kv_segment_retire_locked, all its slots free
 *         RETIRED -> DEAD      kv_segment_returned, by the last holder
 *            DEAD -> (gone)    grower, which then makes a fresh one
 *            DEAD -> KEPT      grower: somebody said that he unmapped it, and
 *                              did not
 *            KEPT -> DEAD      grower, every second, to look again
 *
 * INVARIANTS
 *   (1) SPARE, IN USE, RETIRED, KEPT and DEAD together never exceed arena->max.
 *   (2) A segment never serves a second access class: no bytes are left over.
 *       So it is open, or sealed, for good: an open one keeps its prologues
 *       elsewhere, and no page that its owner takes away is missed.
 *   (3) From the moment on in which a segment is retired those who have it are
 *       charged until they say that they unmapped it; the last one until that
 *       is seen to be true.  Of a KEPT one it cannot be told whose lie that
 *       was: all who had it are charged, but its owner, whom others could make
 *       suffer; he alone if nobody else had it.  One of them claims it.
 *
 * LOCKING  cache->lock; memory is made and unmapped without it.
 */
#include "cache/dram/dram.h"
#include "cache/core/core.h"
#include "cache/core/account.h"
#include "cache/core/list.h"
#include "cache/core/ledger.h"
#include "common/sigbus_guard.h"
#include "common/thread.h"

#include <stdio.h>
#include <sys/stat.h>

/* Leave the machine this much when memory is short. */
#define MEMORY_MARGIN (64ull << 20)
#define ENDING_NS 10000000u
#define HUGE_PAGE (2u << 20)

static uint64_t memory_available(void)
{
	unsigned long long kib = 0;
	char line[128];
	FILE *f = fopen("/proc/meminfo", "re");

	if (!f)
		return UINT64_MAX;
	while (fgets(line, sizeof(line), f))
		if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
			break;
	fclose(f);
	return kib ? kib << 10 : UINT64_MAX;
}

static int segment_new(struct kv_cache *cache, struct kv_segment **ret_segment)
{
	uint64_t bytes = cache->arena.segment_bytes;
	struct kv_segment *segment;
	struct kv_memory memory;
	int r;

	if (memory_available() < bytes + MEMORY_MARGIN)
		return -ENOMEM;
	segment = calloc(1, sizeof(*segment));
	if (!segment)
		return -ENOMEM;
	r = kv_memory_new(bytes, cache->config.hugepages,
			  cache->config.arena == KV_ARENA_SEALED, &memory);
	if (r < 0) {
		free(segment);
		return r;
	}
	segment->fd = memory.fd;
	segment->read_fd = memory.read_fd;
	segment->write_fd = memory.write_fd;
	segment->undecided = memory.undecided;
	segment->base = memory.base;
	segment->huge = memory.huge;
	segment->locked = memory.locked;
	segment->buffer = kv_ring_add_buffer(cache->ring, memory.base, bytes);
	if (segment->buffer < 0)
		segment->buffer = -1;
	TAILQ_INIT(&segment->free_list);
	*ret_segment = segment;
	return 0;
}

static struct kv_memory memory_of(const struct kv_segment *segment)
{
	return (struct kv_memory){.fd = segment->fd,
				  .read_fd = segment->read_fd,
				  .write_fd = segment->write_fd,
				  .undecided = segment->undecided,
				  .base = segment->base};
}

static void segment_free(struct kv_cache *cache, struct kv_segment *segment)
{
	struct kv_memory memory = memory_of(segment);

	if (segment->buffer >= 0)
		kv_ring_remove_buffer(cache->ring, segment->buffer);
	if (segment->prologues)
		kv_sigbus_mend_end(segment->base);
	kv_memory_free(&memory, cache->arena.segment_bytes);
	free(segment->prologues);
	free(segment->slot);
	free(segment);
}

/* ---- who has it mapped ---- */

/* NULL: no memory. */
static struct kv_mapper *mapper_of(struct kv_cache *cache,
				   struct kv_segment *segment, uint32_t uid)
{
	struct kv_mapper *mapper;

	LIST_FOREACH(mapper, &segment->mappers, link)
		if (mapper->tenant->uid == uid)
			return mapper;
	mapper = calloc(1, sizeof(*mapper));
	if (!mapper)
		return NULL;
	mapper->tenant = kv_tenant_make(cache, uid);
	mapper->account = kv_account_get(cache->accounts, uid);
	if (!mapper->tenant || !mapper->account) {
		kv_account_put(mapper->account);
		free(mapper);
		return NULL;
	}
	LIST_INSERT_HEAD(&segment->mappers, mapper, link);
	return mapper;
}

static void charge(struct kv_cache *cache, struct kv_segment *segment,
		   struct kv_mapper *mapper)
{
	if (!mapper->charged)
		kv_account_take(mapper->account, KV_FINITE_SEGMENTS, 1);
	mapper->charged = true;
	if (segment->keeper)
		return;
	segment->keeper = mapper->tenant;
	kv_count_kept_segment(cache, mapper->tenant, 1);
}

static void discharge(struct kv_cache *cache, struct kv_segment *segment,
		      struct kv_mapper *mapper)
{
	if (!mapper->charged)
		return;
	kv_account_credit(mapper->account, KV_FINITE_SEGMENTS, 1);
	mapper->charged = false;
	if (segment->keeper != mapper->tenant)
		return;
	segment->keeper = NULL;
	kv_count_kept_segment(cache, mapper->tenant, -1);
}

static void forget_mappers(struct kv_cache *cache, struct kv_segment *segment)
{
	struct kv_mapper *mapper;

	while ((mapper = LIST_FIRST(&segment->mappers))) {
		discharge(cache, segment, mapper);
		LIST_REMOVE(mapper, link);
		kv_account_put(mapper->account);
		free(mapper);
	}
}

static bool keeps(const struct kv_segment *segment,
		  const struct kv_mapper *mapper)
{
	const bool alone = !LIST_NEXT(LIST_FIRST(&segment->mappers), link);

	if (segment->holders)
		return mapper->holders;
	return alone || mapper->tenant != segment->owner;
}

/* A segment is retired, or somebody says that he unmapped it, or lied. */
static void charge_keepers(struct kv_cache *cache, struct kv_segment *segment)
{
	struct kv_mapper *mapper;

	LIST_FOREACH(mapper, &segment->mappers, link)
		if (!keeps(segment, mapper))
			discharge(cache, segment, mapper);
	LIST_FOREACH(mapper, &segment->mappers, link)
		if (keeps(segment, mapper))
			charge(cache, segment, mapper);
}

/* Lets go of the lock.  Nobody else takes segments from arena->dead. */
static bool in_use(struct kv_cache *cache, struct kv_segment *segment)
{
	struct kv_memory memory = memory_of(segment);
	bool yes;

	kv_unlock(cache);
	yes = kv_memory_in_use(&memory);
	kv_lock(cache);
	segment->read_fd = segment->write_fd = -1;
	return yes;
}

static void bury(struct kv_cache *cache, struct kv_segment *segment)
{
	forget_mappers(cache, segment);
	kv_unlock(cache);
	segment_free(cache, segment);
	kv_lock(cache);
	cache->arena.made--;
}

static void keep(struct kv_cache *cache, struct kv_segment *segment)
{
	TAILQ_INSERT_TAIL(&cache->arena.kept, segment, link);
	cache->arena.kept_count++;
	if (!segment->seen_in_use)
		cache->arena.kept_ns = kv_now_ns();
	segment->seen_in_use = true;
	charge_keepers(cache, segment);
}

static void bury_dead(struct kv_cache *cache)
{
	struct kv_arena *arena = &cache->arena;
	struct kv_segment *segment;
	bool kept;

	TAILQ_CONCAT(&arena->dead, &arena->kept, link);
	arena->kept_count = 0;
	while ((segment = TAILQ_FIRST(&arena->dead))) {
		kept = in_use(cache, segment);
		TAILQ_REMOVE(&arena->dead, segment, link);
		if (kept)
			keep(cache, segment);
		else
			bury(cache, segment);
	}
	if (!arena->kept_count)
		arena->kept_ns = 0;
}

static void grow_one(struct kv_cache *cache)
{
	struct kv_arena *arena = &cache->arena;
	struct kv_segment *segment = NULL;
	int r;

	kv_unlock(cache);
	r = segment_new(cache, &segment);
	kv_lock(cache);
	arena->grow_error = r;
	if (r == 0) {
		segment->id = ++arena->next_id;
		arena->made++;
		arena->huge += segment->huge;
		arena->unlocked += !segment->locked;
		TAILQ_INSERT_TAIL(&arena->spare, segment, link);
	}
	cache->room = true;
	pthread_cond_broadcast(&arena->grown);
}

/* Whatever waits for room looks again now, or the wait below would end at once,
 * for ever. */
static void growing_ended(struct kv_cache *cache)
{
	cache->arena.growing = false;
	cache->room = true;
	pthread_cond_broadcast(&cache->arena.grown);
	kv_unlock(cache);
	kv_lock(cache);
}

static void *grower(void *arg)
{
	struct kv_cache *cache = arg;
	struct kv_arena *arena = &cache->arena;

	kv_lock(cache);
	while (!arena->stop) {
		bury_dead(cache);
		if (arena->made < arena->max) {
			arena->growing = true;
			grow_one(cache);
		}
		if (arena->made < arena->max && arena->grow_error == 0)
			continue;
		if (arena->growing)
			growing_ended(cache);
		/* Short of memory, or kept: look again in a second.  The kernel
		 * closes the socket of a killed process before it has given up
		 * its mappings: look again soon. */
		if (!arena->stop && TAILQ_EMPTY(&arena->dead))
			kv_cond_wait(cache, &arena->grow,
				     kv_now_ns() - arena->kept_ns < KV_UNMAP_NS
					     ? ENDING_NS
					     : 1000000000u);
	}
	bury_dead(cache);
	kv_unlock(cache);
	return NULL;
}

static bool may_be_open(const struct kv_cache *cache,
			const struct kv_segment *segment,
			const struct kv_class *class)
{
	if (!segment->undecided)
		return false;
	return cache->config.arena == KV_ARENA_RW ||
	       (class->tenant->registrants > 0 && class->uid != 0 &&
		!(class->read_bits & (S_IRGRP | S_IROTH)));
}

/* *@open: whether it is to be, and then whether it is. */
static int open_or_seal(struct kv_cache *cache, struct kv_segment *segment,
			bool *open)
{
	struct kv_memory memory = memory_of(segment);
	int r;

	if (*open && kv_sigbus_mend(segment->base, cache->arena.segment_bytes,
				    segment->huge ? HUGE_PAGE : KV_PAGE) < 0)
		return -ENOMEM;
	r = kv_memory_seal(&memory, *open);
	segment->write_fd = memory.write_fd;
	segment->undecided = memory.undecided;
	if (*open && segment->write_fd < 0)
		kv_sigbus_mend_end(segment->base);
	*open = segment->write_fd >= 0;
	return r;
}

int kv_segment_access(struct kv_cache *cache, struct kv_segment *segment,
		      const struct kv_class *class, uint32_t slots)
{
	const bool fresh = !segment->class;
	bool open = fresh ? may_be_open(cache, segment, class)
			  : segment->prologues != NULL;
	_cleanup_(kv_freep) struct kv_prologue *prologues = NULL;
	int r = 0;

	if (open)
		prologues = calloc(slots, sizeof(*prologues));
	if (open && !prologues)
		return -ENOMEM;
	if (fresh)
		r = open_or_seal(cache, segment, &open);
	if (r < 0)
		return r;
	free(segment->prologues);
	segment->prologues = open ? kv_steal(prologues) : NULL;
	return 0;
}

void kv_segment_slots(struct kv_cache *cache, struct kv_segment *segment,
		      struct kv_class *class)
{
	segment->class = class;
	TAILQ_INIT(&segment->free_list);
	for (uint32_t i = 0; i < segment->slots; i++) {
		struct kv_slot *slot = &segment->slot[i];

		memset(slot, 0, sizeof(*slot));
		slot->segment = segment;
		TAILQ_INSERT_TAIL(&segment->free_list, slot, link);
	}
	segment->free = segment->slots;
	segment->kept = segment->hand = 0;
	class->n_segments++;
	class->tenant->segments++;
	cache->arena.vacant++;
	TAILQ_INSERT_HEAD(&class->segments, segment, link);
}

void kv_segment_leave(struct kv_cache *cache, struct kv_segment *segment)
{
	assert(segment->free == segment->slots);
	TAILQ_REMOVE(&segment->class->segments, segment, link);
	segment->class->n_segments--;
	segment->class->tenant->segments--;
	segment->class = NULL;
	cache->arena.vacant--;
}

void kv_segment_retire_locked(struct kv_cache *cache,
			      struct kv_segment *segment)
{
	struct kv_arena *arena = &cache->arena;

	kv_assert_locked(&cache->lock);
	segment->owner = segment->class->tenant;
	kv_segment_leave(cache, segment);
	arena->huge -= segment->huge;
	arena->unlocked -= !segment->locked;
	if (segment->holders) {
		charge_keepers(cache, segment);
		TAILQ_INSERT_TAIL(&arena->retired, segment, link);
		arena->retired_count++;
		arena->retired_ns = kv_now_ns();
		kv_defer_retired(cache, segment->id);
	} else {
		TAILQ_INSERT_TAIL(&arena->dead, segment, link);
		arena->growing = true;
	}
	pthread_cond_signal(&arena->grow);
}

/* A linear search: there are at most a few thousand segments, and clients are
 * given each but once. */
static struct kv_segment *segment_find(struct kv_arena *arena, uint32_t id)
{
	struct kv_segment *segment;
	struct kv_class *class;

	LIST_FOREACH(class, &arena->classes, link)
		TAILQ_FOREACH(segment, &class->segments, link)
			if (segment->id == id)
				return segment;
	TAILQ_FOREACH(segment, &arena->retired, link)
		if (segment->id == id)
			return segment;
	return NULL;
}

/* What it is to be, for @mapper's clients. */
static int fd_for(const struct kv_segment *segment,
		  const struct kv_mapper *mapper)
{
	if (segment->write_fd >= 0 && segment->class->tenant == mapper->tenant)
		return segment->write_fd;
	return segment->read_fd >= 0 ? segment->read_fd : segment->fd;
}

static int give_locked(struct kv_cache *cache, uint32_t id, uint32_t uid,
		       int *ret_fd)
{
	struct kv_segment *segment = segment_find(&cache->arena, id);
	struct kv_mapper *mapper;

	kv_assert_locked(&cache->lock);
	if (!segment || !segment->class)
		return -ENOENT;
	mapper = mapper_of(cache, segment, uid);
	if (!mapper)
		return -ENOMEM;
	if (!kv_account_fits(mapper->account, KV_FINITE_SEGMENTS,
			     cache->arena.max, 0, 0))
		return -ENOLCK;
	segment->holders++;
	mapper->holders++;
	*ret_fd = fd_for(segment, mapper);
	return 0;
}

int kv_segment_give(struct kv_cache *cache, uint32_t id, uint32_t uid,
		    int *ret_fd, uint64_t *ret_bytes)
{
	int r;

	kv_lock(cache);
	r = give_locked(cache, id, uid, ret_fd);
	*ret_bytes = cache->arena.segment_bytes;
	kv_unlock(cache);
	return r;
}

static void returned_locked(struct kv_cache *cache, struct kv_segment *segment,
			    struct kv_mapper *mapper)
{
	struct kv_arena *arena = &cache->arena;

	kv_assert_locked(&cache->lock);
	mapper->holders--;
	segment->holders--;
	if (segment->class)
		return;
	if (segment->holders) {
		charge_keepers(cache, segment);
		return;
	}
	TAILQ_REMOVE(&arena->retired, segment, link);
	arena->retired_count--;
	TAILQ_INSERT_TAIL(&arena->dead, segment, link);
	arena->growing = true;
	pthread_cond_signal(&arena->grow);
}

void kv_segment_returned(struct kv_cache *cache, uint32_t id, uint32_t uid)
{
	struct kv_segment *segment;
	struct kv_mapper *mapper = NULL;

	kv_lock(cache);
	segment = segment_find(&cache->arena, id);
	if (segment)
		mapper = mapper_of(cache, segment, uid);
	if (mapper && mapper->holders)
		returned_locked(cache, segment, mapper);
	kv_unlock(cache);
}

int kv_registrant_add(struct kv_cache *cache, uint32_t uid)
{
	struct kv_tenant *tenant;

	kv_lock(cache);
	tenant = kv_tenant_make(cache, uid);
	if (tenant)
		tenant->registrants++;
	kv_unlock(cache);
	return tenant ? 0 : -ENOMEM;
}

void kv_registrant_remove(struct kv_cache *cache, uint32_t uid)
{
	kv_lock(cache);
	kv_tenant_find(cache, uid)->registrants--;
	kv_unlock(cache);
}

/* As many segments as the budget has, rounded down. */
static void size_segments(struct kv_cache *cache)
{
	uint64_t bytes = KV_MIN(cache->config.segment, cache->config.dram / 64);

	bytes = KV_MAX(bytes / (2u << 20) * (2u << 20), 8ull << 20);
	bytes = KV_MIN(bytes, 2ull << 30);
	cache->arena.segment_bytes = bytes;
	cache->arena.max = (uint32_t)(cache->config.dram / bytes);
}

int kv_arena_open(struct kv_cache *cache)
{
	struct kv_arena *arena = &cache->arena;
	int r;

	size_segments(cache);
	if (arena->max < 2)
		return -EINVAL;
	TAILQ_INIT(&arena->spare);
	TAILQ_INIT(&arena->retired);
	TAILQ_INIT(&arena->dead);
	TAILQ_INIT(&arena->kept);
	LIST_INIT(&arena->classes);
	kv_cond_init(&arena->grow);
	kv_cond_init(&arena->grown);
	if (cache->config.hugepages != KV_HUGE_OFF && geteuid() == 0)
		kv_overcommit_raise(cache, (int64_t)(cache->config.dram >> 21));
	arena->growing = true;
	r = kv_thread_start(&arena->grower, "kvfs-grow", grower, cache);
	if (r < 0)
		return r;
	arena->running = true;
	kv_lock(cache);
	while (arena->made == 0 && arena->growing)
		kv_cond_wait(cache, &arena->grown, 100000000u);
	r = arena->made ? 0 : arena->grow_error;
	kv_unlock(cache);
	return r;
}

static void free_all(struct kv_cache *cache, struct kv_segments *segments)
{
	struct kv_segment *segment;

	while ((segment = TAILQ_FIRST(segments))) {
		TAILQ_REMOVE(segments, segment, link);
		forget_mappers(cache, segment);
		segment_free(cache, segment);
	}
}

void kv_arena_close(struct kv_cache *cache)
{
	struct kv_arena *arena = &cache->arena;
	struct kv_class *class;

	if (!arena->max)
		return;
	if (arena->running) {
		kv_lock(cache);
		arena->stop = true;
		pthread_cond_signal(&arena->grow);
		kv_unlock(cache);
		pthread_join(arena->grower, NULL);
	}
	while ((class = LIST_FIRST(&arena->classes))) {
		LIST_REMOVE(class, link);
		free_all(cache, &class->segments);
		kv_evict_lists_free(&class->lists);
		free(class);
	}
	free_all(cache, &arena->spare);
	free_all(cache, &arena->retired);
	free_all(cache, &arena->dead);
	free_all(cache, &arena->kept);
	kv_overcommit_lower(cache);
}
