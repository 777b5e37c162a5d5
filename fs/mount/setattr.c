/* SPDX-License-Identifier: Apache-2.0 */
/*
 * setattr.c - stat, chmod, chown, utimens, truncate.
 *
 * OWNS      nothing.
 *
 * INVARIANTS
 *   (1) chmod and chown change a space and a file being written, succeed on a
 *       block and change nothing, so that cp -a, tar and rsync are content.
 *   (2) The kernel has checked ownership (default_permissions); a space is
 *       checked again here.
 *
 * LOCKING   none.
 */
#include "fs/mount/attr.h"
#include "fs/mount/handle.h"
#include "fs/mount/ops.h"
#include "fs/mount/permit.h"

#define SET_OWNER (FUSE_SET_ATTR_MODE | FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID)

static int64_t ns_of(const struct timespec *t)
{
	return (int64_t)t->tv_sec * 1000000000 + t->tv_nsec;
}

/* The time to store, 0 if none is given. */
static int64_t mtime_of(const struct stat *attr, int to_set)
{
	if (to_set & FUSE_SET_ATTR_MTIME_NOW)
		return kv_wall_ns();
	return to_set & FUSE_SET_ATTR_MTIME ? ns_of(&attr->st_mtim) : 0;
}

/* `touch -a`, or anything that says "now"; not cp -a or tar, which set both. */
static bool is_touch(int to_set)
{
	return (to_set & FUSE_SET_ATTR_ATIME_NOW) != 0 ||
	       ((to_set & FUSE_SET_ATTR_ATIME) != 0 &&
		(to_set & FUSE_SET_ATTR_MTIME) == 0);
}

static int set_block(struct kv_mount *mount, struct kv_block *block,
		     const struct stat *attr, int to_set)
{
	int64_t mtime_ns = mtime_of(attr, to_set);

	if (to_set & FUSE_SET_ATTR_SIZE)
		return -EPERM;
	if (is_touch(to_set))
		kv_block_touch(mount->cache, block);
	if (mtime_ns != 0)
		return kv_block_set_mtime(mount->cache, block, mtime_ns);
	return 0;
}

static int set_block_id(struct kv_mount *mount, uint64_t id,
			const struct stat *attr, int to_set)
{
	struct kv_block *block;
	int r;

	r = kv_block_get_id(mount->cache, id, &block);
	if (r < 0)
		return -ESTALE;
	r = set_block(mount, block, attr, to_set);
	kv_block_put(mount->cache, block);
	return r;
}

static int set_space(fuse_req_t req, const struct kv_node *node,
		     const struct stat *attr, int to_set)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	int64_t mtime_ns = mtime_of(attr, to_set);
	struct kv_space_info info;
	struct kv_space *space;
	uint32_t uid, gid, mode;
	int r;

	r = kv_attr_space(mount, node, &space, &info);
	if (r < 0)
		return r;
	/* Directories below have their space's owner, mode and time. */
	if (node->type != KV_NODE_SPACE)
		return to_set & FUSE_SET_ATTR_SIZE ? -EPERM : 0;
	uid = to_set & FUSE_SET_ATTR_UID ? attr->st_uid : info.uid;
	gid = to_set & FUSE_SET_ATTR_GID ? attr->st_gid : info.gid;
	mode = to_set & FUSE_SET_ATTR_MODE ? attr->st_mode & 07777 : info.mode;
	if (to_set & SET_OWNER) {
		r = kv_permit_owner(req, &info);
		if (r < 0)
			return r;
	}
	if (uid != info.uid || gid != info.gid || mode != info.mode) {
		r = kv_space_chown(mount->cache, space, uid, gid, mode);
		kv_mount_changed(mount, space);
	}
	if (r == 0 && mtime_ns != 0)
		r = kv_space_set_mtime(mount->cache, space, mtime_ns);
	return r;
}

static int set_size(struct kv_upload *upload, uint64_t size)
{
	struct kv_draft *draft = kv_upload_draft(upload);

	if (size == 0)
		return kv_draft_reset(draft);
	return size == kv_draft_size(draft) ? 0 : -EINVAL;
}

static int set_upload(struct kv_mount *mount, struct kv_upload *upload,
		      const struct stat *attr, int to_set)
{
	struct kv_block *block = kv_draft_block(kv_upload_draft(upload));
	struct kv_upload_props props = kv_upload_props(upload);
	int64_t mtime_ns = mtime_of(attr, to_set);
	int r;

	if (block != NULL) {
		r = set_block(mount, block, attr, to_set);
		kv_block_put(mount->cache, block);
		return r;
	}
	if (to_set & FUSE_SET_ATTR_SIZE) {
		r = set_size(upload, (uint64_t)attr->st_size);
		if (r < 0)
			return r;
	}
	if (to_set & FUSE_SET_ATTR_MODE)
		props.mode = attr->st_mode & 07777;
	if (to_set & FUSE_SET_ATTR_UID)
		props.uid = attr->st_uid;
	if (to_set & FUSE_SET_ATTR_GID)
		props.gid = attr->st_gid;
	if (mtime_ns != 0)
		props.mtime_ns = mtime_ns;
	kv_upload_set_props(upload, &props);
	return 0;
}

/* The file's own upload if it is open, else the one that has the name now. */
static int set_upload_node(struct kv_mount *mount, uint64_t serial,
			   const struct fuse_file_info *fi,
			   const struct stat *attr, int to_set)
{
	struct kv_upload *upload;
	int r;

	if (fi != NULL && kv_handle_of(fi)->kind == KV_HANDLE_UPLOAD)
		return set_upload(mount, kv_handle_of(fi)->upload, attr,
				  to_set);
	if (kv_upload_get(mount->uploads, serial, &upload) < 0)
		return -ESTALE;
	r = set_upload(mount, upload, attr, to_set);
	kv_upload_put(upload);
	return r;
}

static void reply_attr(fuse_req_t req, fuse_ino_t ino)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	struct stat st;
	double timeout;
	int r;

	r = kv_attr_of(mount, ino, &st, &timeout);
	if (r < 0)
		fuse_reply_err(req, -r);
	else
		fuse_reply_attr(req, &st, timeout);
}

/* Valid replies: fuse_reply_attr, fuse_reply_err. */
void kv_fs_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	(void)fi;
	reply_attr(req, ino);
}

/* Valid replies: fuse_reply_attr, fuse_reply_err. */
void kv_fs_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr,
		   int to_set, struct fuse_file_info *fi)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	struct kv_node node = kv_node_decode(ino);
	int r = -EPERM;

	if (node.type == KV_NODE_BLOCK)
		r = set_block_id(mount, node.value, attr, to_set);
	else if (node.type == KV_NODE_UPLOAD)
		r = set_upload_node(mount, node.value, fi, attr, to_set);
	else if (node.type == KV_NODE_LAYOUT && fi != NULL &&
		 kv_handle_of(fi)->kind == KV_HANDLE_UPLOAD)
		r = set_upload(mount, kv_handle_of(fi)->upload, attr, to_set);
	else if (node.type != KV_NODE_FIXED)
		r = set_space(req, &node, attr, to_set);
	if (r < 0)
		fuse_reply_err(req, -r);
	else
		reply_attr(req, ino);
}
