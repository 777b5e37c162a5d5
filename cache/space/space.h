/* SPDX-License-Identifier: Apache-2.0 */
/*
 * space.h - spaces, their quotas and snapshots, inside the cache.
 */
#ifndef KV_CACHE_SPACE_SPACE_H
#define KV_CACHE_SPACE_SPACE_H

#include "cache/core/core.h"

/* ---- space.c ---- */

/* Return whether the owner may take @bytes more of the index for spaces and
 * snapshots. */
bool kv_space_may_index_locked(struct kv_cache *cache,
			       const struct kv_space *space, uint64_t bytes);
/* Charge @to instead of @from bytes of the index to the space. */
void kv_space_index_locked(struct kv_cache *cache, struct kv_space *space,
			   uint64_t from, uint64_t to);
int kv_space_adopt(struct kv_cache *cache, const struct kv_space_record *record,
		   const char *name, const char *layout);
/* Free removed spaces that nothing refers to; lets go of the lock now and then. */
void kv_spaces_reap(struct kv_cache *cache);
void kv_spaces_free(struct kv_cache *cache);

/* ---- persist.c ---- */

/* Count @bytes for a file beside the index, which has *@has; -ENOSPC. */
int kv_sidecar_charge(struct kv_cache *cache, uint64_t *has, uint64_t bytes);
/* Write how @space is now, or that it is removed.  -ENOSPC, -EIO, -ENOMEM.
 * Waits; not under the lock. */
int kv_space_persist(struct kv_cache *cache, struct kv_space *space);
/* At mount: count the file of @space; then check that each space's file agrees
 * with its record, and that there are no others. */
void kv_space_file_adopt(struct kv_cache *cache, struct kv_space *space);
int kv_space_files_check(struct kv_cache *cache);
/* At mount after a clean end: write the files that are missing again.  -ENOSPC,
 * -EIO, -ENOMEM. */
int kv_space_files_lost(struct kv_cache *cache);

/* ---- agree.c ---- */

/* Agree with other nodes upon the seeds of spaces that were shared or made without
 * them. */
int kv_spaces_agree_start(struct kv_cache *cache);
void kv_spaces_agree_soon(struct kv_cache *cache);
void kv_spaces_agree_stop(struct kv_cache *cache);

/* ---- quota.c ---- */

/* At mount: read STORE/tenants.  A damaged one is no error.  -ENOMEM, and the
 * errors of reading a file. */
int kv_tenants_adopt(struct kv_cache *cache);
/* Evict until all spaces and users are within their quotas; lets go of the lock
 * now and then. */
void kv_quotas_keep(struct kv_cache *cache);
/* Compute all guarantees; at mount, and after a change of a reserve. */
void kv_quotas_settle(struct kv_cache *cache);

/* ---- snapshot.c ---- */

/* Visit a record of the index at mount, when all blocks are known.  -ENOMEM. */
int kv_snapshot_adopt(void *arg, const struct kv_snapshot_record *record,
		      const char *name, const struct kv_snapshot_item *items);
/* Return the cost of a space's snapshots. */
uint64_t kv_snapshots_cost_locked(struct kv_cache *cache,
				  const struct kv_space *space);
void kv_snapshots_drop(struct kv_cache *cache, struct kv_space *space);
/* Before each commit; with the lock. */
void kv_snapshots_write(struct kv_cache *cache);
void kv_snapshots_fini(struct kv_cache *cache);

#endif
