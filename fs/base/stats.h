/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stats.h - figures of the cache, as text for people and for Prometheus.
 */
#ifndef KV_FS_BASE_STATS_H
#define KV_FS_BASE_STATS_H

#include "fs/base/access.h"

/* Figures of the control socket. */
struct kv_control_counts {
	uint64_t connections;	    /* now */
	uint64_t accepted, refused; /* refused: over a limit */
	uint64_t messages;
	uint64_t protocol_errors; /* connections closed for one */
	uint64_t slow;		  /* connections closed for not reading */
	uint64_t stray_releases;
	uint64_t
		forced_releases; /* leased blocks whose holder ended without a release */
	uint64_t dropped_reservations; /* the same for reservations */
	uint64_t saved, saved_bytes;   /* blocks sealed from here */
};

/* The fields of struct kv_quota, with the names of their attributes. */
#define KV_QUOTAS(X)                    \
	X("quota.dram", quota_dram)     \
	X("quota.ssd", quota_ssd)       \
	X("reserve.dram", reserve_dram) \
	X("reserve.ssd", reserve_ssd)   \
	X("rate.put", rate_put)

/* The text of .kvfs/stats; caller frees, NULL: no memory. */
char *kv_stats_text(struct kv_cache *cache);

/* The text of .kvfs/metrics, with the spaces that @reader may read; an operator may
 * read all.  The same. */
char *kv_metrics_text(struct kv_cache *cache,
		      const struct kv_control_counts *control,
		      const struct kv_rules *rules,
		      const struct kv_caller *reader);

/* A user's holdings and limits, one key=value a line; caller frees.  NULL: no
 * memory. */
char *kv_tenant_text(struct kv_cache *cache, uint32_t uid);

#endif
