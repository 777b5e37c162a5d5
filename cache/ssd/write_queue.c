/* SPDX-License-Identifier: Apache-2.0 */
/*
 * write_queue.c - whose block is written next: users take turns by bytes.
 *
 * OWNS       the write queues; slot->queue and slot->link of slots on them.
 *
 * INVARIANTS
 *   (1) Exactly the write queues with slots are on ssd->busy_write_queues.
 *   (2) ssd->queued counts the slots on write queues.
 *   (3) Slots of one space are on one write queue, in the order of their seals
 * but that parents are pulled before their children.
 *
 * LOCKING    cache->lock.
 */
#include "cache/ssd/ssd.h"

/* One turn: large enough to write in runs. */
#define TURN_BYTES (8 << 20)

static struct kv_write_queue *write_queue_of(struct kv_cache *cache,
					     const struct kv_space *space)
{
	return &cache->ssd.write_queues[space->uid % KV_WRITE_QUEUES];
}

static struct kv_write_queue *lane_at(struct kv_slots *queue)
{
	return (struct kv_write_queue *)((char *)queue -
					 offsetof(struct kv_write_queue,
						  queue));
}

void kv_write_queues_init(struct kv_cache *cache)
{
	TAILQ_INIT(&cache->ssd.busy_write_queues);
	for (unsigned i = 0; i < KV_WRITE_QUEUES; i++)
		TAILQ_INIT(&cache->ssd.write_queues[i].queue);
}

static void put_on(struct kv_cache *cache, struct kv_slot *slot, bool front)
{
	struct kv_ssd *ssd = &cache->ssd;
	struct kv_write_queue *queue = write_queue_of(cache, slot->list->space);

	if (TAILQ_EMPTY(&queue->queue)) {
		queue->credit = 0;
		TAILQ_INSERT_TAIL(&ssd->busy_write_queues, queue, link);
	}
	if (front)
		TAILQ_INSERT_HEAD(&queue->queue, slot, link);
	else
		TAILQ_INSERT_TAIL(&queue->queue, slot, link);
	slot->queue = &queue->queue;
	ssd->queued++;
}

void kv_write_queue_push_locked(struct kv_cache *cache, struct kv_slot *slot)
{
	put_on(cache, slot, false);
}

void kv_write_queue_push_front_locked(struct kv_cache *cache,
				      struct kv_slot *slot)
{
	put_on(cache, slot, true);
}

void kv_write_queue_drop_locked(struct kv_cache *cache, struct kv_slot *slot)
{
	struct kv_write_queue *queue = lane_at(slot->queue);

	TAILQ_REMOVE(&queue->queue, slot, link);
	slot->queue = NULL;
	cache->ssd.queued--;
	if (TAILQ_EMPTY(&queue->queue))
		TAILQ_REMOVE(&cache->ssd.busy_write_queues, queue, link);
}

void kv_write_queue_pull_locked(struct kv_slot *slot)
{
	TAILQ_REMOVE(slot->queue, slot, link);
	TAILQ_INSERT_HEAD(slot->queue, slot, link);
	slot->pulled = true;
}

struct kv_slot *kv_write_queue_next_locked(struct kv_cache *cache)
{
	struct kv_write_queue *queue;

	while ((queue = TAILQ_FIRST(&cache->ssd.busy_write_queues)) &&
	       queue->credit <= 0)
		kv_write_queue_yield_locked(cache);
	return queue ? TAILQ_FIRST(&queue->queue) : NULL;
}

void kv_write_queue_charge_locked(struct kv_slot *slot)
{
	lane_at(slot->queue)->credit -=
		(int64_t)slot->segment->class->slot_bytes;
}

void kv_write_queue_yield_locked(struct kv_cache *cache)
{
	struct kv_write_queues *busy = &cache->ssd.busy_write_queues;
	struct kv_write_queue *queue = TAILQ_FIRST(busy);

	if (!queue)
		return;
	queue->credit = KV_MIN(queue->credit + TURN_BYTES, (int64_t)TURN_BYTES);
	TAILQ_REMOVE(busy, queue, link);
	TAILQ_INSERT_TAIL(busy, queue, link);
}
