/* SPDX-License-Identifier: Apache-2.0 */
/*
 * workdir.h - the directory below which everything of one run lies.
 */
#ifndef KV_TOOLS_BENCH_WORKDIR_H
#define KV_TOOLS_BENCH_WORKDIR_H

/* Make a directory below @dir, or beside @build if @dir is NULL.  Its path,
 * absolute, goes to @ret_path (caller frees). */
int kv_bench_workdir_make(const char *dir, const char *build, char **ret_path);

/* Unmount what is still mounted in @path (at "mnt"), and remove it all. */
void kv_bench_workdir_remove(const char *path);

/* Take away a mount, also one whose daemon is dead. */
void kv_bench_unmount(const char *mount);

/* Remove one file or tree. */
void kv_bench_remove(const char *path);

/* A name for the filesystem @path is on, such as "ext4". */
const char *kv_bench_filesystem(const char *path);

#endif
