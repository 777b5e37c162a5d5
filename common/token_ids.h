/* SPDX-License-Identifier: Apache-2.0 */
/*
 * token_ids.h - what a block's tokens are, and an opaque word on them: in a
 * block's header as text, everywhere else as this struct.
 *
 * Shared by the daemon and libkvfs, and by what both have in memory or on disk:
 * the layout of the bytes is fixed, little-endian.
 */
#ifndef KV_COMMON_TOKEN_IDS_H
#define KV_COMMON_TOKEN_IDS_H

#include "common/kv.h"

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
