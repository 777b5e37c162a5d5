/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mapped_segment.h - arena segments of the daemon, mapped read-only, and host
 * memory that is attached to a session's device.
 *
 * All functions are called with session->lock held.
 */
#ifndef KV_KERNELS_SESSION_MAPPED_SEGMENT_H
#define KV_KERNELS_SESSION_MAPPED_SEGMENT_H

#include <sys/queue.h>

#include "common/kv.h"
#include "common/wire.h"

struct kvfs_device;
struct kvfs_session;

/* Host memory that a device may know; embedded in the owner of the memory.  A
 * zeroed struct is not attached. */
struct kv_attached {
	TAILQ_ENTRY(kv_attached) others;
	const struct kvfs_device *device; /* NULL: not attached */
	void *base;
	void (*detached)(struct kvfs_session *session, struct kv_attached *a);
};
TAILQ_HEAD(kv_attached_list, kv_attached);

struct kv_mapped_segment {
	TAILQ_ENTRY(kv_mapped_segment) others;
	uint32_t id;
	uint64_t generation; /* of its connection */
	int error;	     /* errno of the failed mmap, negative; or 0 */
	const uint8_t *base; /* NULL: not mapped */
	uint64_t bytes;
	unsigned refs; /* held blocks and copies that use the segment */
	bool retired;  /* to be unmapped with the last reference */
	struct kv_attached attached;
};
TAILQ_HEAD(kv_mapped_segments, kv_mapped_segment);

/*
 * Map a segment that the daemon has sent in @fd, which the caller closes.
 * @lost: the process could not receive a descriptor.  Without a descriptor or
 * address space the segment is given back to the daemon, which sends it again
 * with the next acquired block.  A segment that is not sealed against shrinking
 * is ignored.
 */
void kv_mapped_segment_add_locked(struct kvfs_session *session,
				  const struct wire_segment *segment, int fd,
				  bool lost);

/* Unmap the segment @id as soon as no block of it is held: the daemon wants its
 * memory back. */
void kv_mapped_segment_retire_locked(struct kvfs_session *session, uint32_t id);

/* Retire all segments, because the connection to their daemon has ended. */
void kv_mapped_segment_retire_all_locked(struct kvfs_session *session);

/* Take a reference to the segment @id of this connection, in which the @length
 * bytes at @offset must lie.
 * -EMFILE, -ENOMEM and errors of mmap(2): the segment could not be mapped
 * -EIO: no such segment, or no such bytes in it */
int kv_mapped_segment_get_locked(struct kvfs_session *session, uint32_t id,
				 uint64_t offset, uint64_t length,
				 struct kv_mapped_segment **ret_mapped);
void kv_mapped_segment_put_locked(struct kvfs_session *session,
				  struct kv_mapped_segment *mapping);

/* ---- memory attached to a device ---- */

/* Note that the session has a pool on @device.  The first device that can
 * attach memory gets all segments, present and future, and a thread to detach
 * them.  -EAGAIN: the thread cannot start. */
int kv_attach_device_locked(struct kvfs_session *session,
			    const struct kvfs_device *device);
/* Detach the memory that is left, and end the thread. */
void kv_attach_end(struct kvfs_session *session);

/* Ask the daemon for segments that may be mapped writable, if the device needs
 * that; once for each connection.  Call this after a connection, a new pool, or
 * a newly attached segment. */
void kv_attach_ask_locked(struct kvfs_session *session);

/* Attach host memory to the session's device, before copies read it or
 * (@writable) write it. */
void kv_attach_locked(struct kvfs_session *session, struct kv_attached *a,
		      const void *base, uint64_t bytes, bool writable);

/* Detach memory that no copy uses any more from its device.  Return false if
 * the memory is not attached.  Otherwise return true; a thread without a lock
 * calls @detached when the device has released the memory. */
bool kv_detach_locked(struct kvfs_session *session, struct kv_attached *a,
		      void (*detached)(struct kvfs_session *session,
				       struct kv_attached *a));

#endif
