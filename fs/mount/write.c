/* SPDX-License-Identifier: Apache-2.0 */
/*
 * write.c - create, mknod, write, flush, fsync.
 *
 * OWNS      nothing: what is written is an upload's.
 *
 * INVARIANTS
 *   (1) A file under a block's own name is sealed by the first flush or fsync
 *       that finds it complete; a staging file by its rename.
 *   (2) A flush of an empty file does nothing: shells send one before writing.
 *   (3) To seal a layout waits for the disk, and is done by who may.
 *
 * LOCKING   none.
 */
#include <fcntl.h>

#include "fs/mount/attr.h"
#include "fs/mount/hidden.h"
#include "fs/mount/open.h"
#include "fs/mount/ops.h"
#include "fs/mount/parked.h"
#include "fs/mount/permit.h"

/* The kernel found no file of that name; by now there may be one. */
static int create_upload(fuse_req_t req, struct kv_space *space,
			 const char *text, const struct kv_name *name,
			 mode_t mode, int flags, struct kv_upload **ret_upload)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	const struct fuse_ctx *ctx = fuse_req_ctx(req);
	struct kv_upload *old;
	struct kv_block *block;
	int r;

	if (name->kind == KV_NAME_KEY && (flags & O_EXCL) != 0 &&
	    kv_block_get(mount->cache, space, &name->key, &block) == 0) {
		kv_block_put(mount->cache, block);
		return -EEXIST;
	}
	r = kv_upload_create(mount->uploads, space, text, name, ctx, mode,
			     ret_upload);
	if (r != -EEXIST)
		return r;
	r = kv_upload_find(mount->uploads, space, text, ctx->uid, &old);
	if (r < 0)
		return -ESTALE;
	/* For another process it is not there: each goes on by itself, and who
	 * is complete first seals. */
	if ((flags & O_EXCL) != 0 && kv_upload_is_for(old, ctx))
		r = -EEXIST;
	else
		r = kv_upload_restart(old, ctx, ret_upload);
	kv_upload_put(old);
	return r;
}

static int create(fuse_req_t req, fuse_ino_t parent, const char *text,
		  mode_t mode, int flags, struct kv_upload **ret_upload)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	struct kv_node node = kv_node_decode(parent);
	struct kv_space_info info;
	_cleanup_(kv_space_putp) struct kv_space *space = NULL;
	struct kv_name name;
	int r;

	if (node.type != KV_NODE_SPACE && node.type != KV_NODE_DIR)
		return -EPERM;
	r = kv_attr_space(mount, &node, &space, &info);
	if (r < 0)
		return r;
	r = kv_permit(req, &info, W_OK | X_OK);
	if (r < 0)
		return r;
	r = kv_name_parse(text, node.type == KV_NODE_DIR ? node.byte : -1,
			  &name);
	if (r < 0)
		return r;
	if (name.kind == KV_NAME_LAYOUT)
		kv_hidden_end(mount->hidden, info.id, fuse_req_ctx(req));
	r = create_upload(req, space, text, &name, mode, flags, ret_upload);
	if (r == 0 && name.kind == KV_NAME_KEY)
		kv_dir_changed(mount->cache, space, node.byte);
	return r;
}

/* Valid replies: fuse_reply_create, fuse_reply_err. */
void kv_fs_create(fuse_req_t req, fuse_ino_t parent, const char *name,
		  mode_t mode, struct fuse_file_info *fi)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	struct kv_handle handle = {.kind = KV_HANDLE_UPLOAD};
	struct fuse_entry_param entry = {0};
	int r;

	r = create(req, parent, name, mode, fi->flags, &handle.upload);
	if (r < 0) {
		fuse_reply_err(req, -r);
		return;
	}
	entry.ino = kv_node_of_upload(kv_upload_serial(handle.upload));
	r = kv_attr_of(mount, entry.ino, &entry.attr, NULL);
	if (r == 0)
		r = kv_handle_new(req, &handle, fi);
	if (r < 0) {
		kv_handle_drop(mount, &handle);
		fuse_reply_err(req, -r);
		return;
	}
	fi->direct_io = 1;
	/* The caller was interrupted: nobody will release it. */
	if (fuse_reply_create(req, &entry, fi) < 0)
		kv_handle_free(mount, kv_handle_of(fi));
}

/* tar --xattrs makes a file so, sets attributes, and opens it then.
 * Valid replies: fuse_reply_entry, fuse_reply_err. */
void kv_fs_mknod(fuse_req_t req, fuse_ino_t parent, const char *name,
		 mode_t mode, dev_t rdev)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	struct fuse_entry_param entry = {0};
	struct kv_upload *upload;
	int r = -EPERM;

	(void)rdev;
	if (S_ISREG(mode))
		r = create(req, parent, name, mode, O_EXCL, &upload);
	if (r < 0) {
		fuse_reply_err(req, -r);
		return;
	}
	entry.ino = kv_node_of_upload(kv_upload_serial(upload));
	kv_upload_park(upload);
	r = kv_attr_of(mount, entry.ino, &entry.attr, NULL);
	if (r < 0)
		fuse_reply_err(req, -r);
	else
		fuse_reply_entry(req, &entry);
}

/* Valid replies: fuse_reply_write, fuse_reply_err, or none yet. */
void kv_fs_write(fuse_req_t req, fuse_ino_t ino, const char *data, size_t n,
		 off_t off, struct fuse_file_info *fi)
{
	struct kv_handle *handle = kv_handle_of(fi);
	int r = -EPERM;

	(void)ino;
	if (handle->kind == KV_HANDLE_UPLOAD)
		r = kv_draft_write(kv_upload_draft(handle->upload), data, n,
				   (uint64_t)off);
	if (r == -EAGAIN || r == -EBUSY) {
		r = kv_park_write(req, handle->upload, data, n, (uint64_t)off);
		if (r == 0)
			return;
	}
	if (r < 0)
		fuse_reply_err(req, -r);
	else
		fuse_reply_write(req, n);
}

/* Seal what is sealed by closing; what is renamed later is only checked. */
static int finish(struct kv_upload *upload)
{
	enum kv_name_kind kind = kv_upload_name(upload)->kind;
	bool is_new;
	int r;

	if (kind == KV_NAME_KEY || kind == KV_NAME_LAYOUT)
		r = kv_upload_seal(upload, &is_new);
	else
		r = kv_draft_check(kv_upload_draft(upload));
	return KV_MIN(r, 0);
}

static bool is_layout(struct kv_upload *upload)
{
	return kv_upload_name(upload)->kind == KV_NAME_LAYOUT &&
	       kv_draft_check(kv_upload_draft(upload)) != 0;
}

static void flush_later(fuse_req_t req, const struct kv_change *asked)
{
	fuse_reply_err(req, -finish(asked->upload));
}

/* Valid replies: fuse_reply_err, or none yet. */
void kv_fs_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct kv_handle *handle = kv_handle_of(fi);
	const struct kv_change asked = {.make = flush_later,
					.upload = handle->upload};

	(void)ino;
	if (handle->kind != KV_HANDLE_UPLOAD)
		fuse_reply_err(req, 0);
	else if (is_layout(handle->upload))
		kv_change_later(req, &asked);
	else
		flush_later(req, &asked);
}

/* 1: there is nothing to wait for. */
static int sync_upload(fuse_req_t req, struct kv_upload *upload)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	struct kv_space *space = kv_upload_space(upload);
	struct kv_block *block;
	int r;

	r = finish(upload);
	if (r < 0)
		return r;
	if (kv_upload_name(upload)->kind == KV_NAME_LAYOUT)
		return kv_sync_spaces(req, &space, 1);
	block = kv_draft_block(kv_upload_draft(upload));
	if (!block)
		return 1;
	r = kv_sync_block(req, block);
	kv_block_put(mount->cache, block);
	return r;
}

static void sync_later(fuse_req_t req, const struct kv_change *asked)
{
	int r = sync_upload(req, asked->upload);

	if (r != 0)
		fuse_reply_err(req, -KV_MIN(r, 0));
}

/* Valid replies: fuse_reply_err, or none yet. */
void kv_fs_fsync(fuse_req_t req, fuse_ino_t ino, int datasync,
		 struct fuse_file_info *fi)
{
	struct kv_handle *handle = kv_handle_of(fi);
	const struct kv_change asked = {.make = sync_later,
					.upload = handle->upload};
	int r = 1;

	(void)ino;
	(void)datasync;
	if (handle->kind == KV_HANDLE_UPLOAD && is_layout(handle->upload)) {
		kv_change_later(req, &asked);
		return;
	}
	if (handle->kind == KV_HANDLE_BLOCK)
		r = kv_sync_block(req, handle->block);
	else if (handle->kind == KV_HANDLE_UPLOAD)
		r = sync_upload(req, handle->upload);
	if (r != 0)
		fuse_reply_err(req, -KV_MIN(r, 0));
}
