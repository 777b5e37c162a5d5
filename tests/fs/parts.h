/* SPDX-License-Identifier: Apache-2.0 */
/*
 * parts.h - WIRE_SAVE_PART from a raw client.  Nothing here asserts.
 */
#ifndef KV_TESTS_FS_PARTS_H
#define KV_TESTS_FS_PARTS_H

#include "tests/fs/peer.h"

static inline struct wire_part parts_item(uint32_t key, uint64_t at,
					  uint64_t bytes)
{
	struct wire_part part = {.at = at, .bytes = bytes};
	struct wire_key name;

	peer_keys(&name, key, 1);
	memcpy(part.block.key, name.key, sizeof(name.key));
	part.block.len = 32;
	part.block.offset = at;
	return part;
}

static inline uint64_t parts_post(struct peer *p, const struct wire_part *parts,
				  uint32_t n)
{
	return peer_send(
		p, &(struct wire_header){.type = WIRE_SAVE_PART, .count = n},
		parts, n * sizeof(*parts), -1);
}

/* One part; its status. */
static inline int parts_send(struct peer *p, struct wire_part part)
{
	uint64_t tag = parts_post(p, &part, 1);
	ssize_t n = peer_reply(p, tag, PEER_WAIT_MS);

	if (n < 0)
		return (int)n;
	if (PEER_HEADER(p)->status < 0)
		return PEER_HEADER(p)->status;
	return PEER_ITEMS(p, struct wire_status)->status;
}

static inline int parts_reserve(struct peer *p, uint32_t first, uint32_t n,
				uint16_t flags)
{
	return peer_each(p,
			 &(struct wire_header){.type = WIRE_RESERVE,
					       .flags = WIRE_PART | flags},
			 first, n);
}

/* Bytes @at .. of block @key, which the staging holds at the same place. */
static inline int parts_save(struct peer *p, uint32_t key, uint64_t at,
			     uint64_t bytes)
{
	if (at + bytes <= p->staging_bytes)
		memset(p->staging + at, peer_fill(key), bytes);
	return parts_send(p, parts_item(key, at, bytes));
}

#endif
