/* SPDX-License-Identifier: Apache-2.0 */
/*
 * space.h - spaces, their quotas and snapshots, inside the cache.
 */
#ifndef KV_CACHE_SPACE_SPACE_H
#define KV_CACHE_SPACE_SPACE_H

#include "cache/core/core.h"

/* ---- space.c ---- */

bool kv_space_name_ok(const char *name);
/* Return whether a user may use @bytes more of the index for spaces. */
bool kv_spaces_index_fits(struct kv_cache *cache, struct kv_account *account,
			  uint64_t bytes);
/* Charge the space for @to instead of @from bytes of the index. */
void kv_space_index_locked(struct kv_cache *cache, struct kv_space *space,
			   uint64_t from, uint64_t to);
int kv_space_adopt(struct kv_cache *cache, const struct kv_space_record *record,
		   const char *name, const char *layout);
/* Free removed spaces without references; drops the lock now and then. */
void kv_spaces_reap(struct kv_cache *cache);
void kv_spaces_free(struct kv_cache *cache);

/* ---- persist.c ---- */

/* Change the size charged for one of the files beside the index, from *@has to
 * @bytes.  -ENOSPC. */
int kv_sidecar_charge(struct kv_cache *cache, uint64_t *has, uint64_t bytes);
/*
 * Write the present state of @space, or its removal, to disk.  Waits; call
 * without the lock.  -ENOSPC, -EIO, -ENOMEM.
 */
int kv_space_persist(struct kv_cache *cache, struct kv_space *space);
/* Call at mount: write missing files again, and unless the last end was @clean
 * check that each space's file agrees with its record, and that no other files
 * exist.  -ENOSPC, -EIO, -ENOMEM. */
int kv_space_files_check(struct kv_cache *cache, bool clean);

/* ---- seed.c ---- */

/* Read the file of remote_secret=.  -EACCES, -EINVAL, -ENOMEM, read(2)'s
 * errors. */
int kv_seeds_open(struct kv_cache *cache, char **ret_why);
/* At mount: unshare the spaces whose keys other nodes cannot have. */
void kv_seeds_settle(struct kv_cache *cache);
/* If there is a secret, and the seed of @layout is random, replace it by the
 * seed that all nodes with this secret derive for the user @uid.  -ENOMEM. */
int kv_seed_layout(struct kv_cache *cache, uint32_t uid,
		   struct kv_layout *layout);
/* Return whether the space's seed is the one derived for the user @uid. */
bool kv_seed_is_of_locked(struct kv_cache *cache, const struct kv_space *space,
			  uint32_t uid);
/* Check that other nodes can have the keys of the space; a space without blocks
 * gets the seed that other nodes derive.  -EINVAL: no; the reason is in the
 * space's layout error.  -ENOMEM. */
int kv_seed_may_share(struct kv_cache *cache, struct kv_space *space);
/* Store and log the reason for which a space is not shared. */
void kv_seed_refused(struct kv_cache *cache, struct kv_space *space);

/* ---- quota.c ---- */

/* Call at mount: read STORE/tenants.  A damaged file is no error.  -ENOMEM, and
 * the errors of reading a file. */
int kv_tenants_adopt(struct kv_cache *cache);
/* Evict until all spaces and users are within quota; may drop the lock. */
void kv_quotas_keep(struct kv_cache *cache);
/* Compute all guarantees; call at mount, and after a change of a reserve. */
void kv_quotas_settle(struct kv_cache *cache);

/* ---- expiry.c ---- */

/* Begin the clock of last uses at the mount, after the last use of any block;
 * @newest: the time of that use, or 0. */
void kv_uses_begin(struct kv_cache *cache, uint32_t newest);
/* Remove some of the blocks that have been unused for the ttl of their space or
 * of their user.  Drops the lock now and then; call once a second. */
void kv_blocks_expire(struct kv_cache *cache);

/* ---- snapshot.c ---- */

/* Adopt a snapshot's record of the index at mount, after all blocks are known.
 * -ENOMEM. */
int kv_snapshot_adopt(void *arg, const struct kv_snapshot_record *record,
		      const char *name, const struct kv_snapshot_item *items);
/* Return the blocks in the space's snapshots, plus 16 for each snapshot. */
uint64_t kv_snapshots_cost_locked(struct kv_cache *cache,
				  const struct kv_space *space);
void kv_snapshots_drop(struct kv_cache *cache, struct kv_space *space);
/* Write changed snapshots to the index; called before each commit, with the
 * lock. */
void kv_snapshots_write(struct kv_cache *cache);
void kv_snapshots_fini(struct kv_cache *cache);

#endif
