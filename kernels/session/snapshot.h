/* SPDX-License-Identifier: Apache-2.0 */
/*
 * snapshot.h - reading a snapshot's keys from the daemon.
 */
#ifndef KV_KERNELS_SESSION_SNAPSHOT_H
#define KV_KERNELS_SESSION_SNAPSHOT_H

#include "kernels/kvfs.h"
#include "common/wire.h"

/* A stretch of one snapshot's keys. */
struct kv_snapshot_chunk {
	uint64_t id;	 /* of the snapshot; 0 before the first read */
	uint32_t blocks; /* in all of it */
	size_t n;	 /* fewer than asked for only at its end */
	struct wire_pick picks[WIRE_BATCH];
};

/* The picks from position @from on, @max (up to WIRE_BATCH) of them.  -ESTALE:
 * chunk->id is not 0, and another snapshot has that name by now; -ENOENT,
 * -ENOTCONN, -EPROTO. */
int kv_snapshot_chunk_read(kvfs_space *space, const char *name, uint32_t from,
			   size_t max, struct kv_snapshot_chunk *chunk);

/* -EINVAL: no snapshot can have that name. */
int kv_snapshot_name_check(const char *name);

#endif
