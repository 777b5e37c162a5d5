/* SPDX-License-Identifier: Apache-2.0 */
/*
 * figures.h - what is measured.  Each function measures its figures on @rig,
 * reports them, and leaves rig->keys durable; -errno if it could not.
 */
#ifndef KV_TOOLS_BENCH_FIGURES_H
#define KV_TOOLS_BENCH_FIGURES_H

#include "tools/bench/rig.h"

/* snapshot_8192, restore_first, restore_all */
int kv_bench_context(struct kv_bench_rig *rig);
int kv_bench_load(struct kv_bench_rig *rig);	    /* load_dram */
int kv_bench_load_layers(struct kv_bench_rig *rig); /* load_dram_layers */
int kv_bench_load_split(struct kv_bench_rig *rig);  /* load_dram_split */
int kv_bench_load_heads(struct kv_bench_rig *rig);  /* load_dram_4k */
int kv_bench_lease(struct kv_bench_rig *rig);	    /* lease */
int kv_bench_mount(struct kv_bench_rig *rig); /* read_mount_second, _first */
int kv_bench_cold(struct kv_bench_rig *rig);  /* load_ssd_cold */
int kv_bench_save(struct kv_bench_rig *rig);  /* save_sealed, save_durable */
int kv_bench_save_heads(struct kv_bench_rig *rig); /* save_sealed_4k */
int kv_bench_save_lent(struct kv_bench_rig *rig);  /* save_lent */
int kv_bench_writers(struct kv_bench_rig *rig);	   /* save_durable_4w */
int kv_bench_probe(struct kv_bench_rig *rig);	   /* probe128_p50, _p99 */
int kv_bench_anonymous(struct kv_bench_rig *rig);  /* memory_anon */

/* mount_clean_1m, mount_killed_1m; with a store of its own */
int kv_bench_million(struct kv_bench *bench);
/* tree_find, _du, _ls, _rm; the same */
int kv_bench_tree(struct kv_bench *bench);
/* The server that tree_* compare with: serve @files files in MOUNTPOINT/million
 * until it is unmounted or SIGTERM comes.  Returns the exit status. */
int kv_bench_nothing(unsigned files, const char *mountpoint);

#endif
