/* SPDX-License-Identifier: Apache-2.0 */
/*
 * query.h - queries: the checks and conversions that look-ups and leases
 * share.
 */
#ifndef KV_KERNELS_SESSION_QUERY_H
#define KV_KERNELS_SESSION_QUERY_H

#include "kernels/kvfs.h"
#include "common/kv.h"
#include "common/wire.h"

#define KV_QUERY_KEYS_MAX ((size_t)KVFS_KEYS_MAX)

/* States of the keys of @query, absent where they cannot be learnt. */
void kv_query_probe(const kvfs_query *query, uint8_t *ret_states);

/*
 * All keys of @queries, and their session in *@ret_session (NULL if there is no
 * query).  -EINVAL: a null, a key of another length than 16 or 32, spaces of
 * different sessions, too many; -EBADF.
 */
long kv_queries_check(const kvfs_query *queries, size_t n_queries,
		      kvfs_session **ret_session);

/* At most KV_QUERY_KEYS_MAX, each 16 or 32 bytes long. */
bool kv_wire_keys_are_valid(const kvfs_key *keys, size_t n);

/* @n keys as messages have them, bytes past the length zero. */
void kv_wire_keys(const kvfs_key *keys, size_t n, struct wire_key *ret_keys);

#endif
