/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mapped_segment.h - arena segments of the daemon, mapped for reading, and host
 * memory that is attached to a session's device.
 *
 * All calls with session->lock held.
 */
#ifndef KV_KERNELS_SESSION_MAPPED_SEGMENT_H
#define KV_KERNELS_SESSION_MAPPED_SEGMENT_H

#include <sys/queue.h>

#include "common/kv.h"
#include "common/wire.h"

struct kvfs_device;
struct kvfs_session;

/* Part of mapped memory; zeroed, it is not attached. */
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
	int error;	     /* why it could not be mapped, or 0 */
	const uint8_t *base;
	uint64_t bytes;
	unsigned refs; /* held blocks in the segment, and work on it */
	bool retired;  /* unmapped with the last reference */
	struct kv_attached attached;
};
TAILQ_HEAD(kv_mapped_segments, kv_mapped_segment);

/*
 * Map a segment.  The caller keeps @fd; @lost: the process had no descriptor for
 * it.  Without a descriptor or memory the segment is given back, and the daemon
 * sends it again with the next acquired block.  A segment that is not sealed
 * against shrinking is ignored.
 */
void kv_mapped_segment_add_locked(struct kvfs_session *session,
				  const struct wire_segment *segment, int fd,
				  bool lost);

/* The daemon asks for the segment back. */
void kv_mapped_segment_retire_locked(struct kvfs_session *session, uint32_t id);

/* The connection has ended, and with it the use of its segments. */
void kv_mapped_segment_retire_all_locked(struct kvfs_session *session);

/* Hold the segment @id of this connection.  -EMFILE, -ENOMEM and errors of mmap:
 * it could not be mapped; -EIO: unknown, or the @length bytes at @offset do not
 * lie in it. */
int kv_mapped_segment_get_locked(struct kvfs_session *session, uint32_t id,
				 uint64_t offset, uint64_t length,
				 struct kv_mapped_segment **ret_mapped);
void kv_mapped_segment_put_locked(struct kvfs_session *session,
				  struct kv_mapped_segment *mapping);

/* ---- memory attached to a device ---- */

/* The session has a pool on @device.  The first device that attaches memory
 * learns of all segments, now and later. */
void kv_attach_device_locked(struct kvfs_session *session,
			     const struct kvfs_device *device);

/* Ask the daemon for writable memory if the device needs it, once a connection.
 * Call after a connection, a new pool, or an attached segment. */
void kv_attach_ask_locked(struct kvfs_session *session);

/* Attach memory that copies may soon read, or (@writable) write. */
void kv_attach_locked(struct kvfs_session *session, struct kv_attached *a,
		      const void *base, uint64_t bytes, bool writable);

/*
 * Detach memory that no copy uses any more.  False: it is not attached.  Else
 * a thread without a lock calls @detached once the device has let go of it.
 */
bool kv_detach_locked(struct kvfs_session *session, struct kv_attached *a,
		      void (*detached)(struct kvfs_session *session,
				       struct kv_attached *a));

/* Detach queued memory on that thread.  Return whether there was any. */
bool kv_detach_work(struct kvfs_session *session);

#endif
