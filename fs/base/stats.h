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
	uint64_t accepted, refused; /* refused: connections over a limit */
	uint64_t messages;
	uint64_t protocol_errors; /* connections closed after a bad message */
	uint64_t slow; /* connections closed because the client did not read */
	uint64_t stray_releases;
	uint64_t forced_releases; /* blocks leased when their client ended */
	/* like forced_releases, for reservations */
	uint64_t dropped_reservations;
	uint64_t saved, saved_bytes; /* blocks sealed by the socket's clients */
};

/* The fields of struct kv_quota, with the names of their attributes. */
#define KV_QUOTAS(X)                    \
	X("quota.dram", quota_dram)     \
	X("quota.ssd", quota_ssd)       \
	X("reserve.dram", reserve_dram) \
	X("reserve.ssd", reserve_ssd)   \
	X("rate.put", rate_put)

/* Return the text of .kvfs/stats, or NULL if memory is short.  Caller frees. */
char *kv_stats_text(struct kv_cache *cache);

/* Return the text of .kvfs/metrics, or NULL if memory is short.  The text shows
 * the spaces that @reader may read; operators may read all.  Caller frees. */
char *kv_metrics_text(struct kv_cache *cache,
		      const struct kv_control_counts *control,
		      const struct kv_rules *rules,
		      const struct kv_caller *reader);

/* Return a user's holdings and limits as lines of key=value, or NULL if memory is
 * short.  Caller frees. */
char *kv_tenant_text(struct kv_cache *cache, uint32_t uid);

#endif
