/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stats.h - the cache's figures, for people and for Prometheus.
 */
#ifndef KV_FS_BASE_STATS_H
#define KV_FS_BASE_STATS_H

#include "cache/cache.h"
#include "fs/control/control.h"

/* What .kvfs/stats shows; caller frees, NULL: no memory. */
char *kv_stats_text(struct kv_cache *cache);

/* What .kvfs/metrics shows; @control may be NULL.  The same. */
char *kv_metrics_text(struct kv_cache *cache, struct kv_control *control);

#endif
