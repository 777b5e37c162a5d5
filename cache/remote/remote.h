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

#define KV_ALL_BACKENDS (~0u)

/* Of backends: those, by bits, that could not be asked, or refused; the first that
 * was, and another that has another seed, or NULL.  URLs live as long as the cache. */
struct kv_agreement {
	uint32_t untold;
	const char *first, *other;
};

/*
 * What the nodes of a space have agreed upon is the layout of the first of them: take
 * the seed from the first backend that has one, and publish *@layout where none is.
 * @again: that may have been tried before, and have left something.  May wait for
 * seconds, but after kv_remote_hurry.  0: *@layout may be another now; -ENOMEM,
 * -ENOTCONN, -ETIMEDOUT and others: no backend has answered.
 */
int kv_remote_agree(struct kv_cache *cache, struct kv_space *space, bool again,
		    struct kv_layout **layout, struct kv_agreement *ret);
/*
 * The same for a layout that was given without a seed, for a space that is shared, and
 * with one backend; waits for some hundred milliseconds at most.  1: there was no
 * need to ask, or nobody answered, and that was told.  *@ret_untold: the backends that
 * may not have the layout.
 */
int kv_remote_adopt(struct kv_cache *cache, struct kv_space *space,
		    struct kv_layout **layout, uint32_t *ret_untold);
/* Nobody waits for either any more. */
void kv_remote_hurry(struct kv_cache *cache);
/* The backends that are asked, by bits. */
uint32_t kv_remote_answering(struct kv_cache *cache);

/* What is durable of @space, which is shared, is offered to the backends: all of it,
 * unless nothing is handed over. */
void kv_remote_offer_locked(struct kv_cache *cache, struct kv_space *space);

#endif
