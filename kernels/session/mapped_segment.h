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
	int error;	     /* why it could not be mapped, or 0 */
	const uint8_t *base;
	uint64_t bytes;
	unsigned refs; /* held blocks in it, and work on it */
	bool retired;  /* goes with its last reference */
	struct kv_attached attached;
};
TAILQ_HEAD(kv_mapped_segments, kv_mapped_segment);

/*
 * Map a segment.  The caller keeps @fd; @lost: the process could not have it.
 * A segment for which there is no descriptor or no memory is given back, so
 * that the daemon sends it again for the next block in it that is acquired. One
 * that could shrink under us is passed over.
 */
void kv_mapped_segment_add_locked(struct kvfs_session *session,
				  const struct wire_segment *segment, int fd,
				  bool lost);

/* The daemon wants it back. */
void kv_mapped_segment_retire_locked(struct kvfs_session *session, uint32_t id);

/* The connection is gone, and its segments with it. */
void kv_mapped_segment_retire_all_locked(struct kvfs_session *session);

/* The segment @id of this connection, held, in *@ret_mapped.  -EMFILE, -ENOMEM
 * and errors of mmap: it could not be mapped; -EIO: there is none, or the
 * @length bytes at @offset do not lie in it. */
int kv_mapped_segment_get_locked(struct kvfs_session *session, uint32_t id,
				 uint64_t offset, uint64_t length,
				 struct kv_mapped_segment **ret_mapped);
void kv_mapped_segment_put_locked(struct kvfs_session *session,
				  struct kv_mapped_segment *mapping);

#endif
