/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device.h - where a pool's pages live: a device is a table of calls.
 *
 * The library calls load and save on its copy threads, several at a time; they
 * return when the bytes are there, so whatever a device has under way ends
 * with the call that began it.  The other calls are short.  A member that is
 * NULL is one that the device has no need of, except where it says otherwise.
 */
#ifndef KV_KERNELS_DEVICE_DEVICE_H
#define KV_KERNELS_DEVICE_DEVICE_H

#include "common/kv.h"

struct kvfs_pool_desc;
struct kvfs_pool_info;

/*
 * A part of a block that lies in the pool in even steps.  Its bytes are, for
 * each of the block's pages in order, @count runs of @bytes: run s of page p is
 * at base + p * block_stride + s * segment_stride in the pool, and the stride
 * begins at @offset of the block's tensors.
 */
struct kv_stride {
	uint64_t offset;
	uint8_t *base;
	uint64_t block_stride;
	uint64_t bytes;
	uint64_t count;
	uint64_t segment_stride;
};

/* All of a block, in the order of its tensors' bytes. */
struct kv_strides {
	uint32_t pages_per_block;
	size_t n;
	struct kv_stride *stride;
};

/* Bytes of a block's tensors, from..to. */
struct kv_range {
	uint64_t from, to;
};

/* A block: its tensors in host memory, and its pages_per_block pages.  Of a
 * batch with ranges only their bytes of the tensors need be there. */
struct kv_copy {
	uint8_t *tensors;     /* a load does not write to it */
	const int64_t *pages; /* -1: passed over */
};

/* Blocks that are copied in one go, and what of each. */
struct kv_batch {
	const struct kv_strides *strides;
	const struct kv_range *ranges; /* ascending, apart; none: all of it */
	size_t n_ranges;
	const struct kv_copy *copies;
	size_t n;
	void *event_wait; /* what must be over before; NULL: nothing */
	int priority;
	/*
	 * To be called once by load or save, on its thread, when the device has
	 * been given all of the batch, so that the rest happens by itself;
	 * NULL: nobody wants to know.  @event_wait stands for the batch's end:
	 * it becomes the library's, which frees it when load or save has
	 * returned.  A device that cannot say it returns without having called.
	 */
	void (*submitted)(const struct kv_batch *batch, void *event_wait);
	void *owner; /* submitted's */
};

#define KV_DEVICE_VERSION 3u

struct kv_device {
	uint32_t version; /* KV_DEVICE_VERSION: what this table looks like */
	const char *name; /* as in kvfs_pool_desc, before any colon */
	uint64_t batch_bytes; /* that a thread best takes at once; 0: a block */

	/* A pool of this device; -EINVAL: its memory is not there, -ENODEV. */
	int (*open)(const struct kvfs_pool_desc *desc, void **ret_pool);
	void (*close)(void *pool);
	/* Fill in what the device knows: path, reason and the like.  Needed. */
	void (*info)(void *pool, struct kvfs_pool_info *ret_info);

	/* Needed.  0, or why none of the batch counts as copied (-EIO). */
	int (*load)(void *pool, const struct kv_batch *batch);
	int (*save)(void *pool, const struct kv_batch *batch);

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
	 * *ret_base, and room for @max_bytes there.  @name: "cuda:1".  Needed.
	 * -ENOMEM. */
	int (*reserve)(const char *name, uint64_t bytes, uint64_t max_bytes,
		       void **ret_memory, void **ret_base);
	int (*grow)(void *memory, uint64_t bytes); /* to @bytes; -ENOMEM */
	void (*release)(void *memory);
	/* The descriptor of the file that is mapped there, all of @max_bytes,
	 * as long as that: the caller's from now on.  NULL, -1: none. */
	int (*take_fd)(void *memory);

	/* The buffers that copies of this pool are staged in, where they are:
	 * @buffers of @bytes each for a copy thread, as far as is good; others'
	 * pools may have it so, too.  May wait for batches under way. -ENOMEM:
	 * what there is stays. */
	int (*staging)(void *pool, uint64_t bytes, unsigned buffers);
};

extern const struct kv_device kv_device_host;

/*
 * The device of that name: "host", or the one that libkvfs-NAME.so.1 has as
 * kv_device_NAME; NULL: there is no such library, or none for this version of
 * this header.  It is looked for beside the library (or program) that this is
 * part of, and then where the dynamic linker looks, and stays loaded.  @name:
 * lowercase letters, up to a colon, as in "cuda:1".
 */
const struct kv_device *kv_device_find(const char *name);

#endif
