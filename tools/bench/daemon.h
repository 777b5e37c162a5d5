/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon.h - the daemon under test, on a fresh store, and the directory below
 * which everything of one run lies.
 */
#ifndef KV_TOOLS_BENCH_DAEMON_H
#define KV_TOOLS_BENCH_DAEMON_H

#include <limits.h>
#include <stdint.h>

#include "tools/bench/child.h"

/* Make a directory below @dir, or beside @build if @dir is NULL.  Its path,
 * absolute, goes to @ret_path (caller frees). */
int kv_bench_workdir_make(const char *dir, const char *build, char **ret_path);

/* Unmount what is still mounted in @path (at "mnt"), and remove it all. */
void kv_bench_workdir_remove(const char *path);

/* Remove one file or tree. */
void kv_bench_remove(const char *path);

/* A name for the filesystem @path is on, such as "ext4". */
const char *kv_bench_filesystem(const char *path);

struct kv_bench_daemon {
	struct kv_bench_children *children;
	pid_t pid;
	char mount[PATH_MAX], store[PATH_MAX], log[PATH_MAX];
};

/*
 * Start @build's kvfs with @options on the store @dir/store, mounted at
 * @dir/mnt.  Returns when the mount answers.  -EIO: the daemon ended, its last
 * words are on stderr; -ETIMEDOUT: it does not answer.
 */
int kv_bench_daemon_start(struct kv_bench_children *children, const char *build,
			  const char *dir, const char *options,
			  struct kv_bench_daemon *ret_daemon);

/* End it, in order or by SIGKILL; the store stays. */
void kv_bench_daemon_end(struct kv_bench_daemon *daemon);
void kv_bench_daemon_kill(struct kv_bench_daemon *daemon);

/* Unmount, end, remove the store.  Takes one that was not started. */
void kv_bench_daemon_stop(struct kv_bench_daemon *daemon);

/*
 * Wait until its arena of @arena bytes is there and it does no more work of its
 * own, such as writing back.  Gives up after 20 s.
 */
void kv_bench_daemon_settle(const struct kv_bench_daemon *daemon,
			    uint64_t arena);

/* Bytes of its anonymous memory; the arena is not among it.  -errno. */
long kv_bench_daemon_anonymous(const struct kv_bench_daemon *daemon);

#endif
