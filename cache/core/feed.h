/* SPDX-License-Identifier: Apache-2.0 */
/* feed.h - tell the subscribers of a space which blocks have changed their tiers. */
#ifndef KV_CACHE_CORE_FEED_H
#define KV_CACHE_CORE_FEED_H

#include "cache/core/core.h"

void kv_feed_add_locked(struct kv_cache *cache, struct kv_feed *feed,
			const struct kv_block *block);
/* End the waits of the subscribers: the space is removed. */
void kv_feed_wake_locked(struct kv_cache *cache, struct kv_feed *feed);

/* Note that @block of @space has entered or left a tier, or was removed. */
static inline void kv_feed_note_locked(struct kv_cache *cache,
				       const struct kv_space *space,
				       const struct kv_block *block)
{
	if (space->feed)
		kv_feed_add_locked(cache, space->feed, block);
}

#endif
