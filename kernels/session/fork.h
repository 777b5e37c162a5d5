/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fork.h - what a fork does to sessions: the child has none.
 *
 * In the child every handle answers -EBADF, and the connections' descriptors
 * are closed: a child that outlives its parent must not keep its leases.
 */
#ifndef KV_KERNELS_SESSION_FORK_H
#define KV_KERNELS_SESSION_FORK_H

struct kvfs_session;

/* How many forks lie between the program's start and this process. */
unsigned kv_fork_count(void);

/* Watch over @session until kv_fork_forget. */
void kv_fork_watch(struct kvfs_session *session);
void kv_fork_forget(struct kvfs_session *session);

#endif
