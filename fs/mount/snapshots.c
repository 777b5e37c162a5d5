/* SPDX-License-Identifier: Apache-2.0 */
/*
 * snapshots.c - a snapshot is a directory of symbolic links to its blocks.
 *
 * OWNS      nothing: the cache owns snapshots.
 *
 * INVARIANTS
 *   (1) A link's name is its block's position, in exactly eight digits.
 *   (2) A link exists even if its block is gone.
 *
 * LOCKING   none.
 */
#include <stdio.h>

#include "fs/mount/mount.h"

#define DIGITS 8
#define READ_PICKS 512u

static int parse_position(const char *name, uint32_t *ret_position)
{
	uint32_t position = 0;

	for (int i = 0; i < DIGITS; i++) {
		if (name[i] < '0' || name[i] > '9')
			return -ENOENT;
		position = position * 10 + (uint32_t)(name[i] - '0');
	}
	if (name[DIGITS] != '\0')
		return -ENOENT;
	*ret_position = position;
	return 0;
}

/* Find the block at @position of the snapshot.  Returns 0 or -ENOENT. */
static int find_pick(struct kv_mount *mount, uint64_t id, uint32_t position,
		     struct kv_pick *ret_pick)
{
	long n = kv_snapshot_read(mount->cache, id, position, ret_pick, 1);

	return n == 1 && ret_pick->position == position ? 0 : -ENOENT;
}

int kv_snapshots_find(struct kv_mount *mount, struct kv_space *space,
		      const struct kv_node *parent, const char *name,
		      uint64_t *ret_node)
{
	struct kv_snapshot_info info;
	struct kv_pick pick;
	uint32_t position;
	int r;

	if (parent->type == KV_NODE_SNAPSHOTS) {
		r = kv_snapshot_find(mount->cache, space, name, &info);
		if (r == 0)
			*ret_node = kv_node_of(KV_NODE_SNAPSHOT, info.id);
		return r;
	}
	if (parent->type != KV_NODE_SNAPSHOT)
		return -ENOENT;
	r = parse_position(name, &position);
	if (r == 0)
		r = find_pick(mount, parent->value, position, &pick);
	if (r == 0)
		*ret_node = kv_node_of_link(parent->value, position);
	return r;
}

int kv_snapshots_target(struct kv_mount *mount, const struct kv_node *node,
			char ret_target[KV_SNAPSHOT_TARGET_MAX])
{
	char name[KV_NAME_MAX + 1];
	struct kv_pick pick;

	if (find_pick(mount, node->value, node->position, &pick) < 0)
		return -ESTALE;
	kv_key_name(&pick.key, name);
	snprintf(ret_target, KV_SNAPSHOT_TARGET_MAX, "../../%.2s/%s", name,
		 name);
	return 0;
}

void kv_snapshots_name(struct kv_mount *mount, const struct kv_node *node,
		       char ret_name[KV_SPACE_NAME_MAX + 1])
{
	struct kv_snapshot_info info = {0};

	if (node->type == KV_NODE_LINK) {
		snprintf(ret_name, KV_SPACE_NAME_MAX + 1, "%0*u", DIGITS,
			 node->position);
		return;
	}
	(void)kv_snapshot_stat(mount->cache, node->value, &info);
	strcpy(ret_name, info.name);
}

int kv_snapshots_attr(struct kv_mount *mount, const struct kv_node *node,
		      struct stat *st)
{
	char target[KV_SNAPSHOT_TARGET_MAX];
	struct kv_snapshot_info info;
	int r;

	if (kv_snapshot_stat(mount->cache, node->value, &info) < 0)
		return -ESTALE;
	kv_attr_times(st, info.mtime_ns, 0);
	if (node->type == KV_NODE_SNAPSHOT)
		return 0;
	r = kv_snapshots_target(mount, node, target);
	if (r < 0)
		return r;
	st->st_mode = S_IFLNK | 0777;
	st->st_size = (off_t)strlen(target);
	return 0;
}

int kv_snapshots_list(struct kv_mount *mount, struct kv_space *space,
		      const struct kv_node *dir, uint64_t **ret_nodes,
		      size_t *ret_n)
{
	_cleanup_(kv_freep) uint64_t *nodes = NULL;
	_cleanup_(kv_freep) struct kv_pick *picks = NULL;
	struct kv_snapshot_info info;
	uint32_t from = 0;
	size_t n = 0;
	long got;
	int r;

	if (dir->type == KV_NODE_SNAPSHOTS) {
		r = kv_snapshot_list(mount->cache, space, &nodes, &n);
		if (r < 0)
			return r;
		for (size_t i = 0; i < n; i++)
			nodes[i] = kv_node_of(KV_NODE_SNAPSHOT, nodes[i]);
		*ret_nodes = kv_steal(nodes);
		*ret_n = n;
		return 0;
	}
	if (kv_snapshot_stat(mount->cache, dir->value, &info) < 0)
		return -ESTALE;
	nodes = malloc((info.blocks + 1) * sizeof(*nodes));
	picks = malloc(READ_PICKS * sizeof(*picks));
	if (!nodes || !picks)
		return -ENOMEM;
	do {
		got = kv_snapshot_read(mount->cache, dir->value, from, picks,
				       KV_MIN(READ_PICKS, info.blocks - n));
		for (long i = 0; i < got; i++) {
			nodes[n++] =
				kv_node_of_link(dir->value, picks[i].position);
			from = picks[i].position + 1;
		}
	} while (got > 0);
	if (got < 0)
		return -ESTALE;
	*ret_nodes = kv_steal(nodes);
	*ret_n = n;
	return 0;
}

int kv_snapshots_unlink(struct kv_mount *mount, const struct kv_node *snapshot,
			const char *name)
{
	uint32_t position;
	int r;

	r = parse_position(name, &position);
	if (r < 0)
		return r;
	return kv_snapshot_unlink(mount->cache, snapshot->value, position);
}

int kv_snapshots_rmdir(struct kv_mount *mount, struct kv_space *space,
		       const struct kv_node *parent, const char *name)
{
	_cleanup_(kv_freep) uint64_t *ids = NULL;
	struct kv_snapshot_info info;
	size_t n;
	int r;

	if (parent->type == KV_NODE_SPACE) {
		r = kv_snapshot_list(mount->cache, space, &ids, &n);
		return r < 0 ? r : n > 0 ? -ENOTEMPTY : 0;
	}
	r = kv_snapshot_find(mount->cache, space, name, &info);
	if (r < 0)
		return r;
	if (info.blocks > 0)
		return -ENOTEMPTY;
	return kv_snapshot_drop(mount->cache, info.id);
}
