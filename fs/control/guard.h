/* SPDX-License-Identifier: Apache-2.0 */
/*
 * guard.h - copy from memory that a client can take away while we read.
 *
 * F_SEAL_SHRINK keeps a client from cutting its staging short, but not from
 * punching a hole in it; where no 2 MiB page is free for the hole the kernel
 * answers the reader with SIGBUS.  A guarded copy turns that into an error.
 */
#ifndef KV_FS_CONTROL_GUARD_H
#define KV_FS_CONTROL_GUARD_H

#include "common/copy.h"

/* Take SIGBUS for the process; one that no guard waits for still kills it.
 * More than once is fine. */
void kv_guard_install(void);

/* kv_hash_copy, or -EFAULT if a byte of @src cannot be read; then @dst holds
 * anything and @hash must be begun anew. */
int kv_guard_hash_copy(struct kv_hash *hash, void *dst, const void *src,
		       size_t n);

/* kv_copy_stream, or -EFAULT in the same way. */
int kv_guard_copy(void *dst, const void *src, size_t n);

#endif
