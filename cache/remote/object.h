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
#include "common/copy.h"

struct kv_object_entry {
	struct kv_key key, parent; /* parent.len 0: none */
	uint64_t length;	   /* bytes of the file without the entry */
	struct kv_digest digest;   /* of the file without the entry */
};

/* A block's file is the prefix, then the bytes of its object from 8 to @cut,
 * then those from @next to the end: entry.length bytes. */
struct kv_object {
	struct kv_object_entry entry;
	uint8_t prefix[8];
	uint64_t cut, next;
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
 * Find the entry of the object of @bytes at @data, which may be forged: its
 * numbers are checked before use.
 * -EBADMSG  there is no such entry, or its numbers do not agree with the object
 */
int kv_object_parse(const uint8_t *data, uint64_t bytes,
		    struct kv_object *ret_object);
/* Copy the file of the object, of @bytes at @data, to @to, and add it to @hash. */
void kv_object_copy(const struct kv_object *object, const uint8_t *data,
		    uint64_t bytes, struct kv_hash *hash, uint8_t *to);

#endif
