/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote.h - the remote tier: blocks from other nodes, and blocks for them.
 *
 * core/hooks.h has the other calls that the cache makes of it.
 */
#ifndef KV_CACHE_REMOTE_REMOTE_H
#define KV_CACHE_REMOTE_REMOTE_H

#include "cache/core/core.h"

/* Open the backends of config->remote and start the threads.  With -EINVAL and the
 * errors of backends *@ret_why is a message for the user (caller frees). */
int kv_remote_start(struct kv_cache *cache, char **ret_why);
/* End all that waits, as misses.  Memory that a backend does not give back is left to
 * it. */
void kv_remote_stop(struct kv_cache *cache);

/* Return the key=value lines for .kvfs/config (caller frees), or NULL. */
char *kv_remote_describe(struct kv_cache *cache);

#define KV_ALL_BACKENDS (~0u)

/* URLs live as long as the cache. */
struct kv_agreement {
	uint32_t untold;   /* bits of the backends that failed or refused */
	const char *first; /* URL of the first backend that agreed, or NULL */
	const char *other; /* URL of a backend with another seed, or NULL */
};

/*
 * Give *@layout the seed of the first backend that has a layout of the space, and
 * publish *@layout at the backends that have none.  @again: an attempt before may have
 * left something.  May wait for seconds, unless kv_remote_hurry was called.  Returns 0:
 * *@layout may be another now; -ENOMEM, -ENOTCONN, -ETIMEDOUT and others: no backend
 * has answered.
 */
int kv_remote_agree(struct kv_cache *cache, struct kv_space *space, bool again,
		    struct kv_layout **layout, struct kv_agreement *ret);
/*
 * The same with the first backend that answers, if the space is shared and the layout
 * was given without a seed.  Waits for some hundred milliseconds at most.  Returns 1 if
 * there was no need to ask, or no backend answered, which is printed.  *@ret_untold:
 * bits of the backends that may not have the layout.
 */
int kv_remote_adopt(struct kv_cache *cache, struct kv_space *space,
		    struct kv_layout **layout, uint32_t *ret_untold);
/* Let the two calls above return soon. */
void kv_remote_hurry(struct kv_cache *cache);
/* Return the bits of the backends that are open. */
uint32_t kv_remote_answering(struct kv_cache *cache);

/* Offer all durable blocks of @space, which is shared, to the backends, unless
 * remote_write=none. */
void kv_remote_offer_locked(struct kv_cache *cache, struct kv_space *space);

#endif
