/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lease.h - a lease: a client's hold on blocks in DRAM.
 */
#ifndef KV_KERNELS_TRANSFER_LEASE_H
#define KV_KERNELS_TRANSFER_LEASE_H

#include <stdatomic.h>
#include <sys/queue.h>

#include "kernels/kvfs.h"
#include "kernels/transfer/xfer.h"

/* A block of a lease; does not change once the lease has settled. */
struct kv_held {
	int status;
	uint32_t call;			   /* of lease->keys */
	struct kv_mapped_segment *mapping; /* NULL unless status is 0 */
	const uint8_t *file;
	uint64_t length, payload; /* of the file; where its tensors begin */
};

struct kvfs_lease {
	struct kvfs_session *session;
	size_t n;
	_Atomic bool settled;
	unsigned refs;	  /* lock: the caller, loads, calls without an answer */
	unsigned loads;	  /* lock: of them, loads */
	size_t unsettled; /* lock: calls without an outcome */
	long held;	  /* blocks with status 0; lock, until it has settled */
	uint64_t asked_at;
	struct kv_notice notice; /* lock */
	struct kv_xfers waiting; /* lock: loads to begin when it settles */
	struct kv_keys keys;	 /* lock */
	struct kv_held items[];
};

/* Keep the lease for a load, until put. */
void kv_lease_get_locked(struct kvfs_lease *lease);
void kv_lease_put_locked(struct kvfs_lease *lease);

/* kvfs_release. */
void kv_lease_release_locked(struct kvfs_lease *lease);

/* The space of block @i; valid as long as the lease. */
struct kvfs_space *kv_lease_space(const struct kvfs_lease *lease, size_t i);

/* The lease of the load @xfer has settled, or its event wait is done: begin to
 * copy if both are.  (load.c) */
void kv_load_begin_locked(struct kvfs_xfer *xfer);

#endif
