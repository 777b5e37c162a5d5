/* SPDX-License-Identifier: Apache-2.0 */
/*
 * space.h - a space as a client knows it: its name, layout and number.
 */
#ifndef KV_KERNELS_SESSION_SPACE_H
#define KV_KERNELS_SESSION_SPACE_H

#include "kernels/kvfs.h"
#include "common/kv.h"
#include "common/layout.h"

struct kv_layout_seen; /* a layout that callers may still look at */

struct kvfs_space {
	kvfs_session *session;
	char *name, *text; /* fixed; text: the layout the caller gave, or "" */
	unsigned flags;	   /* fixed: as given to kvfs_space_open */
	unsigned refs;	   /* lock: the caller's, leases', pools', transfers' */
	uint32_t id;	   /* lock: the daemon's number */
	uint64_t known_by; /* lock: the connection it was told on; 0: none */
	uint32_t uid, mode;		/* lock: as it was told last */
	bool told;			/* lock: it was, once */
	struct kv_layout_seen *layouts; /* lock: newest first; until freed */
};

/*
 * The daemon's number of the space, for the connection @ret_generation; asks
 * for it if the daemon has changed since.  -ENOTCONN, -ENOENT, -EACCES,
 * -EEXIST, -EROFS, -EINVAL, -ETIMEDOUT.  Without a lock held.
 */
int kv_lib_space_id(struct kvfs_space *space, uint32_t *ret_id,
		    uint64_t *ret_generation);

/* The error @r as it looks to one who asks for blocks: absent and not to be
 * read look the same. */
int kv_lib_space_miss(int r);

/* It has been removed by us, and is not to be made again. */
void kv_lib_space_gone(struct kvfs_space *space);

/* The number is of no more use (the space was removed, say): ask again. */
void kv_lib_space_forget_locked(struct kvfs_space *space);

/* NULL: untyped.  Valid while the space is held. */
const struct kv_layout *kv_lib_space_layout(struct kvfs_space *space);

/* Whether blocks of both have the same tensors in the same order. */
bool kv_lib_layout_same_tensors(const struct kv_layout *a,
				const struct kv_layout *b);

void kv_lib_space_get_locked(struct kvfs_space *space);
void kv_lib_space_put_locked(struct kvfs_space *space);

#endif
