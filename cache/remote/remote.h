/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote.h - the remote tier: blocks from other nodes, and blocks for them.
 *
 * core/hooks.h has the other calls that the cache makes of it.
 */
#ifndef KV_CACHE_REMOTE_REMOTE_H
#define KV_CACHE_REMOTE_REMOTE_H

#include "cache/core/core.h"

/* Make the backend of config->remote, ask it whether it is there (three seconds), and
 * start the threads.  With remote_optional a backend that does not answer is an open
 * circuit breaker.  On failure *@ret_why is a message for the user (caller frees). */
int kv_remote_start(struct kv_cache *cache, char **ret_why);
/* End all waiting requests as misses.  Memory that the backend does not give back is
 * left to the backend. */
void kv_remote_stop(struct kv_cache *cache);

/* Offer all durable blocks of @space, which is shared, to the backend, unless
 * remote_write=none. */
void kv_remote_offer_locked(struct kv_cache *cache, struct kv_space *space);

#endif
