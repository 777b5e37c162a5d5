/* SPDX-License-Identifier: Apache-2.0 */
/*
 * space.h - spaces, their quotas and snapshots, inside the cache.
 */
#ifndef KV_CACHE_SPACE_SPACE_H
#define KV_CACHE_SPACE_SPACE_H

#include "cache/core/core.h"

/* ---- space.c ---- */

/* May its owner take @bytes more of the index for what is no block? */
bool kv_space_may_index_locked(struct kv_cache *cache,
			       const struct kv_space *space, uint64_t bytes);
/* The space takes @to instead of @from of its bytes there. */
void kv_space_index_locked(struct kv_cache *cache, struct kv_space *space,
			   uint64_t from, uint64_t to);
int kv_space_adopt(struct kv_cache *cache, const struct kv_space_record *record,
		   const char *name, const char *layout);
/* Free removed ones that nothing has any more; lets go of the lock now and
 * then. */
void kv_spaces_reap(struct kv_cache *cache);
void kv_spaces_free(struct kv_cache *cache);

/* ---- persist.c ---- */

/* Count @bytes for a file beside the index, which has *@has; -ENOSPC. */
int kv_sidecar_charge(struct kv_cache *cache, uint64_t *has, uint64_t bytes);
/* Write how @space is now, or that it is removed.  -ENOSPC, -EIO, -ENOMEM.
 * Waits; not under the lock. */
int kv_space_persist(struct kv_cache *cache, struct kv_space *space);
/* At mount: count the file of @space; and then see that each space's is there,
 * as its record has it, and no other. */
void kv_space_file_adopt(struct kv_cache *cache, struct kv_space *space);
int kv_space_files_check(struct kv_cache *cache);
/* At mount after an end in order: write again the files that are not there.
 * -ENOSPC, -EIO, -ENOMEM. */
int kv_space_files_lost(struct kv_cache *cache);

/* ---- agree.c ---- */

/* Have nodes agree upon the seeds of spaces that were shared, or made, without. */
int kv_spaces_agree_start(struct kv_cache *cache);
void kv_spaces_agree_soon(struct kv_cache *cache);
void kv_spaces_agree_stop(struct kv_cache *cache);

/* ---- quota.c ---- */

/* At mount: read STORE/tenants.  A damaged one is no error.  -ENOMEM, and the
 * errors of reading a file. */
int kv_tenants_adopt(struct kv_cache *cache);
/* Bring everybody within their quotas; lets go of the lock now and then. */
void kv_quotas_keep(struct kv_cache *cache);
/* Work out what is guaranteed to whom; at mount. */
void kv_quotas_settle(struct kv_cache *cache);

/* ---- snapshot.c ---- */

/* A visitor of the index at mount, when all blocks are known.  -ENOMEM. */
int kv_snapshot_adopt(void *arg, const struct kv_snapshot_record *record,
		      const char *name, const struct kv_snapshot_item *items);
/* The cost of a space's snapshots, of what all may. */
uint64_t kv_snapshots_cost_locked(struct kv_cache *cache,
				  const struct kv_space *space);
void kv_snapshots_drop(struct kv_cache *cache, struct kv_space *space);
/* Before each commit; with the lock. */
void kv_snapshots_write(struct kv_cache *cache);
void kv_snapshots_fini(struct kv_cache *cache);

#endif
