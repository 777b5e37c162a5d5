/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvfs_device.h - where a pool's pages live: a device is a table of calls.
 *
 * A device of the name NAME (lowercase letters) is a shared library
 * libkvfs-NAME.so.1 with the symbol kvfs_device_NAME, a const struct
 * kvfs_device.  A pool whose description says "NAME" or "NAME:..." has it
 * loaded: from beside libkvfs, or if it is not there from where the dynamic
 * linker looks.  It stays loaded.  It needs nothing of libkvfs but this header;
 * libkvfs(3) knows the calls that it makes by no other way.  libkvfs-device(7)
 * tells more.  (In C++ the symbol is defined as extern in extern "C": a const by
 * itself is seen in its own file only.)
 *
 * Version.  What is in this header is KVFS_DEVICE_VERSION of it.  A table of
 * another version is not used (the pool is refused, -ENODEV): it grows at its
 * end only, and each change of it, or of what a call promises, is a new one.
 *
 * What must be there.  info, load and save; and of these groups all or none:
 *
 *   attach, detach                                  and only then needs_writable
 *   event_wait, event_wait_is_done, event_wait_free          and only then order,
 *                                                   default_stream
 *   reserve, grow, release                                 and only then take_fd
 *
 * Any other member may be NULL.  The table is looked at when it is loaded: one
 * that lacks something, or whose name is not NAME, is not used (-ENODEV), and a
 * line on stderr says what it lacks.
 *
 * Errors are 0, or an errno of Linux, negative.  Anything else is taken for -EIO
 * (but take_fd's, for none), and so are -EAGAIN and -EINPROGRESS, with which
 * somebody would wait for ever, and 0 where what is to be returned is NULL (but
 * open's, which may be).  Calls come from any thread and from several at a time,
 * without a lock of libkvfs held, but for what is said otherwise.  Load and save
 * are called on copy threads of libkvfs, four a session at most, and return
 * when the bytes are there, so whatever a device has under way ends with the
 * call that began it.  The other calls are short.
 *
 * A device never writes to what it loads from, nor to pages that it saves from.
 * In the child of a fork no call is made.
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

/*
 * A part of a block that lies in the pool in even steps.  Its bytes are, for
 * each of the block's pages in order, @count runs of @bytes: run s of page p is
 * at base + p * block_stride + s * segment_stride in the pool, and the stride
 * begins at @offset of the block's tensors.
 */
struct kvfs_stride {
	uint64_t offset;
	uint8_t *base;
	uint64_t block_stride;
	uint64_t bytes;
	uint64_t count;
	uint64_t segment_stride;
};

/* All of a block, in the order of its tensors' bytes. */
struct kvfs_strides {
	uint32_t pages_per_block;
	size_t n;
	struct kvfs_stride *stride;
};

/* Bytes of a block's tensors, from..to. */
struct kvfs_range {
	uint64_t from, to;
};

/* A block: its tensors in host memory, and its pages_per_block pages.  Of a
 * batch with ranges only their bytes of the tensors need be there. */
struct kvfs_copy {
	uint8_t *tensors;     /* a load does not write to it */
	const int64_t *pages; /* -1: passed over */
};

/* Blocks that are copied in one go, and what of each. */
struct kvfs_batch {
	const struct kvfs_strides *strides;
	const struct kvfs_range *ranges; /* ascending, apart; none: all of it */
	size_t n_ranges;
	const struct kvfs_copy *copies;
	size_t n;
	void *event_wait; /* what must be over before; NULL: nothing */
	int priority;
	/*
	 * To be called once by load or save, on its thread, when the device has
	 * been given all of the batch, so that the rest happens by itself;
	 * NULL: nobody wants to know.  @event_wait stands for the batch's end:
	 * it becomes the library's, which frees it when load or save has
	 * returned.  A device that cannot say it returns without having called.
	 * NULL, and what is said a second time, is not heard.
	 */
	void (*submitted)(const struct kvfs_batch *batch, void *event_wait);
	void *owner; /* submitted's */
};

struct kvfs_device {
	uint32_t version;     /* KVFS_DEVICE_VERSION */
	const char *name;     /* NAME: what kvfs_pool_desc has before a colon */
	uint64_t batch_bytes; /* that a thread best takes at once; 0: a block */

	/* A pool of this device; -EINVAL: its memory is not there, -ENODEV. */
	int (*open)(const struct kvfs_pool_desc *desc, void **ret_pool);
	void (*close)(void *pool);
	/* Fill in what the device knows: path and reason (texts that are there
	 * until close), bytes_pinned, _registered and _refused, buffers and
	 * buffer_bytes.  The rest is the library's. */
	void (*info)(void *pool, struct kvfs_pool_info *ret_info);

	/* 0, or none of the batch counts as copied, and its blocks end with
	 * -EIO, whatever the error. */
	int (*load)(void *pool, const struct kvfs_batch *batch);
	int (*save)(void *pool, const struct kvfs_batch *batch);

	/* Host memory that loads come from, or (@writable) saves go to: about
	 * to be used, and about to be unmapped.  No batch uses it when it is
	 * detached.  attach only takes note, a lock may be held; detach, which
	 * goes with it, may take its time. */
	void (*attach)(void *base, uint64_t bytes, bool writable);
	void (*detach)(void *base);
	/* Whether what is attached must be such that this process may write it,
	 * to be of use; a lock may be held. */
	bool (*needs_writable)(void);

	/* Take note of all that @stream has been given so far (or what @event
	 * stands for): an event wait is done when that is over. */
	int (*event_wait)(void *pool, void *stream, void *event,
			  void **ret_event_wait);
	bool (*event_wait_is_done)(void *event_wait);
	void (*event_wait_free)(void *event_wait);

	/* Work given to @stream from now on comes after @event_wait: on the
	 * device, by what it has been given already.  Nobody is blocked, and
	 * nothing that is not submitted is ever waited for.  The event wait may
	 * be freed afterwards.  NULL: no stream can wait.  -EINVAL: no stream;
	 * -EBUSY: it is being captured. */
	int (*order)(void *event_wait, void *stream);

	/* Memory of the device that is the library's own: @bytes of it now at
	 * *ret_base, and room for @max_bytes there.  @name: "cuda:1".  NULL:
	 * kvfs_pool_reserve() is -EOPNOTSUPP.  -ENOMEM. */
	int (*reserve)(const char *name, uint64_t bytes, uint64_t max_bytes,
		       void **ret_memory, void **ret_base);
	int (*grow)(void *memory, uint64_t bytes); /* to @bytes; -ENOMEM */
	void (*release)(void *memory);
	/* The descriptor of the file that is mapped there, all of @max_bytes,
	 * as long as that: the caller's from now on.  NULL, -1: none.  It is
	 * not used if that file is not mapped there. */
	int (*take_fd)(void *memory);

	/* The buffers that copies of this pool are staged in, where they are:
	 * @buffers of @bytes each for a copy thread, as far as is good; others'
	 * pools may have it so, too.  May wait for batches under way. -ENOMEM:
	 * what there is stays. */
	int (*staging)(void *pool, uint64_t bytes, unsigned buffers);

	/* The stream that kernels run in when a program names none: what a
	 * caller's NULL stands for.  NULL: there is none, and such a call comes
	 * after nothing. */
	void *default_stream;
};

#ifdef __cplusplus
}
#endif

#endif
