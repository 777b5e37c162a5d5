/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lease.h - a lease, for which the daemon holds blocks in DRAM.
 */
#ifndef KV_KERNELS_TRANSFER_LEASE_H
#define KV_KERNELS_TRANSFER_LEASE_H

#include <stdatomic.h>
#include <sys/queue.h>

#include "kernels/kvfs.h"
#include "kernels/transfer/xfer.h"

/* A block of a lease, which does not change once the lease has settled. */
struct kv_held {
	int status;
	uint32_t call;			   /* index in lease->keys.calls */
	struct kv_mapped_segment *mapping; /* NULL unless @status is 0 */
	const uint8_t *file;
	uint64_t length, payload; /* bytes of the file; offset of its tensors */
};

struct kvfs_lease {
	struct kvfs_session *session;
	size_t n;
	_Atomic bool settled;
	unsigned refs;		 /* guarded by lock */
	unsigned loads;		 /* guarded by lock; loads among @refs */
	size_t unsettled;	 /* guarded by lock; calls without an outcome */
	long held;		 /* blocks; guarded by lock until settled */
	struct kv_notice notice; /* lock */
	struct kv_xfers waiting; /* guarded by lock; waiting loads */
	struct kv_keys keys;	 /* lock */
	struct kv_held items[];
};

/* Keep the lease for a load until kv_lease_put_locked. */
void kv_lease_get_locked(struct kvfs_lease *lease);
void kv_lease_put_locked(struct kvfs_lease *lease);

/* Do the work of kvfs_release with session->lock held. */
void kv_lease_release_locked(struct kvfs_lease *lease);

/* Return the space of block @i, valid as long as the lease. */
struct kvfs_space *kv_lease_space(const struct kvfs_lease *lease, size_t i);

/* Begin the load @xfer if its lease has settled and the stream's work before it
 * is over.  (load.c) */
void kv_load_begin_locked(struct kvfs_xfer *xfer);
/* Do the work of kvfs_load, also for a pool of kvfs_pool_reserve.  (load.c) */
int kv_lib_load(kvfs_pool *pool, kvfs_lease *lease, size_t n,
		const int64_t *pages, const kvfs_opts *opts,
		kvfs_xfer **ret_xfer);

#endif
