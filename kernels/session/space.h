/* SPDX-License-Identifier: Apache-2.0 */
/*
 * space.h - a space as a client knows it: name, layout and id.
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
	char *name, *text; /* fixed; text: the layout the caller gave, or "" */
	unsigned flags;	   /* fixed: as given to kvfs_space_open */
	unsigned refs;	   /* lock: the caller's, leases', pools', transfers' */
	uint32_t id;	   /* lock: the daemon's id */
	uint64_t known_by; /* lock: the connection of the id; 0: none */
	uint32_t uid, mode;		/* lock: of the last answer */
	bool told;			/* lock: there was an answer */
	struct kv_layout_seen *layouts; /* lock: newest first; until freed */
};

/*
 * Return the space's id on the connection @ret_generation; ask the daemon if the
 * connection has changed.  The caller holds no lock.  -ENOTCONN, -ENOENT,
 * -EACCES, -EEXIST, -EROFS, -EINVAL, -ETIMEDOUT.
 */
int kv_lib_space_id(struct kvfs_space *space, uint32_t *ret_id,
		    uint64_t *ret_generation);

/* Translate the error @r of kv_lib_space_id for a look-up of blocks: a space that
 * may not be read counts as absent. */
int kv_lib_space_miss(int r);

/* This client removed the space: do not create it again. */
void kv_lib_space_gone(struct kvfs_space *space);

/* Drop an id that the daemon does not know any more; the next use asks again. */
void kv_lib_space_forget_locked(struct kvfs_space *space);

/* Return the layout, valid while the space is held; NULL: untyped. */
const struct kv_layout *kv_lib_space_layout(struct kvfs_space *space);

/* Return whether both have the same tensors in the same order. */
bool kv_lib_layout_same_tensors(const struct kv_layout *a,
				const struct kv_layout *b);

void kv_lib_space_get_locked(struct kvfs_space *space);
void kv_lib_space_put_locked(struct kvfs_space *space);

#endif
