/* SPDX-License-Identifier: Apache-2.0 */
/*
 * block.h - the file of a block: safetensors, its token ids, and the key in its
 * name.
 *
 * Shared by the daemon and libkvfs.
 */
#ifndef KV_COMMON_BLOCK_H
#define KV_COMMON_BLOCK_H

#include "common/kv.h"
#include "common/layout.h"

#define KV_BLOCK_FORMAT 1 /* value of `kvfs` in a header's __metadata__ */
#define KV_HEADER_MAX (8u << 20) /* a longer JSON header is refused */

/* Write @key as lowercase hex; @name has room for KV_NAME_MAX + 1 bytes. */
void kv_key_name(const struct kv_key *key, char *name);

/* Parse a key: exactly 32 or 64 digits of 0-9a-f, else -EINVAL. */
int kv_key_parse(const char *name, struct kv_key *ret_key);

/*
 * Return the bytes before the payload in a file that kvfs itself makes for
 * @layout: a multiple of KV_PAGE, and the same for every block of the space.
 */
uint64_t kv_block_header_bytes(const struct kv_layout *layout);

/* Write the header of the block @key, kv_block_header_bytes long, to @header.
 * Deterministic: the same arguments give the same bytes.  -EINVAL: a bad key,
 * or meta->ids does not agree with the layout's "token_ids". */
int kv_block_header_write(const struct kv_layout *layout,
			  const struct kv_key *key, const struct kv_meta *meta,
			  void *header);

/*
 * Parse the header of a file that begins with the @have bytes at @head.
 * @ret_length gets the file's length, @ret_payload the offset of the payload,
 * @ret_meta parent, position and tokens as far as __metadata__ has them in
 * kvfs's form.  @head is not trusted, and other processes may write to it.
 * -EAGAIN: the header is not complete yet
 * -EINVAL: not a safetensors file, or the layout has "token_ids" and the file
 *          does not have one for each token
 * -EFBIG: the header is longer than KV_HEADER_MAX
 * -EBADMSG: the names, dtypes, shapes or order of the tensors differ from
 *           @layout (NULL: any layout)
 * -ENOMEM
 */
int kv_block_parse(const void *head, size_t have,
		   const struct kv_layout *layout, uint64_t *ret_length,
		   uint64_t *ret_payload, struct kv_meta *ret_meta);

/* Parse the token ids of the file; the caller frees *@ret_ids.  -ENOENT: there
 * are none; -EAGAIN, -EINVAL, -EFBIG, -ENOMEM. */
int kv_block_parse_token_ids(const void *head, size_t have,
			     struct kv_token_ids **ret_ids);

/* ---- token ids ---- */

/* most token ids of a block: they fit one message */
#define KV_TOKEN_IDS_MAX 8192u
#define KV_EXTRAS_MAX 2048u /* bytes */

/*
 * The token ids of a block, and opaque extras.  In a block's header they are
 * text; in memory, messages and the index they are this struct, little-endian.
 */
struct kv_token_ids {
	uint32_t n;
	uint32_t extras_len;
	uint32_t ids[]; /* @n token ids, then @extras_len bytes of extras */
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

/* Return the bytes of the struct at @data.  -EINVAL: more than @bytes, or its
 * numbers are out of bounds. */
long kv_token_ids_check(const void *data, size_t bytes);

/* Copy the struct at @data; the caller frees *@ret_copy.  -EINVAL, -ENOMEM. */
int kv_token_ids_copy(const void *data, size_t bytes,
		      struct kv_token_ids **ret_copy);

/* Write the metadata members `"token_ids":"1,2,3","extras":"<hex>",`, without
 * "extras" if there are none.  Return the bytes written. */
size_t kv_token_ids_write(const struct kv_token_ids *token_ids, char *text);
/*
 * Parse the two texts (@extras may be NULL); the caller frees *@ret_token_ids.
 * Exact form only: one or more decimal numbers without leading zeros, separated
 * by commas.  -EINVAL, -ENOMEM.
 */
int kv_token_ids_parse(const char *ids, const char *extras,
		       struct kv_token_ids **ret_token_ids);

#endif
