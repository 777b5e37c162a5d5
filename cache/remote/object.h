/* SPDX-License-Identifier: Apache-2.0 */
/*
 * object.h - the object of a block: the block's file with one entry inserted.
 *
 * The entry "kvfs.object" stands in the header's __metadata__ and holds digest, key,
 * length and parent of the block.  The digest and the length are those of the file
 * without the entry.  An object remains a valid safetensors file.
 */
#ifndef KV_CACHE_REMOTE_OBJECT_H
#define KV_CACHE_REMOTE_OBJECT_H

#include "cache/cache.h"

struct kv_object_entry {
	struct kv_key key, parent; /* parent.len 0: none */
	uint64_t length;	   /* bytes of the file without the entry */
	struct kv_digest digest;   /* of the file without the entry */
};

/*
 * Make the first bytes of the object of the file that begins with the @have bytes at
 * @file.  *@ret_head (caller frees) has *@ret_head_bytes; the object continues with the
 * file from offset *@ret_rest on.
 * -EINVAL  @file does not begin with a whole safetensors header
 * -EFBIG   the header would be longer than KV_HEADER_MAX
 * -ENOMEM
 */
int kv_object_head(const void *file, uint64_t have,
		   const struct kv_object_entry *entry, uint8_t **ret_head,
		   uint64_t *ret_head_bytes, uint64_t *ret_rest);

/*
 * Find the entry of the object of @bytes at @data, which nobody vouches for: no number
 * in it is used before it is bounded.  The file without the entry is: 8 bytes
 * @ret_prefix, the bytes of the object from 8 to *@ret_cut, the bytes from *@ret_next
 * to the end; their sum is ret_entry->length.
 * -EBADMSG  there is no such entry, or its numbers do not agree with the object
 */
int kv_object_parse(const uint8_t *data, uint64_t bytes,
		    struct kv_object_entry *ret_entry, uint8_t ret_prefix[8],
		    uint64_t *ret_cut, uint64_t *ret_next);

#endif
