/* SPDX-License-Identifier: Apache-2.0 */
/*
 * child.h - the programs that the bench starts, and their certain end.
 */
#ifndef KV_TOOLS_BENCH_CHILD_H
#define KV_TOOLS_BENCH_CHILD_H

#include <pthread.h>
#include <stdbool.h>
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

#endif
