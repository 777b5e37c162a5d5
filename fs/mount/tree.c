/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tree.c - names in the tree: finding them, and making and removing spaces and
 * their directories.
 *
 * OWNS      nothing.
 *
 * INVARIANTS
 *   (1) A name that is not there is never remembered by the kernel: blocks come
 *       by the control socket too.
 *   (2) An unsealed file resolves as kv_upload_is_for says.
 *   (3) rsync --delay-updates renames what it has received into .~tmp~, and at
 *       its end from there to its place.  Blocks never change, so there is
 *       nothing to delay: the first rename seals, .~tmp~ shows what lies in the
 *       directory above, and the second is one of a file onto itself.
 *
 * LOCKING   none.
 */
#include <stdio.h>
#include <sys/statvfs.h>

#include "fs/mount/attr.h"
#include "fs/mount/parked.h"
#include "fs/mount/hidden.h"
#include "fs/mount/ops.h"
#include "fs/mount/permit.h"
#include "fs/mount/snapshots.h"
#include "fs/mount/upload.h"
#include "fs/base/quantity.h"

#define DELAYED ".~tmp~"

static int find_fixed(const char *name, uint64_t *ret_node)
{
	static const struct {
		const char *name;
		uint64_t node;
	} names[] = {{"control", KV_NODE_CONTROL},
		     {"config", KV_NODE_CONFIG},
		     {"stats", KV_NODE_STATS},
		     {"metrics", KV_NODE_METRICS},
		     {"tenants", KV_NODE_TENANTS}};

	for (size_t i = 0; i < KV_ARRAY_LEN(names); i++)
		if (strcmp(name, names[i].name) == 0) {
			*ret_node = names[i].node;
			return 0;
		}
	return -ENOENT;
}

/* Any user that there can be: a quota may come before his first space. */
static int find_tenant(const char *name, uint64_t *ret_node)
{
	char again[KV_TENANT_NAME];
	uint64_t uid;

	if (kv_number_parse(name, 10, UINT32_MAX - 1, &uid) < 0)
		return -ENOENT;
	snprintf(again, sizeof(again), "%u", (uint32_t)uid);
	if (strcmp(name, again) != 0)
		return -ENOENT;
	*ret_node = kv_node_of_tenant((uint32_t)uid);
	return 0;
}

static int find_in_root(struct kv_mount *mount, const char *name,
			uint64_t *ret_node)
{
	_cleanup_(kv_space_putp) struct kv_space *space = NULL;

	if (strcmp(name, ".kvfs") == 0) {
		*ret_node = KV_NODE_KVFS;
		return 0;
	}
	space = kv_space_find(mount->cache, name);
	if (!space)
		return -ENOENT;
	*ret_node = kv_node_of_space(kv_space_stat(mount->cache, space).id);
	return 0;
}

/* -EALREADY: it is sealed, and its name is the block's now. */
static int find_upload(fuse_req_t req, struct kv_space *space, const char *name,
		       uint64_t *ret_node)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	struct kv_upload *upload;
	int r;

	r = kv_upload_find(mount->uploads, space, name, fuse_req_ctx(req)->uid,
			   &upload);
	if (r < 0)
		return r;
	if (!kv_upload_is_for(upload, fuse_req_ctx(req)))
		r = -ENOENT;
	else if (kv_upload_name(upload)->kind == KV_NAME_KEY &&
		 kv_upload_sealed(upload))
		r = -EALREADY;
	*ret_node = kv_node_of_upload(kv_upload_serial(upload));
	kv_upload_put(upload);
	return r;
}

static int find_in_space(fuse_req_t req, struct kv_space *space,
			 const struct kv_space_info *info, const char *name,
			 uint64_t *ret_node)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	uint8_t byte;

	if (strcmp(name, ".layout") == 0 && info->layout &&
	    !kv_hidden_from(mount->hidden, info->id, fuse_req_ctx(req))) {
		*ret_node = kv_node_of_layout(info->id);
		return 0;
	}
	if (strcmp(name, KV_SNAPSHOTS) == 0) {
		*ret_node = kv_node_of_snapshots(info->id);
		return 0;
	}
	if (strcmp(name, DELAYED) == 0) {
		*ret_node = kv_node_of_delayed(kv_node_of_space(info->id));
		return 0;
	}
	if (kv_dir_parse(name, &byte) < 0)
		return find_upload(req, space, name, ret_node);
	if (!kv_dir_exists(mount->cache, space, byte))
		return -ENOENT;
	*ret_node = kv_node_of_dir(info->id, byte,
				   kv_lives_get(mount->lives, info->id, byte));
	return 0;
}

/* Fills in the attributes too: the block is at hand. */
static int find_block(struct kv_mount *mount, struct kv_space *space,
		      uint8_t byte, const char *name,
		      struct fuse_entry_param *entry)
{
	struct kv_block_info info;
	struct kv_key key;
	int r;

	if (kv_key_parse(name, &key) < 0 || key.b[0] != byte)
		return -ENOENT;
	r = kv_block_stat_key(mount->cache, space, &key, &info);
	if (r < 0)
		return r;
	kv_attr_block(&info, &entry->attr);
	entry->ino = entry->attr.st_ino;
	entry->attr_timeout = entry->entry_timeout = KV_TIMEOUT_BLOCK;
	return 0;
}

static int find_delayed_layout(const struct kv_space_info *info,
			       const char *name, uint64_t *ret_node)
{
	if (!info->layout || strcmp(name, ".layout") != 0)
		return -ENOENT;
	*ret_node = kv_node_of_layout(info->id);
	return 0;
}

static int lookup(fuse_req_t req, fuse_ino_t parent, const char *name,
		  struct fuse_entry_param *entry)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	struct kv_node node = kv_node_decode(parent);
	struct kv_space_info info;
	_cleanup_(kv_space_putp) struct kv_space *space = NULL;
	int r;

	if (strlen(name) > KV_SPACE_NAME_MAX)
		return -ENAMETOOLONG;
	if (node.type == KV_NODE_FIXED) {
		r = kv_permit_mount(req);
		if (r < 0)
			return r;
	}
	if (parent == KV_NODE_ROOT)
		return find_in_root(mount, name, &entry->ino);
	if (parent == KV_NODE_KVFS)
		return find_fixed(name, &entry->ino);
	if (parent == KV_NODE_TENANTS)
		return find_tenant(name, &entry->ino);
	r = kv_attr_space(mount, &node, &space, &info);
	if (r < 0)
		return r;
	r = kv_permit(req, &info, X_OK);
	if (r < 0)
		return r;
	if (node.type == KV_NODE_SPACE)
		return find_in_space(req, space, &info, name, &entry->ino);
	if (node.type == KV_NODE_DELAYED)
		return find_block(mount, space, node.byte, name, entry);
	if (node.type == KV_NODE_DELAYED_LAYOUT)
		return find_delayed_layout(&info, name, &entry->ino);
	if (node.type != KV_NODE_DIR)
		return kv_snapshots_find(mount, space, &node, name,
					 &entry->ino);
	if (strcmp(name, DELAYED) == 0) {
		entry->ino = kv_node_of_delayed(parent);
		return 0;
	}
	r = find_block(mount, space, node.byte, name, entry);
	if (r == -ENOENT)
		r = find_upload(req, space, name, &entry->ino);
	if (r == -EALREADY)
		r = find_block(mount, space, node.byte, name, entry);
	return r;
}

/* Valid replies: fuse_reply_entry, fuse_reply_err. */
void kv_fs_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	struct fuse_entry_param entry = {0};
	int r;

	r = lookup(req, parent, name, &entry);
	if (r == 0 && entry.attr.st_ino == 0) {
		r = kv_attr_of(mount, entry.ino, &entry.attr,
			       &entry.attr_timeout);
		entry.entry_timeout =
			kv_name_timeout(entry.ino, entry.attr_timeout);
	}
	if (r < 0)
		fuse_reply_err(req, -r);
	else
		fuse_reply_entry(req, &entry);
}

static int make_space(fuse_req_t req, const char *name, mode_t mode,
		      uint64_t *ret_node)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	const struct fuse_ctx *ctx = fuse_req_ctx(req);
	_cleanup_(kv_space_putp) struct kv_space *space = NULL;
	int r;

	mode &= 07777 & ~mount->umask;
	r = kv_permit_make(req);
	if (r < 0)
		return r;
	r = kv_space_create(mount->cache, name, ctx->uid, ctx->gid, mode,
			    &space);
	if (r < 0)
		return r;
	*ret_node = kv_node_of_space(kv_space_stat(mount->cache, space).id);
	return 0;
}

static int make_dir(fuse_req_t req, const struct kv_node *parent,
		    const char *name, uint64_t *ret_node)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	struct kv_space_info info;
	_cleanup_(kv_space_putp) struct kv_space *space = NULL;
	uint8_t byte;
	int r;

	r = kv_attr_space(mount, parent, &space, &info);
	if (r < 0)
		return r;
	r = kv_permit(req, &info, W_OK | X_OK);
	if (r < 0)
		return r;
	r = kv_dir_parse(name, &byte);
	if (r < 0)
		return r;
	r = kv_dir_make(mount->cache, space, byte);
	if (r < 0)
		return r;
	*ret_node = kv_node_of_dir(info.id, byte,
				   kv_lives_get(mount->lives, info.id, byte));
	return 0;
}

static void make(fuse_req_t req, const struct kv_change *asked)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	struct kv_node node = kv_node_decode(asked->ino);
	struct fuse_entry_param entry = {0};
	int r = -EPERM;

	if (strlen(asked->name) > KV_SPACE_NAME_MAX)
		r = -ENAMETOOLONG;
	else if (asked->ino == KV_NODE_ROOT)
		r = make_space(req, asked->name, asked->flags, &entry.ino);
	else if (node.type == KV_NODE_SPACE)
		r = make_dir(req, &node, asked->name, &entry.ino);
	if (r == 0)
		r = kv_attr_of(mount, entry.ino, &entry.attr,
			       &entry.attr_timeout);
	entry.entry_timeout = entry.attr_timeout;
	if (r < 0)
		fuse_reply_err(req, -r);
	else
		fuse_reply_entry(req, &entry);
}

/* The kernel holds the root directory until the reply, so who is to be refused
 * is refused before the change waits for its turn. */
static void change_root(fuse_req_t req, const struct kv_change *asked)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	struct kv_account *account = kv_account_get(
		kv_cache_accounts(mount->cache), fuse_req_ctx(req)->uid);
	int r = account ? kv_account_pace(account) : -ENOMEM;

	kv_account_put(account);
	if (r < 0)
		fuse_reply_err(req, -r);
	else
		kv_change_later(req, asked);
}

/* Valid replies: fuse_reply_entry, fuse_reply_err, or none yet. */
void kv_fs_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name,
		 mode_t mode)
{
	const struct kv_change asked = {
		.make = make, .ino = parent, .name = name, .flags = mode};

	if (parent == KV_NODE_ROOT)
		change_root(req, &asked);
	else
		make(req, &asked);
}

static int remove_space(fuse_req_t req, const char *name)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	uid_t uid = fuse_req_ctx(req)->uid;
	struct kv_space_info info;
	_cleanup_(kv_space_putp) struct kv_space *space = NULL;
	int r;

	if (strcmp(name, ".kvfs") == 0)
		return -EPERM;
	space = kv_space_find(mount->cache, name);
	if (!space)
		return -ENOENT;
	info = kv_space_stat(mount->cache, space);
	/* As the sticky bit of the root says, which the kernel checks too; a
	 * squashed uid 0 is not the root directory's owner. */
	if (kv_permit_owner(req, &info) < 0 &&
	    (uid == 0 || uid != mount->rules->uid))
		return -EPERM;
	r = kv_space_remove(mount->cache, space);
	return r == -ESTALE ? -ENOENT : r;
}

static int remove_dir(fuse_req_t req, const struct kv_node *parent,
		      const char *name)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	struct kv_space_info info;
	_cleanup_(kv_space_putp) struct kv_space *space = NULL;
	uint8_t byte;
	int r;

	r = kv_attr_space(mount, parent, &space, &info);
	if (r < 0)
		return r;
	r = kv_permit(req, &info, W_OK | X_OK);
	if (r < 0)
		return r;
	if (parent->type == KV_NODE_SNAPSHOTS ||
	    strcmp(name, KV_SNAPSHOTS) == 0)
		return kv_snapshots_rmdir(mount, space, parent, name);
	if (strcmp(name, DELAYED) == 0)
		return 0;
	if (parent->type == KV_NODE_DIR)
		return -EPERM;
	if (kv_dir_parse(name, &byte) < 0)
		return -ENOENT;
	r = kv_dir_remove(mount->cache, space, byte);
	if (r == 0)
		kv_lives_end(mount->lives, info.id, byte);
	return r;
}

static void unmake_space(fuse_req_t req, const struct kv_change *asked)
{
	fuse_reply_err(req, -remove_space(req, asked->name));
}

/* Valid replies: fuse_reply_err, or none yet. */
void kv_fs_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	const struct kv_change asked = {.make = unmake_space, .name = name};
	struct kv_node node = kv_node_decode(parent);
	int r = -EPERM;

	if (parent == KV_NODE_ROOT) {
		change_root(req, &asked);
		return;
	}
	if (node.type == KV_NODE_SPACE || node.type == KV_NODE_DIR ||
	    node.type == KV_NODE_SNAPSHOTS)
		r = remove_dir(req, &node, name);
	fuse_reply_err(req, -r);
}

/* Valid replies: fuse_reply_readlink, fuse_reply_err. */
void kv_fs_readlink(fuse_req_t req, fuse_ino_t ino)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	struct kv_node node = kv_node_decode(ino);
	char target[KV_SNAPSHOT_TARGET_MAX];
	int r = -EINVAL;

	if (ino == KV_NODE_CONTROL) {
		fuse_reply_readlink(req, mount->control_path);
		return;
	}
	if (node.type == KV_NODE_LINK)
		r = kv_snapshots_target(mount, &node, target);
	if (r < 0)
		fuse_reply_err(req, -r);
	else
		fuse_reply_readlink(req, target);
}

/* Valid replies: fuse_reply_statfs. */
void kv_fs_statfs(fuse_req_t req, fuse_ino_t ino)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	struct kv_cache_stats stats;
	uint64_t total, used;
	struct statvfs fs;

	(void)ino;
	kv_cache_stats(mount->cache, &stats);
	total = stats.ssd_total > 0 ? stats.ssd_total : stats.dram_total;
	used = stats.ssd_total > 0 ? stats.ssd_used : stats.dram_used;
	used = KV_MIN(used, total);
	fs = (struct statvfs){
		.f_bsize = KV_PAGE,
		.f_frsize = KV_PAGE,
		.f_blocks = total / KV_PAGE,
		.f_bfree = (total - used) / KV_PAGE,
		.f_bavail = (total - used) / KV_PAGE,
		.f_namemax = KV_SPACE_NAME_MAX,
	};
	fs.f_files = stats.blocks + fs.f_bfree;
	fs.f_ffree = fs.f_favail = fs.f_bfree;
	fuse_reply_statfs(req, &fs);
}

/* ---- calls that no file of this tree has ----
 *
 * Calls that are not even here (ioctl, copy_file_range, locks) are answered by
 * the kernel itself. */

/* Valid replies: fuse_reply_err. */
void kv_fs_symlink(fuse_req_t req, const char *target, fuse_ino_t parent,
		   const char *name)
{
	(void)target;
	(void)parent;
	(void)name;
	fuse_reply_err(req, EPERM);
}

/* Valid replies: fuse_reply_err. */
void kv_fs_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t newparent,
		const char *newname)
{
	(void)ino;
	(void)newparent;
	(void)newname;
	fuse_reply_err(req, EPERM);
}

/* Valid replies: fuse_reply_err. */
void kv_fs_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t offset,
		     off_t length, struct fuse_file_info *fi)
{
	(void)ino;
	(void)mode;
	(void)offset;
	(void)length;
	(void)fi;
	fuse_reply_err(req, EOPNOTSUPP);
}
