/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scrub.h - the thread that reads the store through.
 */
#ifndef KV_CACHE_SCRUB_H
#define KV_CACHE_SCRUB_H

#include "cache/core/core.h"

int kv_scrubber_start(struct kv_cache *cache);
void kv_scrubber_stop(struct kv_cache *cache);

#endif
