/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dir.c - list directories.
 *
 * OWNS      nothing: a handle owns its listing.
 *
 * INVARIANTS
 *   (1) A directory handle lists the entries that existed at opendir; an entry's index
 *       is its offset, so that seekdir and telldir are stable.
 *   (2) Entries that have gone since opendir are skipped.
 *
 * LOCKING   none.
 */
#include <stdio.h>

#include "common/array.h"
#include "fs/mount/mount.h"

#define READ_PICKS 512u
#define DOTS 2 /* entries "." and "..", at the offsets 1 and 2 */

static int add(struct kv_handle *dir, uint64_t node)
{
	int r = kv_array_grow(&dir->nodes, &dir->room, dir->n + 1,
			      sizeof(*dir->nodes));

	if (r == 0)
		dir->nodes[dir->n++] = node;
	return r;
}

static int list_links(struct kv_mount *mount, uint64_t snapshot,
		      struct kv_handle *dir)
{
	_cleanup_(kv_freep) struct kv_pick *picks =
		malloc(READ_PICKS * sizeof(*picks));
	uint32_t from = 0;
	long got;
	int r = 0;

	if (!picks)
		return -ENOMEM;
	do {
		got = kv_snapshot_read(mount->cache, snapshot, from, picks,
				       READ_PICKS);
		for (long i = 0; i < got && r == 0; i++) {
			r = add(dir,
				kv_node_of_link(snapshot, picks[i].position));
			from = picks[i].position + 1;
		}
	} while (got > 0 && r == 0);
	return got < 0 ? -ESTALE : r;
}

static int list(fuse_req_t req, fuse_ino_t ino, struct kv_handle *dir)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	struct kv_node node = kv_node_decode(ino);
	_cleanup_(kv_freep) uint32_t *uids = NULL;
	struct kv_space_info info;
	_cleanup_(kv_space_putp) struct kv_space *space = NULL;
	uint64_t of_byte;
	uint32_t id = 0;
	bool of_blocks;
	size_t n;
	int r = 0;

	if (node.type == KV_NODE_FIXED) {
		r = kv_permit_mount(req, false);
		if (r < 0)
			return r;
	}
	if (ino == KV_NODE_ROOT) {
		r = add(dir, KV_NODE_KVFS);
		while (r == 0 && (space = kv_space_next(mount->cache, id))) {
			id = kv_space_stat(mount->cache, space).id;
			kv_space_put(kv_steal(space));
			r = add(dir, kv_node_in(KV_NODE_SPACE, id));
		}
		return r;
	}
	if (ino == KV_NODE_KVFS) {
		for (uint64_t fixed = KV_NODE_CONTROL;
		     fixed < KV_NODE_FIXED_END && r == 0; fixed++)
			r = add(dir, fixed);
		return r;
	}
	if (ino == KV_NODE_TENANTS) {
		r = kv_tenant_list(mount->cache, &uids, &n);
		for (size_t i = 0; r == 0 && i < n; i++)
			if (kv_permit_tenant(req, uids[i]) == 0)
				r = add(dir,
					kv_node_of(KV_NODE_TENANT, uids[i]));
		return r;
	}
	r = kv_attr_space(mount, &node, &space, &info);
	if (r < 0)
		return r;
	r = kv_permit(req, &info, R_OK);
	if (r < 0)
		return r;
	if (node.type == KV_NODE_SPACE) {
		/* List the layout first, so that cp and tar of a space copy it
		 * before the blocks. */
		if (info.layout)
			r = add(dir, kv_node_in(KV_NODE_LAYOUT, info.id));
		for (unsigned byte = 0; byte < 256 && r == 0; byte++) {
			of_byte = kv_dir_node(mount, space, info.id,
					      (uint8_t)byte);
			if (of_byte)
				r = add(dir, of_byte);
		}
		return r;
	}
	if (node.type == KV_NODE_DELAYED || node.type == KV_NODE_DELAYED_LAYOUT)
		return 0; /* the directory above .~tmp~ lists its files */
	if (node.type == KV_NODE_SNAPSHOT)
		return list_links(mount, node.value, dir);
	of_blocks = node.type == KV_NODE_DIR;
	r = of_blocks ? kv_dir_list(mount->cache, space, node.byte, &dir->nodes,
				    &dir->n)
		      : kv_snapshot_list(mount->cache, space, &dir->nodes,
					 &dir->n);
	for (size_t i = 0; r == 0 && i < dir->n; i++)
		dir->nodes[i] =
			kv_node_of(of_blocks ? KV_NODE_BLOCK : KV_NODE_SNAPSHOT,
				   dir->nodes[i]);
	return r;
}

/* Valid replies: fuse_reply_open, fuse_reply_err. */
void kv_fs_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	struct kv_handle dir = {.kind = KV_HANDLE_DIR};
	int r;

	r = list(req, ino, &dir);
	if (r == 0)
		r = kv_handle_new(req, &dir, fi);
	if (r < 0) {
		free(dir.nodes);
		fuse_reply_err(req, -r);
		return;
	}
	if (fuse_reply_open(req, fi) < 0)
		kv_handle_free(mount, kv_handle_of(fi));
}

/* Fill in name and attributes of a listed node; @name has room for any name. */
static int describe(struct kv_mount *mount, uint64_t ino, char *name,
		    struct fuse_entry_param *entry)
{
	struct kv_node node = kv_node_decode(ino);
	_cleanup_(kv_space_putp) struct kv_space *space = NULL;
	struct kv_snapshot_info snapshot = {0};
	struct kv_block_info info;
	int r;

	entry->ino = ino;
	if (node.type == KV_NODE_BLOCK) {
		r = kv_block_stat_id(mount->cache, node.value, &info);
		if (r < 0 || info.removed)
			return -ENOENT;
		kv_attr_block(&info, &entry->attr);
		kv_key_name(&info.key, name);
		entry->attr_timeout = entry->entry_timeout = KV_TIMEOUT;
		return 0;
	}
	if (node.type == KV_NODE_FIXED) {
		strcpy(name, kv_fixed_names[ino]);
	} else if (node.type == KV_NODE_TENANT) {
		snprintf(name, KV_TENANT_NAME, "%u", (uint32_t)node.value);
	} else if (node.type == KV_NODE_LAYOUT) {
		strcpy(name, ".layout");
	} else if (node.type == KV_NODE_DIR) {
		snprintf(name, 3, "%02x", node.byte);
	} else if (node.type == KV_NODE_LINK) {
		snprintf(name, KV_SPACE_NAME_MAX + 1, "%08u", node.position);
	} else if (node.type == KV_NODE_SNAPSHOT) {
		(void)kv_snapshot_stat(mount->cache, node.value, &snapshot);
		strcpy(name, snapshot.name);
	} else {
		space = kv_space_by_id(mount->cache, node.space);
		if (!space)
			return -ESTALE;
		snprintf(name, KV_SPACE_NAME_MAX + 1, "%s",
			 kv_space_name(space));
	}
	r = kv_attr_of(mount, ino, &entry->attr, &entry->attr_timeout);
	entry->entry_timeout = kv_name_timeout(ino, entry->attr_timeout);
	return r;
}

static void reply_entries(fuse_req_t req, fuse_ino_t ino, size_t size,
			  off_t off, const struct kv_handle *dir, bool plus)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	const struct kv_node node = kv_node_decode(ino);
	_cleanup_(kv_freep) char *buffer = malloc(size);
	char name[KV_SPACE_NAME_MAX + 1];
	size_t used = 0, n;

	if (!buffer) {
		fuse_reply_err(req, ENOMEM);
		return;
	}
	for (; off >= 0 && (uint64_t)off < dir->n + DOTS; off++) {
		struct fuse_entry_param entry = {0};

		if (off < DOTS) {
			/* Of "." and ".." the kernel uses only type and number. */
			strcpy(name, off == 0 ? "." : "..");
			entry.attr.st_ino =
				off == 0 ? ino
				: node.type == KV_NODE_DIR ||
						node.type ==
							KV_NODE_SNAPSHOTS ||
						node.type ==
							KV_NODE_DELAYED_LAYOUT
					? kv_node_in(KV_NODE_SPACE, node.space)
					: (fuse_ino_t)KV_NODE_ROOT;
			entry.attr.st_mode = S_IFDIR;
		} else if (describe(mount, dir->nodes[off - DOTS], name,
				    &entry) < 0) {
			continue;
		}
		n = plus ? fuse_add_direntry_plus(req, buffer + used,
						  size - used, name, &entry,
						  off + 1)
			 : fuse_add_direntry(req, buffer + used, size - used,
					     name, &entry.attr, off + 1);
		if (n > size - used)
			break;
		used += n;
	}
	fuse_reply_buf(req, buffer, used);
}

/* Valid replies: fuse_reply_buf, fuse_reply_err. */
void kv_fs_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		   struct fuse_file_info *fi)
{
	reply_entries(req, ino, size, off, kv_handle_of(fi), false);
}

/* Valid replies: fuse_reply_buf, fuse_reply_err. */
void kv_fs_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		       struct fuse_file_info *fi)
{
	reply_entries(req, ino, size, off, kv_handle_of(fi), true);
}

/* Valid replies: fuse_reply_err. */
void kv_fs_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	(void)ino;
	kv_handle_free(fuse_req_userdata(req), kv_handle_of(fi));
	fuse_reply_err(req, 0);
}

/* An array of spaces, each held. */
struct spaces {
	struct kv_space **items;
	size_t n, room;
};

static void spaces_fini(struct spaces *spaces)
{
	while (spaces->n > 0)
		kv_space_put(spaces->items[--spaces->n]);
	free(spaces->items);
}

/* Sync the spaces in which the caller may write.  Writing to SSD is a change, which other
 * owners may not want. */
static int sync_writable(fuse_req_t req)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	_cleanup_(spaces_fini) struct spaces spaces = {0};
	struct kv_space_info info = {0};
	struct kv_space *space;

	while ((space = kv_space_next(mount->cache, info.id))) {
		info = kv_space_stat(mount->cache, space);
		if (kv_permit(req, &info, W_OK | X_OK) < 0) {
			kv_space_put(space);
			continue;
		}
		if (kv_array_grow(&spaces.items, &spaces.room, spaces.n + 1,
				  sizeof(*spaces.items)) < 0) {
			kv_space_put(space);
			return -ENOMEM;
		}
		spaces.items[spaces.n++] = space;
	}
	return kv_sync_spaces(req, spaces.items, spaces.n);
}

/* Valid replies: fuse_reply_err, or none yet. */
void kv_fs_fsyncdir(fuse_req_t req, fuse_ino_t ino, int datasync,
		    struct fuse_file_info *fi)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	struct kv_node node = kv_node_decode(ino);
	struct kv_space_info info;
	_cleanup_(kv_space_putp) struct kv_space *space = NULL;
	int r = 1;

	(void)datasync;
	(void)fi;
	if (ino == KV_NODE_ROOT) {
		r = sync_writable(req);
	} else if (node.type != KV_NODE_FIXED) {
		r = kv_attr_space(mount, &node, &space, &info);
		r = r < 0 ? r : kv_sync_spaces(req, &space, 1);
	}
	if (r != 0)
		fuse_reply_err(req, -KV_MIN(r, 0));
}
