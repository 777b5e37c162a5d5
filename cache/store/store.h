/* SPDX-License-Identifier: Apache-2.0 */
/* store.h - open, read and close the STORE directory. */
#ifndef KV_CACHE_STORE_STORE_H
#define KV_CACHE_STORE_STORE_H

#include "cache/core/core.h"

int kv_store_open(struct kv_cache *cache, char **ret_why);
void kv_store_before_stop(struct kv_cache *cache);
void kv_store_close(struct kv_cache *cache, bool clean);

#endif
