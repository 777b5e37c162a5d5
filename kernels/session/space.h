/* SPDX-License-Identifier: Apache-2.0 */
/*
 * space.h - the client's record of a space: its name, layout and id; and checks
 * and conversions of keys.
 */
#ifndef KV_KERNELS_SESSION_SPACE_H
#define KV_KERNELS_SESSION_SPACE_H

#include "kernels/kvfs.h"
#include "common/kv.h"
#include "common/layout.h"
#include "common/wire.h"

struct kv_layout_seen; /* a layout that callers may still use */

struct kvfs_space {
	kvfs_session *session;
	char *name, *text; /* fixed; @text: the caller's layout, or "" */
	unsigned flags;	   /* fixed; flags and mode given to kvfs_space_open */
	unsigned refs;	   /* guarded by lock */
	uint32_t id;	   /* guarded by lock; the daemon's id of the space */
	uint64_t known_by; /* guarded by lock; @id's connection, or 0 */
	/* guarded by lock; last values that the daemon has reported, if @told */
	uint32_t uid, mode;
	bool told;
	struct kv_layout_seen *layouts; /* newest first; guarded by lock */
};

/* Return the daemon's id of the space, valid on connection *@ret_generation.
 * Asks the daemon if the connection has changed.  The caller holds no lock.
 * -ENOTCONN: no daemon answers
 * -ENOENT, -EACCES, -EEXIST, -EROFS, -EINVAL: as kvfs_space_open */
int kv_lib_space_id(struct kvfs_space *space, uint32_t *ret_id,
		    uint64_t *ret_generation);

/* Send the question of kv_lib_space_id on the asynchronous connection, which has
 * no time-out.  In call->done, a status of 0 or more comes with a wire_space.
 * -ENOTCONN, -ENOMEM: as kv_rpc_submit_locked */
struct kv_call;
int kv_lib_space_submit_locked(struct kvfs_space *space, struct kv_call *call);

/* Ask a question about the space, as kv_ask does.  Errors also as for
 * kv_lib_space_id. */
struct kv_question;
long kv_space_ask(struct kvfs_space *space, struct kv_question *question);

/* Translate an error of kv_lib_space_id for look-ups of blocks: a space that
 * the caller may not read counts as absent (-ENOENT). */
int kv_lib_space_miss(int r);

/* Forget the space's id, because the daemon does not know the id any more.  The
 * next use asks the daemon again. */
void kv_lib_space_forget_locked(struct kvfs_space *space);

/* Return the current layout, valid until the space is freed; NULL: the space is
 * untyped. */
const struct kv_layout *kv_lib_space_layout(struct kvfs_space *space);

/* Return whether @a and @b have the same tensors in the same order. */
bool kv_lib_layout_same_tensors(const struct kv_layout *a,
				const struct kv_layout *b);

void kv_lib_space_get_locked(struct kvfs_space *space);
void kv_lib_space_put_locked(struct kvfs_space *space);

/* ---- keys ---- */

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
