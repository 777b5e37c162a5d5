/* SPDX-License-Identifier: Apache-2.0 */
/*
 * snapshots.h - <space>/.snapshots/<name>/<position>: a snapshot is a directory of
 * symbolic links to its blocks.
 *
 * The caller of these functions has found the space and checked the rights in it.
 */
#ifndef KV_FS_MOUNT_SNAPSHOTS_H
#define KV_FS_MOUNT_SNAPSHOTS_H

#include <sys/stat.h>

#include "fs/mount/mount.h"
#include "fs/mount/node.h"

#define KV_SNAPSHOTS ".snapshots"
#define KV_SNAPSHOT_TARGET_MAX (sizeof("../../ab/") + KV_NAME_MAX)

/* Find @name in @parent, a KV_NODE_SNAPSHOTS or KV_NODE_SNAPSHOT.  Returns 0 or
 * -ENOENT. */
int kv_snapshots_find(struct kv_mount *mount, struct kv_space *space,
		      const struct kv_node *parent, const char *name,
		      uint64_t *ret_node);

/* Return the target of a KV_NODE_LINK.  Returns 0 or -ESTALE. */
int kv_snapshots_target(struct kv_mount *mount, const struct kv_node *node,
			char ret_target[KV_SNAPSHOT_TARGET_MAX]);

/* Return the name of a KV_NODE_SNAPSHOT or KV_NODE_LINK; "" if the node is gone. */
void kv_snapshots_name(struct kv_mount *mount, const struct kv_node *node,
		       char ret_name[KV_SPACE_NAME_MAX + 1]);

/* Change @st from the attributes of a directory of the space to those of @node, a
 * KV_NODE_SNAPSHOT or KV_NODE_LINK.  Returns 0 or -ESTALE. */
int kv_snapshots_attr(struct kv_mount *mount, const struct kv_node *node,
		      struct stat *st);

/* List the nodes in @dir, a KV_NODE_SNAPSHOTS or KV_NODE_SNAPSHOT; caller frees. */
int kv_snapshots_list(struct kv_mount *mount, struct kv_space *space,
		      const struct kv_node *dir, uint64_t **ret_nodes,
		      size_t *ret_n);

/* Unpin one block. */
int kv_snapshots_unlink(struct kv_mount *mount, const struct kv_node *snapshot,
			const char *name);

/* Drop an empty snapshot; or .snapshots itself, which exists again at once.  Returns 0,
 * -ENOTEMPTY or -ENOENT. */
int kv_snapshots_rmdir(struct kv_mount *mount, struct kv_space *space,
		       const struct kv_node *parent, const char *name);

#endif
