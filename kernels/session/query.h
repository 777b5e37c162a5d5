/* SPDX-License-Identifier: Apache-2.0 */
/*
 * query.h - checks and conversions of keys for look-ups, leases and saves.
 */
#ifndef KV_KERNELS_SESSION_QUERY_H
#define KV_KERNELS_SESSION_QUERY_H

#include "kernels/kvfs.h"
#include "common/kv.h"
#include "common/wire.h"

#define KV_QUERY_KEYS_MAX ((size_t)KVFS_KEYS_MAX)

/* Store the state of each key of @query; absent if the daemon cannot be asked. */
void kv_query_probe(const kvfs_query *query, uint8_t *ret_states);

/*
 * Check @queries.  Return the number of their keys, and the session (NULL without
 * a query).  -EINVAL: a null, a key whose length is not 16 or 32, spaces of
 * different sessions, too many keys; -EBADF.
 */
long kv_queries_check(const kvfs_query *queries, size_t n_queries,
		      kvfs_session **ret_session);

/* Return whether there are at most KV_QUERY_KEYS_MAX keys of 16 or 32 bytes. */
bool kv_wire_keys_are_valid(const kvfs_key *keys, size_t n);

/* Convert @n keys to the form of messages. */
void kv_wire_keys(const kvfs_key *keys, size_t n, struct wire_key *ret_keys);

#endif
