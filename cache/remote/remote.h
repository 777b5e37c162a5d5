/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote.h - the remote tier: blocks of other nodes, and of this one for others.
 *
 * Calls that the cache makes of it besides these are in core/hooks.h.
 */
#ifndef KV_CACHE_REMOTE_REMOTE_H
#define KV_CACHE_REMOTE_REMOTE_H

#include "cache/core/core.h"

/* Nothing without config->remote.  -EINVAL and the errors of backends: then
 * *@ret_why is a message for the user (caller frees). */
int kv_remote_start(struct kv_cache *cache, char **ret_why);
/* Whoever waits is told that there is nothing.  Memory that a backend does not
 * give back is left to it. */
void kv_remote_stop(struct kv_cache *cache);

/* key=value lines for .kvfs/config; caller frees.  NULL: none. */
char *kv_remote_describe(struct kv_cache *cache);

/*
 * What the nodes of a space have agreed upon is the layout of the first of them: take
 * the seed from there, or publish *@layout.  Waits for some hundred milliseconds at
 * most.  0: *@layout may be another now; -ENOTCONN, -ETIMEDOUT and others: no backend
 * has answered.
 */
int kv_remote_agree(struct kv_cache *cache, struct kv_space *space,
		    struct kv_layout **layout);
/* The same for a layout that was given without a seed, for a space that is
 * shared.  1: there was no need to ask, or nobody answered, and that was told. */
int kv_remote_adopt(struct kv_cache *cache, struct kv_space *space,
		    struct kv_layout **layout);
/* What is durable of @space, which is shared, is offered to the backends: all of it,
 * unless nothing is handed over. */
void kv_remote_offer_locked(struct kv_cache *cache, struct kv_space *space);
/* Whether any backend is asked. */
bool kv_remote_answers(struct kv_cache *cache);

#endif
