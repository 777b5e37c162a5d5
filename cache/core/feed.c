/* SPDX-License-Identifier: Apache-2.0 */
/*
 * feed.c - the keys of a space's blocks that have changed their tiers, for subscribers.
 *
 * A feed notes keys, not states: a subscriber looks the state up when it reads, so that
 * its view is never older than the change.  Once the fastest subscriber is a whole ring
 * behind, the feed notes nothing more (@lost): stopped subscribers cost no further work.
 *
 * OWNS       every kv_feed; kv_space.feed; the waits of subscribers.
 *
 * INVARIANTS
 *   (1) A space has a feed if and only if a subscriber holds the feed.
 *   (2) Numbers from @start to before @end are those of noted keys; the ring has the
 *       last KEYS of them.  Both begin at random, so that a cursor of another feed is
 *       outside.
 *   (3) If @lost, keys after @end were not noted.
 *   (4) A wait is in @waits if and only if its @waits is set.
 *
 * LOCKING    cache->lock.
 */
#include <sys/random.h>

#include "cache/core/feed.h"
#include "cache/core/table.h"

#define KEYS (1u << 16) /* of the ring; man/kvfs_space_keys.3 has the number */

struct kv_feed {
	struct kv_space *space; /* constant; held */
	uint32_t holds;
	uint64_t start, end;
	uint64_t read; /* next number for the fastest subscriber */
	bool lost;
	LIST_HEAD(, kv_feed_wait) waits;
	struct kv_key keys[KEYS];
};

const size_t kv_feed_bytes = sizeof(struct kv_feed);

int kv_feed_get(struct kv_cache *cache, struct kv_space *space,
		struct kv_feed **ret_feed)
{
	_cleanup_(kv_freep) struct kv_feed *new = calloc(1, sizeof(*new));
	int r = 0;

	if (!new || getrandom(&new->start, sizeof(new->start), 0) < 0)
		return -ENOMEM;
	new->start = new->start >> 1 | 1; /* 0: no cursor yet */
	new->end = new->read = new->start;
	kv_lock(cache);
	if (space->removed) {
		r = -ENOENT;
	} else {
		if (!space->feed) {
			new->space = kv_space_get(space);
			space->feed = kv_steal(new);
		}
		space->feed->holds++;
		*ret_feed = space->feed;
	}
	kv_unlock(cache);
	return r;
}

void kv_feed_put(struct kv_cache *cache, struct kv_feed *feed)
{
	bool last;

	kv_lock(cache);
	last = --feed->holds == 0;
	if (last)
		feed->space->feed = NULL;
	kv_unlock(cache);
	if (!last)
		return;
	kv_space_put(feed->space);
	free(feed);
}

void kv_feed_wake_locked(struct kv_cache *cache, struct kv_feed *feed)
{
	struct kv_feed_wait *wait;

	kv_assert_locked(&cache->lock);
	while ((wait = LIST_FIRST(&feed->waits))) {
		LIST_REMOVE(wait, link);
		wait->waits = false;
		wait->next = cache->deferred.woken;
		cache->deferred.woken = wait;
	}
}

void kv_feed_add_locked(struct kv_cache *cache, struct kv_feed *feed,
			const struct kv_block *block)
{
	kv_assert_locked(&cache->lock);
	if (feed->end - feed->read >= KEYS) {
		feed->lost = true;
		return;
	}
	feed->keys[feed->end++ % KEYS] = kv_block_key(block);
	kv_feed_wake_locked(cache, feed);
}

long kv_feed_read(struct kv_cache *cache, struct kv_feed *feed,
		  uint64_t *cursor, struct kv_key *ret_keys, size_t max,
		  struct kv_feed_wait *wait)
{
	long n = 0;

	kv_lock(cache);
	if (feed->lost) {
		feed->start = feed->read = ++feed->end;
		feed->lost = false;
	}
	if (*cursor < feed->start || *cursor > feed->end ||
	    feed->end - *cursor > KEYS) {
		*cursor = feed->end;
		n = -ESTALE;
	}
	for (; n >= 0 && (size_t)n < max && *cursor < feed->end; n++)
		ret_keys[n] = feed->keys[(*cursor)++ % KEYS];
	feed->read = KV_MAX(feed->read, *cursor);
	if (n == 0 && wait && !feed->space->removed) {
		LIST_INSERT_HEAD(&feed->waits, wait, link);
		wait->waits = true;
	}
	kv_unlock(cache);
	return n;
}

bool kv_feed_forget(struct kv_cache *cache, struct kv_feed_wait *wait)
{
	bool waits;

	kv_lock(cache);
	waits = wait->waits;
	if (waits)
		LIST_REMOVE(wait, link);
	wait->waits = false;
	kv_unlock(cache);
	return waits;
}
