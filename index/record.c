/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record.c - checksums of the index's records.
 *
 * OWNS      nothing.
 *
 * LOCKING   none: every function works on its arguments only.
 */
#define XXH_STATIC_LINKING_ONLY /* XXH3_state_t on the stack */
#include <xxhash.h>

#include "index/record.h"

static uint64_t slot_sum(const struct kv_slot_record *record, uint64_t slot_id)
{
	return XXH3_64bits_withSeed(
		record, offsetof(struct kv_slot_record, checksum), slot_id);
}

void kv_slot_record_seal(struct kv_slot_record *record, uint64_t slot_id)
{
	record->checksum = slot_sum(record, slot_id);
}

bool kv_slot_record_whole(const struct kv_slot_record *record, uint64_t slot_id)
{
	return record->checksum == slot_sum(record, slot_id);
}

static uint64_t space_sum(const struct kv_space_record *record,
			  const char *texts)
{
	XXH3_state_t state;

	XXH3_64bits_reset(&state);
	XXH3_64bits_update(&state, record,
			   offsetof(struct kv_space_record, checksum));
	XXH3_64bits_update(&state, texts,
			   (size_t)record->name_len + record->layout_len);
	return XXH3_64bits_digest(&state);
}

void kv_space_record_seal(struct kv_space_record *record, const char *texts)
{
	record->checksum = space_sum(record, texts);
}

bool kv_space_record_whole(const struct kv_space_record *record, uint64_t id,
			   const char *texts)
{
	return record->id == id && record->checksum == space_sum(record, texts);
}

static uint64_t segment_sum(const struct kv_segment_record *record)
{
	return XXH3_64bits(record,
			   offsetof(struct kv_segment_record, checksum));
}

void kv_segment_record_seal(struct kv_segment_record *record)
{
	record->checksum = segment_sum(record);
}

bool kv_segment_record_whole(const struct kv_segment_record *record,
			     uint64_t id)
{
	return record->id == id && record->checksum == segment_sum(record);
}

static uint64_t store_sum(const struct kv_store_record *record)
{
	return XXH3_64bits(record, offsetof(struct kv_store_record, checksum));
}

void kv_store_record_seal(struct kv_store_record *record)
{
	record->checksum = store_sum(record);
}

bool kv_store_record_whole(const struct kv_store_record *record)
{
	return record->checksum == store_sum(record);
}
