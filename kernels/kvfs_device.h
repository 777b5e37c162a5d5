/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvfs_device.h - the memory of a pool's pages: a device is a table of calls.
 *
 * A device of the name NAME (lowercase letters) is a shared library
 * libkvfs-NAME.so.1 with the symbol kvfs_device_NAME, a const struct
 * kvfs_device.  A pool whose description has "NAME" or "NAME:..." loads the
 * library: from libkvfs's own directory, or else from the dynamic linker's
 * path.  The library stays loaded.  The plug-in needs only this header of
 * libkvfs, and libkvfs calls it only through the table.  libkvfs-device(7) has
 * the details.  (In C++ define the symbol as extern in extern "C": a const
 * alone is local to its file.)
 *
 * Version.  This header is version KVFS_DEVICE_VERSION.  A table of another
 * version is refused (the pool is -ENODEV).  The table grows at its end only,
 * and each change of the table, or of the promise of a call, is a new version.
 *
 * Required members: info, load and save; and of these groups all or none:
 *
 *   attach, detach                                  and only then needs_writable
 *   event_wait, event_wait_is_done, event_wait_free          and only then order,
 *                                                   default_stream
 *   reserve, grow, release                                 and only then take_fd
 *
 * Any other member may be NULL.  libkvfs checks the table when it is loaded: a
 * table without a required member, or whose name is not NAME, is refused
 * (-ENODEV), and a line on standard error names the member.
 *
 * Calls return 0 or a negative errno of Linux.  libkvfs treats any other value
 * as -EIO (take_fd: as no descriptor); also -EAGAIN and -EINPROGRESS, for which
 * a caller would wait for ever, and 0 with a result that is NULL (but open's).
 * Calls come from any thread and from several at a time, without a lock of
 * libkvfs held, unless a comment says otherwise.  Load and save are called on
 * copy threads of libkvfs, at most four a session, and return when the copies
 * are complete: no copy outlives its call.  The other calls are short.
 *
 * A device never writes to the host memory that it loads from, nor to pages
 * that it saves from.  In the child of a fork no call is made.
 */
#ifndef KVFS_DEVICE_H
#define KVFS_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvfs.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVFS_DEVICE_VERSION 4u

/* A part of a block at even distances in the pool: @count runs of @bytes in
 * each of the block's pages.  Run s of page p is at base + p * block_stride + s
 * * segment_stride.  The part begins at byte @offset of the block's tensors. */
struct kvfs_stride {
	uint64_t offset;
	uint8_t *base;
	uint64_t block_stride;
	uint64_t bytes;
	uint64_t count;
	uint64_t segment_stride;
};

/* The parts that make up a block, in the order of the tensors' bytes. */
struct kvfs_strides {
	uint32_t pages_per_block;
	size_t n;
	struct kvfs_stride *stride;
};

/* The bytes from .. to of a block's tensors. */
struct kvfs_range {
	uint64_t from, to;
};

/* A block: its tensors in host memory, and its pages_per_block pages.  If the
 * batch has ranges, only these bytes of the tensors are used. */
struct kvfs_copy {
	uint8_t *tensors;     /* a load must not write to them */
	const int64_t *pages; /* page numbers; -1: skip the page */
};

/* Blocks to be copied in one call, and the bytes to copy of each. */
struct kvfs_batch {
	const struct kvfs_strides *strides;
	const struct kvfs_range *ranges; /* disjoint, ascending; NULL: all */
	size_t n_ranges;
	const struct kvfs_copy *copies;
	size_t n;
	void *event_wait; /* the copies wait for its end; NULL: none */
	int priority;
	/*
	 * Load or save calls this once, on its thread, when the device was
	 * given all copies of the batch; NULL: do not call.  @event_wait stands
	 * for the end of the copies; libkvfs takes the event wait over, and
	 * frees it after load or save has returned.  A device that cannot make
	 * one returns without the call.  A NULL, and a second call, are
	 * ignored.
	 */
	void (*submitted)(const struct kvfs_batch *batch, void *event_wait);
	void *owner; /* libkvfs's, for its function @submitted */
};

struct kvfs_device {
	uint32_t version;     /* KVFS_DEVICE_VERSION */
	const char *name;     /* NAME, before a colon in kvfs_pool_desc */
	uint64_t batch_bytes; /* preferred bytes of a batch; 0: one block */

	/* Open a pool.  -EINVAL: the views' memory does not exist; -ENODEV. */
	int (*open)(const struct kvfs_pool_desc *desc, void **ret_pool);
	void (*close)(void *pool);
	/* Set path and reason (texts valid until close), bytes_pinned,
	 * bytes_registered, bytes_refused, buffers and buffer_bytes.  libkvfs
	 * sets the other members. */
	void (*info)(void *pool, struct kvfs_pool_info *ret_info);

	/* Copy a batch.  After an error no block of the batch counts as copied,
	 * and all blocks end with -EIO. */
	int (*load)(void *pool, const struct kvfs_batch *batch);
	int (*save)(void *pool, const struct kvfs_batch *batch);

	/*
	 * Tell the device about host memory for loads, or (@writable) for
	 * saves: attach before the memory is used, detach before it is
	 * unmapped, when no batch uses it.  attach only records the memory, and
	 * may be called with a lock held.  detach, called once for each attach,
	 * may take long.
	 */
	void (*attach)(void *base, uint64_t bytes, bool writable);
	void (*detach)(void *base);
	/* Return whether this process must be able to write to attached memory,
	 * so that the device can use the memory.  May be called with a lock
	 * held. */
	bool (*needs_writable)(void);

	/* Make an event wait, which is done when the work that @stream was
	 * given so far, or that @event stands for, is over. */
	int (*event_wait)(void *pool, void *stream, void *event,
			  void **ret_event_wait);
	bool (*event_wait_is_done)(void *event_wait);
	void (*event_wait_free)(void *event_wait);

	/*
	 * Order work that @stream is given from now on after @event_wait, on
	 * the device.  No thread waits, and all work of the event wait was
	 * submitted.  The event wait may be freed afterwards.  NULL: streams
	 * cannot wait.
	 * -EINVAL: an invalid stream
	 * -EBUSY: the stream is being captured
	 */
	int (*order)(void *event_wait, void *stream);

	/* Allocate @bytes of the device's memory for libkvfs at *@ret_base, in
	 * an address range of @max_bytes.  @name: such as "cuda:1".  NULL:
	 * kvfs_pool_reserve() is -EOPNOTSUPP.  -ENOMEM. */
	int (*reserve)(const char *name, uint64_t bytes, uint64_t max_bytes,
		       void **ret_memory, void **ret_base);
	/* Grow the memory to @bytes.  -ENOMEM. */
	int (*grow)(void *memory, uint64_t bytes);
	void (*release)(void *memory);
	/* Return, and give to the caller, the descriptor of the file of
	 * @max_bytes that is mapped at the memory; -1, or a NULL call: there is
	 * none.  libkvfs checks that the file is mapped there. */
	int (*take_fd)(void *memory);

	/* Set the staging buffers of the pool's copies, if the device has any:
	 * @buffers of @bytes each for a copy thread, within the device's
	 * limits.  May change the buffers of other pools, and wait for batches
	 * in flight.  -ENOMEM: nothing was changed. */
	int (*staging)(void *pool, uint64_t bytes, unsigned buffers);

	/* The stream that a caller of libkvfs means by NULL.  NULL: the device
	 * has none, and copies wait for no stream. */
	void *default_stream;
};

#ifdef __cplusplus
}
#endif

#endif
