/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.h - STORE as it is opened, read and closed.
 */
#ifndef KV_CACHE_STORE_STORE_H
#define KV_CACHE_STORE_STORE_H

#include "cache/core/core.h"

/* ---- store.c ---- */

int kv_store_open(struct kv_cache *cache, char **ret_why);
void kv_store_before_stop(struct kv_cache *cache);
void kv_store_close(struct kv_cache *cache, bool clean);

/* ---- load.c ---- */

int kv_index_adopt(struct kv_cache *cache, char **ret_why);
/* Open the index in @path; if it cannot be used, make it anew and say so. */
int kv_index_open_or_remake(struct kv_cache *cache, const char *path,
			    const struct kv_store_info *fresh, char **ret_why);
/* Do what a crash left to be done, once all is read. */
int kv_store_recover(struct kv_cache *cache);

#endif
