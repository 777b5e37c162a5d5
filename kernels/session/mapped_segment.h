/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mapped_segment.h - the arena segments that the daemon has handed us, mapped
 * for reading.
 *
 * All calls with session->lock held.
 */
#ifndef KV_KERNELS_SESSION_MAPPED_SEGMENT_H
#define KV_KERNELS_SESSION_MAPPED_SEGMENT_H

#include <sys/queue.h>

#include "kernels/session/attach.h"
#include "common/kv.h"
#include "common/wire.h"

struct kvfs_session;

struct kv_mapped_segment {
	TAILQ_ENTRY(kv_mapped_segment) others;
	uint32_t id;
	uint64_t generation; /* of the connection it came by */
	const uint8_t *base;
	uint64_t bytes;
	unsigned refs; /* held blocks in it, and work on it */
	bool retired;  /* goes with its last reference */
	struct kv_attached attached;
};
TAILQ_HEAD(kv_mapped_segments, kv_mapped_segment);

/* Map a segment.  The caller keeps @fd.  One that could shrink under us, or
 * that cannot be mapped, is passed over: blocks in it are then -EIO. */
void kv_mapped_segment_add_locked(struct kvfs_session *session,
				  const struct wire_segment *segment, int fd);

/* The daemon wants it back. */
void kv_mapped_segment_retire_locked(struct kvfs_session *session, uint32_t id);

/* The connection is gone, and its segments with it. */
void kv_mapped_segment_retire_all_locked(struct kvfs_session *session);

/* The segment @id of this connection, held; NULL if there is none, or if the
 * @length bytes at @offset do not lie in it. */
struct kv_mapped_segment *
kv_mapped_segment_get_locked(struct kvfs_session *session, uint32_t id,
			     uint64_t offset, uint64_t length);
void kv_mapped_segment_put_locked(struct kvfs_session *session,
				  struct kv_mapped_segment *mapping);

#endif
