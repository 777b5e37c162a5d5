/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record.h - checksums of the index's records; index/ only.
 *
 * The checksum covers the record's key, so that a record under another key counts
 * as damaged.
 */
#ifndef KV_INDEX_RECORD_H
#define KV_INDEX_RECORD_H

#include "index/index.h"

/* Return the checksum of *@record and of the @bytes of @tail that follow the
 * record. */
#define KV_SUM_OF(record, tail, bytes)                                         \
	kv_record_sum(record, offsetof(__typeof__(*(record)), checksum), tail, \
		      bytes)
uint64_t kv_record_sum(const void *record, size_t bytes, const void *tail,
		       size_t tail_bytes);

uint64_t kv_slot_sum(const struct kv_slot_record *record, uint64_t slot_id);
/* @texts: name_len bytes of name, then layout_len bytes of layout. */
uint64_t kv_space_sum(const struct kv_space_record *record, const char *texts);
/* @tail: name_len bytes of name, then the items. */
uint64_t kv_snapshot_sum(const struct kv_snapshot_record *record,
			 const void *tail);

/* Make the value of a block's token ids: the sealed record, the numbers and the
 * extras.  The caller frees it. */
int kv_tokens_pack(const struct kv_token_ids *ids, uint64_t slot_id,
		   uint64_t generation, void **ret_value, size_t *ret_bytes);
/* Parse a value of kv_tokens_pack; the caller frees *@ret_ids.  -EBADMSG:
 * damaged, or the value of another slot. */
int kv_tokens_unpack(const void *value, size_t bytes, uint64_t slot_id,
		     uint64_t *ret_generation, struct kv_token_ids **ret_ids);

/* Check the checksum of a tombstone and the lengths in it. */
bool kv_removed_record_whole(const struct kv_removed_record *record);

/* Make the value of a space: the sealed record, the name and the layout.  The
 * caller frees it. */
int kv_space_pack(const struct kv_space_record *record, const char *name,
		  const char *layout, char **ret_value, size_t *ret_bytes);
/* Parse a value of kv_space_pack; the caller frees both texts.  -EBADMSG:
 * damaged, or the value of a space other than @id. */
int kv_space_unpack(const void *value, size_t bytes, uint64_t id,
		    struct kv_space_record *ret_record, char **ret_name,
		    char **ret_layout);

void kv_store_info_pack(const struct kv_store_info *info,
			struct kv_store_record *ret_record);
/* Parse a store record.  -EBADMSG: damaged; -ENOTSUP: another format. */
int kv_store_info_unpack(const void *value, size_t bytes,
			 struct kv_store_info *ret_info);

#endif
