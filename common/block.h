/* SPDX-License-Identifier: Apache-2.0 */
/*
 * block.h - the file of a block: safetensors, and the key in its name.
 *
 * Shared by the daemon and libkvfs.
 */
#ifndef KV_COMMON_BLOCK_H
#define KV_COMMON_BLOCK_H

#include "common/kv.h"
#include "common/layout.h"
#include "common/token_ids.h"

#define KV_BLOCK_FORMAT 1	 /* `kvfs` in __metadata__ */
#define KV_HEADER_MAX (8u << 20) /* a longer JSON header is refused */

/* Lowercase hex of @key; @name has room for KV_NAME_MAX + 1. */
void kv_key_name(const struct kv_key *key, char *name);

/* The reverse; exact form only: 32 or 64 digits of 0-9a-f, else -EINVAL. */
int kv_key_parse(const char *name, struct kv_key *ret_key);

/*
 * Bytes before the payload in a file that kvfs itself makes for @layout: a
 * multiple of KV_PAGE, the same for every block of the space, whatever its
 * key, parent (both up to 32 bytes), position, tokens, and what these are.
 */
uint64_t kv_block_header_bytes(const struct kv_layout *layout);

/*
 * Write those bytes for the block @key to @header.  Deterministic: the same
 * arguments give the same bytes.  With meta->ids if and only if the layout says
 * "token_ids": -EINVAL.
 */
int kv_block_header_write(const struct kv_layout *layout,
			  const struct kv_key *key, const struct kv_meta *meta,
			  void *header);

/*
 * How long the file that begins with the @have bytes at @head must be.
 * Returns -EAGAIN if the header is not complete yet, -EINVAL if this is not
 * the beginning of a safetensors file, -EFBIG if the header is longer than
 * KV_HEADER_MAX, and -EBADMSG if @layout (may be NULL: any) is not its layout:
 * tensor names, dtypes, shapes and file order must all be equal.  Where it says
 * "token_ids" the file must tell them, as many as it tells tokens: else -EINVAL.
 *
 * @ret_payload gets the offset of the payload, @ret_meta parent, position and
 * tokens where __metadata__ says them in kvfs's form, else zeros.  Nothing that
 * @head says is trusted: every length is checked before use, and others may
 * write there meanwhile.  -ENOMEM.
 */
int kv_block_parse(const void *head, size_t have,
		   const struct kv_layout *layout, uint64_t *ret_length,
		   uint64_t *ret_payload, struct kv_meta *ret_meta);

/* What the tokens are of the file that begins so; caller frees.  -ENOENT: it
 * does not tell; -EAGAIN, -EINVAL, -EFBIG, -ENOMEM. */
int kv_block_parse_token_ids(const void *head, size_t have,
			     struct kv_token_ids **ret_ids);

#endif
