/* SPDX-License-Identifier: Apache-2.0 */
/*
 * saving.h - a message of blocks, or parts of blocks, that ingest threads copy.
 *
 * Control thread only.
 */
#ifndef KV_FS_CONTROL_SAVING_H
#define KV_FS_CONTROL_SAVING_H

#include "fs/control/request.h"

/* Filled in between kv_saving_new and kv_saving_start. */
struct kv_saving_item {
	struct kv_ingest_job job; /* first; the saving's own */
	struct kv_saving *saving;
	int status; /* 0: to be copied; else nothing else counts */
	struct kv_key key;
	struct kv_meta meta;
	const uint8_t *from; /* in the staging */
	/* A whole block: its fill, and whether to lease it. */
	struct kv_fill *fill;
	bool hold;
	/* Or a part of this one: a reference, and which bytes. */
	struct kv_partial_fill *partial;
	uint64_t at, bytes;
};

struct kv_saving {
	struct kv_request request; /* first */
	const struct kv_layout *layout;
	struct kv_staging *staging; /* held; may be NULL */
	uint64_t header_bytes;
	struct kv_acquire *leases; /* of what is held; NULL: nothing may be */
	_Atomic size_t left;
	struct kv_saving_item items[]; /* header.count */
};

/*
 * A saving of the message @m in the space of @info, with its items zeroed and
 * the client's staging held.  -ENOSPC, -ENOMEM.
 */
int kv_saving_new(struct kv_client *client, const struct kv_message *m,
		  const struct kv_space_info *info,
		  struct kv_saving **ret_saving);

/* Copy what is to be copied, reply, and keep the request as long as something
 * of it is leased. */
void kv_saving_start(struct kv_saving *saving);

#endif
