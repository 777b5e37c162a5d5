/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record.c - checksums of the index's records and of prologues, and values that
 * are a record followed by texts or numbers.
 *
 * OWNS      nothing.
 *
 * INVARIANTS
 *   (1) A sealed prologue has no field that changes while the block lives: use
 *       counts and pins are in the index alone.
 *
 * LOCKING   none: every function works on its arguments only.
 */
#define XXH_STATIC_LINKING_ONLY /* XXH3_state_t on the stack */
#include <xxhash.h>

#include "index/record.h"

uint64_t kv_record_sum(const void *record, size_t bytes, const void *tail,
		       size_t tail_bytes)
{
	XXH3_state_t state;

	XXH3_64bits_reset(&state);
	XXH3_64bits_update(&state, record, bytes);
	XXH3_64bits_update(&state, tail, tail_bytes);
	return XXH3_64bits_digest(&state);
}

uint64_t kv_slot_sum(const struct kv_slot_record *record, uint64_t slot_id)
{
	return XXH3_64bits_withSeed(
		record, offsetof(struct kv_slot_record, checksum), slot_id);
}

/* Return the checksum of the record @value, which has @bytes in all. */
static uint64_t tokens_sum(const uint8_t *value, size_t bytes, uint64_t slot_id,
			   uint64_t generation)
{
	const size_t at = offsetof(struct kv_tokens_record, n);

	return XXH3_64bits_withSeed(value + at, bytes - at,
				    slot_id ^ generation << 1);
}

int kv_tokens_pack(const struct kv_token_ids *ids, uint64_t slot_id,
		   uint64_t generation, void **ret_value, size_t *ret_bytes)
{
	struct kv_tokens_record record = {.generation = generation};
	const size_t at = offsetof(struct kv_tokens_record, n);
	const size_t bytes = at + kv_token_ids_bytes(ids->n, ids->extras_len);
	uint8_t *value = malloc(bytes);

	_Static_assert(sizeof(struct kv_token_ids) ==
			       sizeof(record) -
				       offsetof(struct kv_tokens_record, n),
		       "the same on disk as in memory");
	if (!value)
		return -ENOMEM;
	memcpy(value + at, ids, bytes - at);
	record.checksum = tokens_sum(value, bytes, slot_id, generation);
	memcpy(value, &record, at);
	*ret_value = value;
	*ret_bytes = bytes;
	return 0;
}

int kv_tokens_unpack(const void *value, size_t bytes, uint64_t slot_id,
		     uint64_t *ret_generation, struct kv_token_ids **ret_ids)
{
	const size_t at = offsetof(struct kv_tokens_record, n);
	struct kv_tokens_record record;
	int r;

	if (bytes < sizeof(record))
		return -EBADMSG;
	memcpy(&record, value, sizeof(record));
	if (record.checksum !=
	    tokens_sum(value, bytes, slot_id, record.generation))
		return -EBADMSG;
	r = kv_token_ids_copy((const uint8_t *)value + at, bytes - at, ret_ids);
	if (r == 0)
		*ret_generation = record.generation;
	return r == -EINVAL ? -EBADMSG : r;
}

uint64_t kv_space_sum(const struct kv_space_record *record, const char *texts)
{
	return KV_SUM_OF(record, texts,
			 (size_t)record->name_len + record->layout_len);
}

uint64_t kv_snapshot_sum(const struct kv_snapshot_record *record,
			 const void *tail)
{
	return KV_SUM_OF(record, tail,
			 record->name_len +
				 (size_t)record->count *
					 sizeof(struct kv_snapshot_item));
}

bool kv_removed_record_whole(const struct kv_removed_record *record)
{
	return record->number &&
	       record->checksum == KV_SUM_OF(record, NULL, 0) &&
	       (record->key_len == 16 || record->key_len == 32);
}

int kv_space_pack(const struct kv_space_record *record, const char *name,
		  const char *layout, char **ret_value, size_t *ret_bytes)
{
	struct kv_space_record copy = *record;
	char *value, *texts;

	copy.name_len = (uint32_t)strlen(name);
	copy.layout_len = (uint32_t)strlen(layout);
	*ret_bytes = sizeof(copy) + copy.name_len + copy.layout_len;
	value = malloc(*ret_bytes);
	if (!value)
		return -ENOMEM;
	texts = value + sizeof(copy);
	memcpy(texts, name, copy.name_len);
	memcpy(texts + copy.name_len, layout, copy.layout_len);
	copy.checksum = kv_space_sum(&copy, texts);
	memcpy(value, &copy, sizeof(copy));
	*ret_value = value;
	return 0;
}

int kv_space_unpack(const void *value, size_t bytes, uint64_t id,
		    struct kv_space_record *ret_record, char **ret_name,
		    char **ret_layout)
{
	const char *texts = (const char *)value + sizeof(*ret_record);
	struct kv_space_record record;
	char *name, *layout;

	if (bytes < sizeof(record))
		return -EBADMSG;
	memcpy(&record, value, sizeof(record));
	if (bytes != (uint64_t)sizeof(record) + record.name_len +
			     record.layout_len ||
	    record.id != id || record.checksum != kv_space_sum(&record, texts))
		return -EBADMSG;
	name = strndup(texts, record.name_len);
	layout = strndup(texts + record.name_len, record.layout_len);
	if (!name || !layout) {
		free(name);
		free(layout);
		return -ENOMEM;
	}
	*ret_record = record;
	*ret_name = name;
	*ret_layout = layout;
	return 0;
}

void kv_store_info_pack(const struct kv_store_info *info,
			struct kv_store_record *ret_record)
{
	*ret_record = (struct kv_store_record){
		.magic = KV_STORE_MAGIC,
		.version = info->version ? info->version : KV_FORMAT_VERSION,
		.mounts = info->mounts,
		.cap = info->cap,
		.segment_bytes = info->segment_bytes,
		.next_generation = info->next_generation,
		.next_space = info->next_space,
		.clean = info->clean,
	};
	memcpy(ret_record->store, info->store, sizeof(ret_record->store));
	ret_record->checksum = KV_SUM_OF(ret_record, NULL, 0);
}

/* Check the version first: a store record of a newer one may be larger. */
int kv_store_info_unpack(const void *value, size_t bytes,
			 struct kv_store_info *ret_info)
{
	const size_t head = offsetof(struct kv_store_record, mounts);
	struct kv_store_record record;

	if (bytes < head)
		return -EBADMSG;
	memcpy(&record, value, head);
	if (record.magic != KV_STORE_MAGIC)
		return -EBADMSG;
	if (record.version > KV_FORMAT_VERSION)
		return -ENOTSUP;
	if (bytes != sizeof(record))
		return -EBADMSG;
	memcpy(&record, value, sizeof(record));
	if (record.checksum != KV_SUM_OF(&record, NULL, 0) ||
	    record.version == 0 || record.segment_bytes == 0 ||
	    record.segment_bytes % KV_SEGMENT_UNIT ||
	    record.segment_bytes > KV_SEGMENT_MAX)
		return -EBADMSG;
	if (record.version < KV_FORMAT_VERSION)
		return -ENOTSUP;
	*ret_info = (struct kv_store_info){
		.version = record.version,
		.cap = record.cap,
		.segment_bytes = record.segment_bytes,
		.next_generation = record.next_generation,
		.next_space = record.next_space,
		.mounts = record.mounts,
		.clean = record.clean,
	};
	memcpy(ret_info->store, record.store, sizeof(record.store));
	return 0;
}

static uint64_t prologue_sum(const struct kv_prologue *prologue)
{
	return XXH3_64bits(prologue,
			   offsetof(struct kv_prologue, record.checksum));
}

void kv_prologue_seal(struct kv_prologue *prologue, const uint8_t store[16])
{
	prologue->magic = KV_PROLOGUE_MAGIC;
	prologue->version = KV_PROLOGUE_VERSION;
	prologue->reserved = 0;
	memcpy(prologue->store, store, sizeof(prologue->store));
	prologue->record.atime = 0;
	prologue->record.hits = 0;
	prologue->record.pinned = 0;
	prologue->record.checksum = prologue_sum(prologue);
}

int kv_prologue_check(const struct kv_prologue *prologue,
		      const uint8_t store[16])
{
	if (prologue->magic != KV_PROLOGUE_MAGIC ||
	    prologue->version != KV_PROLOGUE_VERSION ||
	    memcmp(prologue->store, store, sizeof(prologue->store)) != 0 ||
	    prologue->record.checksum != prologue_sum(prologue))
		return -EBADMSG;
	return 0;
}
