/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prologue.c - the first page of a slot: whose block it holds.
 *
 * OWNS      nothing.
 *
 * INVARIANTS
 *   (1) A sealed prologue says nothing that changes while the block lives:
 *       use counts and pins are in the index alone.
 *
 * LOCKING   none: every function works on its arguments only.
 */
#include <xxhash.h>

#include "index/index.h"

static uint64_t sum(const struct kv_prologue *prologue)
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
	prologue->record.checksum = sum(prologue);
}

int kv_prologue_check(const struct kv_prologue *prologue,
		      const uint8_t store[16])
{
	if (prologue->magic != KV_PROLOGUE_MAGIC ||
	    prologue->version != KV_PROLOGUE_VERSION ||
	    memcmp(prologue->store, store, sizeof(prologue->store)) != 0 ||
	    prologue->record.checksum != sum(prologue))
		return -EBADMSG;
	return 0;
}
