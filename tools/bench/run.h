/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run.h - what a run of the bench consists of: the directory below which all of
 * it lies, the programs that it starts and their certain end, and one of them,
 * the daemon under test on a fresh store.
 */
#ifndef KV_TOOLS_BENCH_RUN_H
#define KV_TOOLS_BENCH_RUN_H

#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define KV_BENCH_CHILDREN 4

struct kv_bench_children {
	pthread_mutex_t lock;
	pid_t pids[KV_BENCH_CHILDREN]; /* lock; 0: free */
	bool closed;		       /* lock */
};

void kv_bench_children_init(struct kv_bench_children *children);

/*
 * Start @argv (looked up in PATH) with its output in the file @log.  It ends
 * with the bench, however that ends.
 * -ECANCELED after kv_bench_children_end, -EMFILE: too many, -EAGAIN.
 */
int kv_bench_child_start(struct kv_bench_children *children, char *const argv[],
			 const char *log, pid_t *ret_pid);

/* Exit status, 128 + the signal that ended it, or -ECHILD. */
int kv_bench_child_wait(struct kv_bench_children *children, pid_t pid);
bool kv_bench_child_alive(struct kv_bench_children *children, pid_t pid);

/* SIGTERM, and SIGKILL if it is still there 30 s later.  0: none. */
void kv_bench_child_end(struct kv_bench_children *children, pid_t pid);

/* End all, start none any more. */
void kv_bench_children_end(struct kv_bench_children *children);

/* Whether @program is in PATH. */
bool kv_bench_program_found(const char *program);

/* Make a directory below @dir, or beside @build if @dir is NULL.  Its path,
 * absolute, goes to @ret_path (caller frees). */
int kv_bench_workdir_make(const char *dir, const char *build, char **ret_path);

/* Unmount what is still mounted in @path (at "mnt"), and remove it all. */
void kv_bench_workdir_remove(const char *path);

/*
 * Make a store @dir whose index knows @blocks small blocks, chains of 1,000,
 * and whose files are sparse: nobody reads them.  @ret_ssd: the cap to mount it
 * with.  -errno.
 */
int kv_bench_store_make(const char *dir, uint64_t blocks, uint64_t *ret_ssd);

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
