/* SPDX-License-Identifier: Apache-2.0 */
/*
 * staged.h - saves of the clients of a fuzzed daemon: offsets in their staging, tokens of
 * their blocks, and a check of listed tokens.
 *
 * OWNS      nothing: the caller makes the staging.
 */
#ifndef KV_TESTS_FUZZ_STAGED_H
#define KV_TESTS_FUZZ_STAGED_H

#include "common/block.h"
#include "tests/fs/peer.h"
#include "tests/fuzz/fuzz.h"

enum { KEYS = 12, PAYLOAD = 20000 };

/* Offsets of two words at the end of the staging memory: one says that its
 * pages are lent to the daemon, the other that the client has taken them
 * back. */
enum { LENT = KEYS * PAYLOAD, TAKEN_BACK = LENT + 4, TOLD_AT = LENT + 8 };

/* After these words the staging memory has copies of the blocks, each followed
 * by its token ids. */
enum { TOLD_BYTES = PAYLOAD + 4096, STAGING = TOLD_AT + KEYS * TOLD_BYTES };

static const char layout[] =
	"{\"tensors\":[{\"name\":\"k\",\"dtype\":\"U8\",\"shape\":[20000]}]}";
static const char told_layout[] =
	"{\"tensors\":[{\"name\":\"k\",\"dtype\":\"U8\",\"shape\":[20000]}],"
	"\"tokens\":4,\"token_ids\":true}";

/* Return the token ids of a key.  Depending on the size of the block's extras,
 * the index has the ids, or only the block has them. */
static inline struct kv_token_ids *ids_of(uint32_t key)
{
	static const uint32_t extras[] = {0, 60, KV_EXTRAS_MAX};
	const uint32_t n = 1 + key % 4, len = extras[key % 3];
	struct kv_token_ids *ids = malloc(kv_token_ids_bytes(n, len));

	fuzz_must(ids);
	ids->n = n;
	ids->extras_len = len;
	for (uint32_t i = 0; i < n; i++)
		ids->ids[i] = key * 1000003 + i;
	memset(ids->ids + n, (int)key, len);
	return ids;
}

/* Return the offset in the staging memory of the bytes of block @key, with
 * token ids (@told) or without. */
static inline uint32_t staged_at(bool told, uint32_t key)
{
	return told ? TOLD_AT + key * TOLD_BYTES : key * PAYLOAD;
}

/* Return the offset of the token ids of block @key in pages that are lent. */
static inline uint32_t ids_at(bool told, uint32_t key)
{
	return told ? staged_at(true, key) + PAYLOAD : 0;
}

/* Return the number of token ids that a save announces: all, none, or a wrong
 * number. */
static inline uint32_t tokens_said(uint32_t key, uint8_t how)
{
	return how >= 240 ? 2 : how & 16 ? 1 + key % 4 : 0;
}

static inline void stage_told(uint8_t *all, uint32_t key)
{
	struct kv_token_ids *ids = ids_of(key);
	uint8_t *at = all + staged_at(true, key);

	memset(at, peer_fill(key), PAYLOAD);
	memcpy(at + PAYLOAD, ids, kv_token_ids_bytes(ids->n, ids->extras_len));
	free(ids);
}

/* Make staging memory, in which a key has the same bytes for all clients. */
static inline int make_staging(void)
{
	int staging;
	uint8_t *all;

	staging = memfd_create("staging", MFD_ALLOW_SEALING | MFD_CLOEXEC);
	fuzz_must(ftruncate(staging, STAGING) == 0);
	all = mmap(NULL, STAGING, PROT_WRITE, MAP_SHARED, staging, 0);
	fuzz_must(all != MAP_FAILED);
	for (uint32_t key = 0; key < KEYS; key++) {
		memset(all + key * PAYLOAD, peer_fill(key), PAYLOAD);
		stage_told(all, key);
	}
	memcpy(all + LENT, &(uint32_t){WIRE_LENT}, sizeof(uint32_t));
	munmap(all, STAGING);
	fuzz_must(fcntl(staging, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
	return staging;
}

/* Check the reply to WIRE_TOKEN_IDS for the keys from @key on: it has the token
 * ids of at least the first key. */
static inline void check_tokens(struct peer *p, uint32_t key)
{
	const uint32_t first = key;
	const uint8_t *at = PEER_ITEMS(p, uint8_t);
	const uint8_t *const end = at + PEER_HEADER(p)->count;
	const struct wire_tokens *tokens;

	for (; at < end; at += tokens->bytes, key++) {
		struct kv_token_ids *ids = ids_of(key % KEYS);

		tokens = (const void *)at;
		fuzz_must(key < KEYS && tokens->bytes % 8 == 0);
		fuzz_must(tokens->status == 0 || tokens->status == -ENOENT);
		if (tokens->status == 0)
			fuzz_must(memcmp(&tokens->n, ids,
					 kv_token_ids_bytes(ids->n,
							    ids->extras_len)) ==
				  0);
		free(ids);
	}
	fuzz_must(at == end && key > first);
}

#endif
