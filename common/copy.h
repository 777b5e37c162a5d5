/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy.h - copies that bypass the CPU's cache.
 *
 * The instructions are chosen at run time: AVX-512, AVX2, else memcpy.  Regions
 * must not overlap.
 */
#ifndef KV_COMMON_COPY_H
#define KV_COMMON_COPY_H

#include "common/kv.h"

/* Copy with non-temporal stores; fenced on return.  Any alignment, any size. */
void kv_copy_stream(void *dst, const void *src, size_t n);

/*
 * Copy @rows runs of @n bytes, @dst_next and @src_next bytes apart.  The stores
 * are not fenced: call kv_copy_fence() before another thread may read them.
 * Several runs are copied side by side, so small runs are cheap.
 */
void kv_copy_rows(void *dst, size_t dst_next, const void *src, size_t src_next,
		  size_t n, size_t rows);
void kv_copy_fence(void);

/*
 * Copy and hash in one pass.  The digest is that of the bytes written to @dst
 * even if @src changes meanwhile: each piece is read once, into a private
 * buffer that stays in the CPU's cache, and is hashed and stored from the
 * buffer.  Call kv_hash_begin before each digest.
 */
struct kv_hash;
int kv_hash_new(struct kv_hash **ret_hash); /* -ENOMEM */
void kv_hash_free(struct kv_hash *hash);
void kv_hash_begin(struct kv_hash *hash);
void kv_hash_update(struct kv_hash *hash, const void *data, size_t n);
void kv_hash_copy(struct kv_hash *hash, void *dst, const void *src, size_t n);
struct kv_digest kv_hash_end(struct kv_hash *hash);

/* Return the digest of a region of memory. */
struct kv_digest kv_digest_of(const void *data, size_t n);

#endif
