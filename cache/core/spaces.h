/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spaces.h - the spaces that there are, by id and by place.  All calls with the
 * lock held.
 */
#ifndef KV_CACHE_CORE_SPACES_H
#define KV_CACHE_CORE_SPACES_H

#include "cache/core/core.h"

/* NULL: there is none, or it is forgotten.  Removed ones are found. */
struct kv_space *kv_space_with_id(const struct kv_cache *cache, uint32_t id);
/* The first with a higher id than @after; NULL. */
struct kv_space *kv_space_behind(const struct kv_cache *cache, uint32_t after);
/* Give @space, whose id is set, a place.  -EEXIST, -ENOSPC, -ENOMEM. */
int kv_spaces_enter(struct kv_cache *cache, struct kv_space *space);
/* Its place is free for another one. */
void kv_spaces_leave(struct kv_cache *cache, struct kv_space *space);
void kv_spaces_fini(struct kv_spaces *spaces);

#endif
