/* SPDX-License-Identifier: Apache-2.0 */
/*
 * staging.h - the memory that a session's saves go by.
 *
 * All calls with session->lock held.
 */
#ifndef KV_KERNELS_TRANSFER_STAGING_H
#define KV_KERNELS_TRANSFER_STAGING_H

#include "common/kv.h"

struct kvfs_session;

/* There is a pool, and perhaps a connection: have staging made for blocks of
 * session->stage_payload bytes before the first save comes. */
void kv_staging_begin_locked(struct kvfs_session *session);
/* Have staging made for blocks of @payload bytes, of session->staging_bytes at
 * least, before a save needs it. */
void kv_staging_prepare_locked(struct kvfs_session *session, uint64_t payload);
/* None is being made any more.  Lock held, but not meanwhile. */
void kv_staging_wait_grown(struct kvfs_session *session);

/* 0: session->stage will do for blocks of @block_bytes; -EAGAIN: it will be
 * there or drained some time, and saves are pumped then; -ENOMEM, -ENOTCONN. */
int kv_staging_need_locked(struct kvfs_session *session, uint64_t block_bytes);
/* Begin a larger one, if there is none such and it did not fail just now. */
void kv_staging_grow_locked(struct kvfs_session *session, uint64_t block_bytes);
/* One that is ready takes the place of one that is empty.  -ENOMEM, -ENOTCONN:
 * the daemon could not be told. */
int kv_staging_swap_locked(struct kvfs_session *session);

#endif
