/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record.h - checksums of the index's records; index/ only.
 *
 * _seal fills the checksum in; _whole says whether it is right.  Each is bound
 * to the record's key, so that a record under another's key is damaged too.
 */
#ifndef KV_RECORD_H
#define KV_RECORD_H

#include "index/format.h"

void kv_slot_record_seal(struct kv_slot_record *record, uint64_t slot_id);
bool kv_slot_record_whole(const struct kv_slot_record *record,
			  uint64_t slot_id);

/* @texts: name_len bytes of name, then layout_len bytes of layout. */
void kv_space_record_seal(struct kv_space_record *record, const char *texts);
bool kv_space_record_whole(const struct kv_space_record *record, uint64_t id,
			   const char *texts);

void kv_segment_record_seal(struct kv_segment_record *record);
bool kv_segment_record_whole(const struct kv_segment_record *record,
			     uint64_t id);

void kv_store_record_seal(struct kv_store_record *record);
bool kv_store_record_whole(const struct kv_store_record *record);

#endif
