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

/* ---- token_ids ---- */

/* HTOP
 * token_ids.h - what a block's tokens are, and an opaque word on them: in a
 * block's header as text, everywhere else as this struct.
 *
 * Shared by the daemon and libkvfs, and by what both have in memory or on disk:
 * the layout of the bytes is fixed, little-endian.
 */

#define KV_TOKEN_IDS_MAX 8192u /* of a block: they fit one message */
#define KV_EXTRAS_MAX 2048u    /* bytes */

/* In the bytes behind it: @n ids, then the extras. */
struct kv_token_ids {
	uint32_t n;
	uint32_t extras_len;
	uint32_t ids[];
};

static inline uint64_t kv_token_ids_bytes(uint32_t n, uint32_t extras_len)
{
	return sizeof(struct kv_token_ids) + (uint64_t)n * sizeof(uint32_t) +
	       extras_len;
}

static inline const uint8_t *
kv_token_ids_extras(const struct kv_token_ids *token_ids)
{
	return (const uint8_t *)(token_ids->ids + token_ids->n);
}

/* How many bytes it is; -EINVAL: not in the @bytes at @data, or its numbers are
 * out of bounds. */
long kv_token_ids_check(const void *data, size_t bytes);

/* A whole copy of it, if it is in the @bytes at @data; caller frees.  -EINVAL,
 * -ENOMEM. */
int kv_token_ids_copy(const void *data, size_t bytes,
		      struct kv_token_ids **ret_copy);

/* Room for members of a header's metadata, for @n ids at most. */
size_t kv_token_ids_text_max(uint32_t n);
/* Write `"token_ids":"1,2,3","extras":"<hex>",`, without extras if there are
 * none; returns how many bytes. */
size_t kv_token_ids_write(const struct kv_token_ids *token_ids, char *text);
/*
 * The reverse, from the two texts (@extras may be NULL); caller frees.  Exact
 * form only: decimal numbers without leading zeros, separated by commas, one at
 * least.  -EINVAL, -ENOMEM.
 */
int kv_token_ids_parse(const char *ids, const char *extras,
		       struct kv_token_ids **ret_token_ids);

#endif
