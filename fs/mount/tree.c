/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tree.c - names in the tree: look-up, mkdir, rmdir, rename, unlink.
 *
 * OWNS      mount->hidden, the records of processes that removed a layout.
 *
 * INVARIANTS
 *   (1) The kernel never caches that a name is absent: clients also save blocks by the
 *       control socket.
 *   (2) An unsealed file resolves for the callers that kv_upload_is_for() names.
 *   (3) rsync --delay-updates renames received files into .~tmp~, and at its end from
 *       there to their places.  Blocks never change, so the first rename seals, .~tmp~
 *       shows the contents of the directory above, and the second rename, of a file onto
 *       itself, does nothing.
 *   (4) Only a staging file is ever renamed, and only onto its own final name.
 *   (5) A layout stays as long as its space: rm of a layout succeeds and does nothing.
 *       Programs that replace a file remove it first, and would retry for ever if the
 *       file still existed.  So the layout is hidden from the process that removed it
 *       until that process makes a layout, or for ten seconds.
 *
 * LOCKING   mount->lock guards the records.
 */
#include <fcntl.h>
#include <stdio.h>
#include <sys/statvfs.h>

#include "fs/mount/mount.h"
#include "fs/base/quantity.h"

#define DELAYED ".~tmp~"
#define POSITION_DIGITS 8
#define HIDDEN_NS (UINT64_C(10) * 1000000000)

bool kv_layout_hidden(struct kv_mount *mount, uint32_t space,
		      const struct fuse_ctx *ctx, bool show)
{
	const pid_t process = kv_process_of(ctx->pid);
	const uint64_t now = kv_now_ns();
	bool found = false;

	pthread_mutex_lock(&mount->lock);
	for (unsigned i = 0; i < KV_HIDDEN_RECORDS; i++) {
		struct kv_hidden_record *record = &mount->hidden[i];

		if (record->space != space || record->uid != ctx->uid ||
		    record->process != process || record->until_ns <= now)
			continue;
		found = true;
		if (show)
			record->space = 0;
	}
	pthread_mutex_unlock(&mount->lock);
	return found;
}

/* ---- look-up ---- */

/* Find an upload.  Returns 0, -ENOENT, or -EALREADY if it is sealed and its name
 * is the block's now. */
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
	else if (upload->name.kind == KV_NAME_KEY && kv_upload_sealed(upload))
		r = -EALREADY;
	*ret_node = kv_node_of(KV_NODE_UPLOAD, upload->serial);
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
	    !kv_layout_hidden(mount, info->id, fuse_req_ctx(req), false)) {
		*ret_node = kv_node_in(KV_NODE_LAYOUT, info->id);
		return 0;
	}
	if (strcmp(name, KV_SNAPSHOTS) == 0) {
		*ret_node = kv_node_in(KV_NODE_SNAPSHOTS, info->id);
		return 0;
	}
	if (strcmp(name, DELAYED) == 0) {
		*ret_node =
			kv_node_of_delayed(kv_node_in(KV_NODE_SPACE, info->id));
		return 0;
	}
	if (kv_dir_parse(name, &byte) < 0)
		return find_upload(req, space, name, ret_node);
	*ret_node = kv_dir_node(mount, space, info->id, byte);
	return *ret_node ? 0 : -ENOENT;
}

static int parse_position(const char *name, uint32_t *ret_position)
{
	uint32_t position = 0;

	for (int i = 0; i < POSITION_DIGITS; i++) {
		if (name[i] < '0' || name[i] > '9')
			return -ENOENT;
		position = position * 10 + (uint32_t)(name[i] - '0');
	}
	if (name[POSITION_DIGITS] != '\0')
		return -ENOENT;
	*ret_position = position;
	return 0;
}

/* Find @name in @parent, a space's .snapshots or a snapshot. */
static int find_in_snapshots(struct kv_mount *mount, struct kv_space *space,
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
	if (parent->type != KV_NODE_SNAPSHOT ||
	    parse_position(name, &position) < 0 ||
	    kv_snapshot_read(mount->cache, parent->value, position, &pick, 1) !=
		    1 ||
	    pick.position != position)
		return -ENOENT;
	*ret_node = kv_node_of_link(parent->value, position);
	return 0;
}

static int find_block(struct kv_mount *mount, struct kv_space *space,
		      uint8_t byte, const char *name, uint64_t *ret_node)
{
	struct kv_block_info info;
	struct kv_key key;
	int r;

	if (kv_key_parse(name, &key) < 0 || key.b[0] != byte)
		return -ENOENT;
	r = kv_block_stat_key(mount->cache, space, &key, &info);
	if (r == 0)
		*ret_node = kv_node_of(KV_NODE_BLOCK, info.id);
	return r;
}

static int lookup(fuse_req_t req, fuse_ino_t parent, const char *name,
		  uint64_t *ret_node)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	struct kv_node node = kv_node_decode(parent);
	struct kv_space_info info;
	_cleanup_(kv_space_putp) struct kv_space *space = NULL;
	char again[KV_TENANT_NAME];
	uint64_t uid;
	int r;

	if (strlen(name) > KV_SPACE_NAME_MAX)
		return -ENAMETOOLONG;
	if (node.type == KV_NODE_FIXED) {
		r = kv_permit_mount(req, false);
		if (r < 0)
			return r;
	}
	if (parent == KV_NODE_ROOT) {
		if (strcmp(name, ".kvfs") == 0) {
			*ret_node = KV_NODE_KVFS;
			return 0;
		}
		space = kv_space_find(mount->cache, name);
		if (!space)
			return -ENOENT;
		*ret_node = kv_node_in(KV_NODE_SPACE,
				       kv_space_stat(mount->cache, space).id);
		return 0;
	}
	if (parent == KV_NODE_KVFS) {
		for (uint64_t i = KV_NODE_CONTROL; i < KV_NODE_FIXED_END; i++)
			if (strcmp(name, kv_fixed_names[i]) == 0) {
				*ret_node = i;
				return 0;
			}
		return -ENOENT;
	}
	if (parent == KV_NODE_TENANTS) {
		/* A user without spaces can have a quota: any id resolves. */
		if (kv_number_parse(name, 10, UINT32_MAX - 1, &uid) < 0)
			return -ENOENT;
		snprintf(again, sizeof(again), "%u", (uint32_t)uid);
		if (strcmp(name, again) != 0)
			return -ENOENT;
		*ret_node = kv_node_of(KV_NODE_TENANT, (uint32_t)uid);
		return 0;
	}
	r = kv_attr_space(mount, &node, &space, &info);
	if (r < 0)
		return r;
	r = kv_permit(req, &info, X_OK);
	if (r < 0)
		return r;
	if (node.type == KV_NODE_SPACE)
		return find_in_space(req, space, &info, name, ret_node);
	if (node.type == KV_NODE_DELAYED)
		return find_block(mount, space, node.byte, name, ret_node);
	if (node.type == KV_NODE_DELAYED_LAYOUT) {
		if (!info.layout || strcmp(name, ".layout") != 0)
			return -ENOENT;
		*ret_node = kv_node_in(KV_NODE_LAYOUT, info.id);
		return 0;
	}
	if (node.type != KV_NODE_DIR)
		return find_in_snapshots(mount, space, &node, name, ret_node);
	if (strcmp(name, DELAYED) == 0) {
		*ret_node = kv_node_of_delayed(parent);
		return 0;
	}
	r = find_block(mount, space, node.byte, name, ret_node);
	if (r == -ENOENT)
		r = find_upload(req, space, name, ret_node);
	if (r == -EALREADY)
		r = find_block(mount, space, node.byte, name, ret_node);
	return r;
}

/* Valid replies: fuse_reply_entry, fuse_reply_err. */
void kv_fs_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	uint64_t ino = 0;
	int r = lookup(req, parent, name, &ino);

	kv_reply_entry(req, r, ino);
}

/* ---- mkdir ---- */

/* Make a space, or a two-digit directory of a space. */
static void make(fuse_req_t req, const struct kv_change *asked)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	const struct fuse_ctx *ctx = fuse_req_ctx(req);
	const struct kv_node parent = kv_node_decode(asked->ino);
	_cleanup_(kv_space_putp) struct kv_space *space = NULL;
	struct kv_space_info info;
	uint64_t ino = 0;
	uint8_t byte;
	int r = -EPERM;

	if (strlen(asked->name) > KV_SPACE_NAME_MAX) {
		r = -ENAMETOOLONG;
	} else if (asked->ino == KV_NODE_ROOT) {
		r = kv_permit_mount(req, true);
		if (r == 0)
			r = kv_space_create(
				mount->cache, asked->name, ctx->uid, ctx->gid,
				asked->flags & 07777 & ~mount->umask, &space);
		if (r == 0)
			ino = kv_node_in(KV_NODE_SPACE,
					 kv_space_stat(mount->cache, space).id);
	} else if (parent.type == KV_NODE_SPACE) {
		r = kv_attr_space(mount, &parent, &space, &info);
		if (r == 0)
			r = kv_permit(req, &info, W_OK | X_OK);
		if (r == 0)
			r = kv_dir_parse(asked->name, &byte);
		if (r == 0)
			r = kv_dir_make(mount->cache, space, byte);
		if (r == 0)
			ino = kv_dir_node(mount, space, info.id, byte);
	}
	kv_reply_entry(req, r, ino);
}

/* Have a thread change the root directory.  The kernel locks the directory until the
 * reply, so a user beyond its rate is refused before it waits for its turn. */
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

/* ---- rmdir ---- */

static void remove_space(fuse_req_t req, const struct kv_change *asked)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	uid_t uid = fuse_req_ctx(req)->uid;
	_cleanup_(kv_space_putp) struct kv_space *space =
		kv_space_find(mount->cache, asked->name);
	struct kv_space_info info;
	int r = space ? 0 : -ENOENT;

	if (strcmp(asked->name, ".kvfs") == 0)
		r = -EPERM;
	if (r == 0) {
		info = kv_space_stat(mount->cache, space);
		/* The kernel also checks the sticky bit of the root directory,
		 * which a squashed uid 0 does not own. */
		if (kv_permit_owner(req, &info) < 0 &&
		    (uid == 0 || uid != mount->rules->uid))
			r = -EPERM;
	}
	if (r == 0)
		r = kv_space_remove(mount->cache, space);
	fuse_reply_err(req, r == -ESTALE ? ENOENT : -r);
}

/* Drop an empty snapshot; or .snapshots itself, which exists again at once. */
static int remove_snapshot(struct kv_mount *mount, struct kv_space *space,
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

/* Valid replies: fuse_reply_err, or none yet. */
void kv_fs_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	const struct kv_change asked = {.make = remove_space, .name = name};
	const struct kv_node node = kv_node_decode(parent);
	struct kv_mount *mount = fuse_req_userdata(req);
	_cleanup_(kv_space_putp) struct kv_space *space = NULL;
	struct kv_space_info info;
	uint8_t byte;
	int r = -EPERM;

	if (parent == KV_NODE_ROOT) {
		change_root(req, &asked);
		return;
	}
	if (node.type == KV_NODE_SPACE || node.type == KV_NODE_DIR ||
	    node.type == KV_NODE_SNAPSHOTS)
		r = kv_attr_space(mount, &node, &space, &info);
	if (r == 0)
		r = kv_permit(req, &info, W_OK | X_OK);
	if (r == 0 && (node.type == KV_NODE_SNAPSHOTS ||
		       strcmp(name, KV_SNAPSHOTS) == 0)) {
		r = remove_snapshot(mount, space, &node, name);
	} else if (r == 0 && strcmp(name, DELAYED) != 0) {
		r = node.type == KV_NODE_DIR ? -EPERM
		    : kv_dir_parse(name, &byte) < 0
			    ? -ENOENT
			    : kv_dir_remove(mount->cache, space, byte);
	}
	fuse_reply_err(req, -r);
}

/* ---- rename ---- */

/* A file's name, and the directory of a space that it is in. */
struct place {
	struct kv_space *space; /* held */
	struct kv_space_info info;
	/* value of the two-digit directory; -1: the space's own directory */
	int byte;
	const char *text;
};

static void place_putp(struct place *place)
{
	kv_space_put(place->space);
}

static bool is_delayed(const struct kv_node *node)
{
	return node->type == KV_NODE_DELAYED ||
	       node->type == KV_NODE_DELAYED_LAYOUT;
}

static int find_place(fuse_req_t req, fuse_ino_t parent, const char *text,
		      struct place *ret_place)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	struct kv_node node = kv_node_decode(parent);
	struct place place = {.text = text};
	int r;

	if (node.type != KV_NODE_SPACE && node.type != KV_NODE_DIR &&
	    !is_delayed(&node))
		return -EPERM;
	r = kv_attr_space(mount, &node, &place.space, &place.info);
	if (r < 0)
		return r;
	place.byte = node.type == KV_NODE_DIR || node.type == KV_NODE_DELAYED
			     ? node.byte
			     : -1;
	*ret_place = place;
	return kv_permit(req, &place.info, W_OK | X_OK);
}

/* Return the error for renaming a name that is no upload: -EPERM for blocks and
 * directories, which cannot be renamed, or -ENOENT. */
static int refuse(struct kv_mount *mount, const struct place *from)
{
	struct kv_block *block;
	struct kv_key key;
	uint8_t byte;

	if (from->byte < 0) {
		if (strcmp(from->text, ".layout") == 0)
			return -EPERM;
		return kv_dir_parse(from->text, &byte) == 0 ? -EPERM : -ENOENT;
	}
	if (kv_key_parse(from->text, &key) < 0 ||
	    kv_block_get(mount->cache, from->space, &key, &block) < 0)
		return -ENOENT;
	kv_block_put(mount->cache, block);
	return -EPERM;
}

static int seal_as(struct kv_upload *upload, const struct place *to,
		   unsigned flags)
{
	enum kv_name_kind kind = upload->name.kind;
	struct kv_name name;
	bool is_new;
	int r;

	if (kind != KV_NAME_TEMP && kind != KV_NAME_LAYOUT_TEMP)
		return -EPERM;
	r = kv_name_parse(to->text, to->byte, &name);
	if (r < 0)
		return r;
	if ((name.kind != KV_NAME_KEY && name.kind != KV_NAME_LAYOUT) ||
	    !kv_key_equal(&name.key, &upload->name.key))
		return -EINVAL;
	r = kv_upload_seal(upload, &is_new);
	if (r == 0)
		return -EINVAL; /* an empty file cannot be sealed */
	if (r == 1 && !is_new && (flags & RENAME_NOREPLACE) != 0)
		return -EEXIST;
	return KV_MIN(r, 0);
}

static void rename_asked(fuse_req_t req, const struct kv_change *asked)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	_cleanup_(place_putp) struct place from = {0};
	_cleanup_(place_putp) struct place to = {0};
	struct kv_upload *upload = NULL;
	int r;

	r = find_place(req, asked->ino, asked->name, &from);
	if (r == 0)
		r = find_place(req, asked->other, asked->text, &to);
	if (r == 0 && (asked->flags & ~(unsigned)RENAME_NOREPLACE) != 0)
		r = -EINVAL;
	if (r == 0 && kv_upload_find(mount->uploads, from.space, from.text,
				     fuse_req_ctx(req)->uid, &upload) < 0)
		r = refuse(mount, &from);
	if (!upload) {
		fuse_reply_err(req, -r);
		return;
	}
	if (!kv_upload_is_for(upload, fuse_req_ctx(req)))
		r = -ENOENT;
	else if (to.space != from.space)
		r = -EXDEV;
	else
		r = seal_as(upload, &to, asked->flags);
	if (r == 0)
		kv_upload_unlink(upload);
	kv_upload_put(upload);
	fuse_reply_err(req, -r);
}

/* Rename a file, on another thread if that seals a layout, which waits for the disk.
 * Valid replies: fuse_reply_err, or none yet. */
void kv_fs_rename(fuse_req_t req, fuse_ino_t parent, const char *name,
		  fuse_ino_t newparent, const char *newname, unsigned flags)
{
	const struct kv_change asked = {.make = rename_asked,
					.ino = parent,
					.name = name,
					.other = newparent,
					.text = newname,
					.flags = flags};
	struct kv_name parsed;

	if (kv_name_parse(name, -1, &parsed) == 0 &&
	    parsed.kind == KV_NAME_LAYOUT_TEMP)
		kv_change_later(req, &asked);
	else
		rename_asked(req, &asked);
}

/* ---- unlink ---- */

static int unlink_file(fuse_req_t req, const struct place *place)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	const struct fuse_ctx *ctx = fuse_req_ctx(req);
	struct kv_upload *upload;
	struct kv_block *block;
	struct kv_key key;
	int r;

	if (place->byte < 0 && strcmp(place->text, ".layout") == 0 &&
	    place->info.layout) {
		const struct kv_hidden_record new = {place->info.id, ctx->uid,
						     kv_process_of(ctx->pid),
						     kv_now_ns() + HIDDEN_NS};

		pthread_mutex_lock(&mount->lock);
		mount->hidden[mount->next_hidden++ % KV_HIDDEN_RECORDS] = new;
		pthread_mutex_unlock(&mount->lock);
		return 0;
	}
	if (place->byte >= 0 && kv_key_parse(place->text, &key) == 0 &&
	    kv_block_get(mount->cache, place->space, &key, &block) == 0) {
		r = kv_block_unlink(mount->cache, block);
		kv_block_put(mount->cache, block);
		return r;
	}
	r = kv_upload_find(mount->uploads, place->space, place->text,
			   fuse_req_ctx(req)->uid, &upload);
	if (r < 0)
		return r;
	if (kv_upload_is_for(upload, fuse_req_ctx(req)))
		kv_upload_unlink(upload);
	else
		r = -ENOENT;
	kv_upload_put(upload);
	return r;
}

/* Valid replies: fuse_reply_err. */
void kv_fs_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	struct kv_node node = kv_node_decode(parent);
	_cleanup_(place_putp) struct place place = {0};
	uint32_t position;
	int r;

	if (node.type == KV_NODE_SNAPSHOT) {
		r = kv_attr_space(mount, &node, &place.space, &place.info);
		if (r == 0)
			r = kv_permit(req, &place.info, W_OK | X_OK);
		if (r == 0)
			r = parse_position(name, &position);
		if (r == 0)
			r = kv_snapshot_unlink(mount->cache, node.value,
					       position);
	} else {
		r = find_place(req, parent, name, &place);
		/* Removing a name in .~tmp~ does not remove the block. */
		if (r == 0 && !is_delayed(&node))
			r = unlink_file(req, &place);
	}
	fuse_reply_err(req, -r);
}

/* ---- readlink, statfs ---- */

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

/* ---- unsupported calls ----
 *
 * The kernel itself answers calls without a handler: fallocate, ioctl,
 * copy_file_range, locks. */

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
