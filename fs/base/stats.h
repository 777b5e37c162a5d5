/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stats.h - figures of the cache, as text for people and for Prometheus.
 */
#ifndef KV_FS_BASE_STATS_H
#define KV_FS_BASE_STATS_H

#include <stdio.h>

#include "common/histogram.h"
#include "fs/base/access.h"

/* Figures of the control socket, which its thread counts and any thread reads. */
struct kv_control_counts {
	_Atomic uint64_t connections; /* connections at present */
	_Atomic uint64_t refused;     /* connections refused beyond a limit */
	_Atomic uint64_t messages;
	_Atomic uint64_t
		protocol_errors; /* connections closed after a bad message */
	/* connections closed because the client did not read */
	_Atomic uint64_t slow;
	_Atomic uint64_t stray_releases;
	_Atomic uint64_t
		forced_releases; /* blocks leased when their client ended */
	/* reservations left when their client ended */
	_Atomic uint64_t dropped_reservations;
	/* Nanoseconds from a message to its last reply. */
	struct kv_histogram probe_times, acquire_times, save_times;
};

/* Close @f, which open_memstream(3) made for *@text.  Return the text, or NULL if memory
 * is short.  Caller frees. */
char *kv_text_close(FILE *f, char **text);

/* Return the text of .kvfs/stats, or NULL if memory is short.  Caller frees. */
char *kv_stats_text(struct kv_cache *cache);

/* Return the text of .kvfs/metrics, or NULL if memory is short.  The text shows
 * the spaces that @reader may read; operators may read all.  @reader NULL: no spaces.
 * Caller frees. */
char *kv_metrics_text(struct kv_cache *cache,
		      const struct kv_control_counts *control,
		      const struct kv_rules *rules,
		      const struct kv_caller *reader);

/*
 * Return a JSON object a line for each space that @reader may read (operators: all), or
 * NULL if memory is short.  The text begins after the space with the id *@after and has
 * about @max bytes at most.  *@after becomes the id to continue after, 0 at the end.
 * Takes well under a millisecond.  Caller frees.
 */
char *kv_spaces_text(struct kv_cache *cache, const struct kv_rules *rules,
		     const struct kv_caller *reader, uint32_t *after,
		     size_t max);

/* Return a user's holdings and limits as lines of key=value, or NULL if memory is
 * short.  Caller frees. */
char *kv_tenant_text(struct kv_cache *cache, uint32_t uid);

#endif
