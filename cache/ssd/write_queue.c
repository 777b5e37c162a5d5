/* SPDX-License-Identifier: Apache-2.0 */
/*
 * write_queue.c - whose block is written next: users take turns by bytes.
 *
 * OWNS       the lanes; slot->queue and slot->link of slots on them.
 *
 * INVARIANTS
 *   (1) Exactly the lanes with slots are on ssd->busy_lanes.
 *   (2) ssd->queued counts the slots on lanes.
 *   (3) Slots of one space are on one lane, in the order of their seals but
 *       that parents are pulled before their children.
 *
 * LOCKING    cache->lock.
 */
#include "cache/ssd/ssd.h"

/* One turn: large enough to write in runs. */
#define TURN_BYTES (8 << 20)

static struct kv_lane *lane_of(struct kv_cache *cache,
			       const struct kv_space *space)
{
	return &cache->ssd.lanes[space->uid % KV_LANES];
}

static struct kv_lane *lane_at(struct kv_slots *queue)
{
	return (struct kv_lane *)((char *)queue -
				  offsetof(struct kv_lane, queue));
}

void kv_lanes_init(struct kv_cache *cache)
{
	TAILQ_INIT(&cache->ssd.busy_lanes);
	for (unsigned i = 0; i < KV_LANES; i++)
		TAILQ_INIT(&cache->ssd.lanes[i].queue);
}

static void put_on(struct kv_cache *cache, struct kv_slot *slot, bool front)
{
	struct kv_ssd *ssd = &cache->ssd;
	struct kv_lane *lane = lane_of(cache, slot->shelf->space);

	if (TAILQ_EMPTY(&lane->queue)) {
		lane->credit = 0;
		TAILQ_INSERT_TAIL(&ssd->busy_lanes, lane, link);
	}
	if (front)
		TAILQ_INSERT_HEAD(&lane->queue, slot, link);
	else
		TAILQ_INSERT_TAIL(&lane->queue, slot, link);
	slot->queue = &lane->queue;
	ssd->queued++;
}

void kv_lane_push_locked(struct kv_cache *cache, struct kv_slot *slot)
{
	put_on(cache, slot, false);
}

void kv_lane_push_front_locked(struct kv_cache *cache, struct kv_slot *slot)
{
	put_on(cache, slot, true);
}

void kv_lane_drop_locked(struct kv_cache *cache, struct kv_slot *slot)
{
	struct kv_lane *lane = lane_at(slot->queue);

	TAILQ_REMOVE(&lane->queue, slot, link);
	slot->queue = NULL;
	cache->ssd.queued--;
	if (TAILQ_EMPTY(&lane->queue))
		TAILQ_REMOVE(&cache->ssd.busy_lanes, lane, link);
}

void kv_lane_pull_locked(struct kv_slot *slot)
{
	TAILQ_REMOVE(slot->queue, slot, link);
	TAILQ_INSERT_HEAD(slot->queue, slot, link);
	slot->pulled = true;
}

struct kv_slot *kv_lane_next_locked(struct kv_cache *cache)
{
	struct kv_lane *lane;

	while ((lane = TAILQ_FIRST(&cache->ssd.busy_lanes)) &&
	       lane->credit <= 0)
		kv_lane_yield_locked(cache);
	return lane ? TAILQ_FIRST(&lane->queue) : NULL;
}

void kv_lane_charge_locked(struct kv_slot *slot)
{
	lane_at(slot->queue)->credit -=
		(int64_t)slot->segment->class->slot_bytes;
}

void kv_lane_yield_locked(struct kv_cache *cache)
{
	struct kv_lanes *busy = &cache->ssd.busy_lanes;
	struct kv_lane *lane = TAILQ_FIRST(busy);

	if (!lane)
		return;
	lane->credit = KV_MIN(lane->credit + TURN_BYTES, (int64_t)TURN_BYTES);
	TAILQ_REMOVE(busy, lane, link);
	TAILQ_INSERT_TAIL(busy, lane, link);
}
