/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rig.h - what a figure is measured on: a daemon with one space of blocks, and
 * an engine's pool.
 */
#ifndef KV_TOOLS_BENCH_RIG_H
#define KV_TOOLS_BENCH_RIG_H

#include "kernels/kvfs.h"
#include "tools/bench/bench.h"
#include "tools/bench/run.h"
#include "tools/bench/reference.h"

struct kv_bench_rig {
	struct kv_bench *bench;
	const struct kv_bench_size *size;
	struct kv_bench_daemon daemon;
	struct kv_bench_crew *crew;
	struct kv_bench_memory pages, spare; /* each all blocks */
	kvfs_session *session;
	kvfs_space *space;
	kvfs_pool *page_first;	/* a block is one run of bytes */
	kvfs_pool *split;	/* one for K, one for V */
	kvfs_pool *layer_first; /* a block has a run a layer, as in vLLM */
	kvfs_pool *head_first;	/* and one a head of each layer: 4 KiB */
	kvfs_key *keys;		/* size->blocks of them, durable */
	uint32_t next_token;
	uint64_t saved; /* blocks in the store */
};

/* Start the daemon and save @size->blocks blocks under rig->keys, durable. */
int kv_bench_rig_open(struct kv_bench *bench, const struct kv_bench_size *size,
		      struct kv_bench_rig *rig);
void kv_bench_rig_close(struct kv_bench_rig *rig); /* takes half-open ones */

/* A session, and the space @name on it; pools of it over rig->pages. */
int kv_bench_rig_open_space(struct kv_bench_rig *rig, const char *name);
int kv_bench_rig_open_pools(struct kv_bench_rig *rig);
void kv_bench_rig_close_space(struct kv_bench_rig *rig); /* all of these */

/* Keys of a chain of @n blocks that nobody has used. */
int kv_bench_rig_keys(struct kv_bench_rig *rig, kvfs_key *ret_keys, size_t n);

/* Save all pages of @pool under @keys; times until the stages, in ns. */
int kv_bench_rig_save(struct kv_bench_rig *rig, kvfs_pool *pool,
		      const kvfs_key *keys, uint64_t *ret_sealed,
		      uint64_t *ret_durable);

/* Hold rig->keys[first] .. + n.  -EIO if one of them is not held. */
int kv_bench_rig_acquire(struct kv_bench_rig *rig, size_t first, size_t n,
			 kvfs_lease **ret_lease);

/* Whether @lease, of all rig->keys, holds the bytes that were saved: 0, or
 * -EBADMSG. */
int kv_bench_rig_verify(struct kv_bench_rig *rig, kvfs_lease *lease);

/* Wait until the daemon has the whole arena and is idle: 0.3 s at least. */
void kv_bench_rig_settle(struct kv_bench_rig *rig);

/* Drop all rig->keys from DRAM and let the arena settle.  -EBUSY: some stay. */
int kv_bench_rig_chill(struct kv_bench_rig *rig);

/* The path of a block's file below the directory @root. */
void kv_bench_rig_path(const char *root, const kvfs_key *key, char *ret_path,
		       size_t room);

#define KV_BENCH_SPACE "bench"

#endif
