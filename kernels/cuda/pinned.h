/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pinned.h - host memory that batches come from or go to, registered with
 * the driver in the background, a chunk at a time.
 */
#ifndef KV_KERNELS_CUDA_PINNED_H
#define KV_KERNELS_CUDA_PINNED_H

#include "kernels/cuda/gpu.h"

/* Small enough that none waits long for one to be over, large enough that the
 * driver's cost of a call does not count. */
#define KV_PINNED_CHUNK ((uint64_t)64 << 20)

/* How memory of the arena came to be registered, or did not. */
enum kv_pinned_way {
	KV_PINNED_NONE,	     /* nothing was tried yet */
	KV_PINNED_READ_ONLY, /* as it is mapped */
	KV_PINNED_WRITABLE,  /* an open segment, made writable for that */
	KV_PINNED_REFUSED,   /* neither would do */
};

struct kv_pinned_info {
	enum kv_pinned_way way;
	uint64_t bytes_registered, bytes_refused;
};

/* Register from now on, with @gpu's context; until stop, which ends the thread
 * and takes back all registrations.  -EAGAIN, -ENOMEM. */
int kv_pinned_start(struct kv_gpu *gpu);
void kv_pinned_stop(void);

/* kvfs_device.h's attach, detach and needs_writable. */
void kv_pinned_add(void *base, uint64_t bytes, bool writable);
void kv_pinned_remove(void *base);
bool kv_pinned_needs_writable(void);

/*
 * How many of the @n bytes at @at are alike: all of one chunk that is
 * registered (@ret_direct), or all of memory that is not.  At least 1.
 */
uint64_t kv_pinned_look(const void *at, uint64_t n, bool *ret_direct);

/* Whether all of them are registered, in one chunk or several: a kernel, which
 * takes addresses as they come, can reach them. */
bool kv_pinned_has(const void *at, uint64_t n);

void kv_pinned_get_info(struct kv_pinned_info *ret_info);

#endif
