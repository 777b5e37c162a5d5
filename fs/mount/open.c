/* SPDX-License-Identifier: Apache-2.0 */
/*
 * open.c - open files: create, open, read, write, flush, fsync, release.
 *
 * OWNS      every open handle with its holds.  Written bytes belong to the upload
 *           (upload.c).
 *
 * INVARIANTS
 *   (1) The kernel may keep a block's pages for any time: a node id never means other
 *       bytes.
 *   (2) A file being written bypasses the page cache: its bytes may change.
 *   (3) A handle is on the list from open to release; a mount that ends with files open
 *       releases their holds.
 *   (4) The first flush or fsync that finds a file under a block's own name complete
 *       seals the block; renaming a staging file seals its block.
 *   (5) A flush of an empty file does nothing: shells send one before writing.
 *   (6) Sealing a layout waits for the disk, so a thread of parked.c does it.
 *
 * LOCKING   mount->lock guards the list and the last text; other fields of a handle are fixed after new.
 */
#include <fcntl.h>

#include "fs/mount/mount.h"

_Thread_local uint64_t kv_arrived_ns;

/* ---- handles ---- */

int kv_handle_new(fuse_req_t req, const struct kv_handle *from,
		  struct fuse_file_info *fi)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	struct kv_handle *handle = malloc(sizeof(*handle));
	int r = 0;

	if (!handle)
		return -ENOMEM;
	*handle = *from;
	handle->bytes = sizeof(*handle);
	if (handle->kind == KV_HANDLE_TEXT)
		handle->bytes += strlen(handle->text) + 1;
	if (handle->kind == KV_HANDLE_DIR)
		handle->bytes +=
			KV_MAX(handle->room, handle->n) * sizeof(uint64_t);
	handle->account = kv_account_get(kv_cache_accounts(mount->cache),
					 fuse_req_ctx(req)->uid);
	if (!handle->account) {
		r = -ENOMEM;
	} else if (kv_account_charge(handle->account, KV_FINITE_OPENS, 1) < 0) {
		r = -ENFILE;
	} else if (kv_account_charge(handle->account, KV_FINITE_MEMORY,
				     handle->bytes) < 0) {
		kv_account_credit(handle->account, KV_FINITE_OPENS, 1);
		r = -ENFILE;
	}
	if (r < 0) {
		kv_account_put(handle->account);
		free(handle);
		return r;
	}
	pthread_mutex_lock(&mount->lock);
	LIST_INSERT_HEAD(&mount->handles, handle, all);
	mount->opens++;
	pthread_mutex_unlock(&mount->lock);
	fi->fh = (uintptr_t)handle;
	return 0;
}

static void handle_drop(struct kv_mount *mount, struct kv_handle *handle)
{
	switch (handle->kind) {
	case KV_HANDLE_BLOCK:
		kv_open_credit(mount->cache, handle->charge);
		kv_block_put(mount->cache, handle->block);
		break;
	case KV_HANDLE_UPLOAD:
		kv_upload_closed(handle->upload, false);
		break;
	case KV_HANDLE_TEXT:
		free(handle->text);
		break;
	case KV_HANDLE_DIR:
		free(handle->nodes);
		break;
	}
}

void kv_handle_free(struct kv_mount *mount, struct kv_handle *handle)
{
	pthread_mutex_lock(&mount->lock);
	LIST_REMOVE(handle, all);
	pthread_mutex_unlock(&mount->lock);
	handle_drop(mount, handle);
	kv_account_credit(handle->account, KV_FINITE_OPENS, 1);
	kv_account_credit(handle->account, KV_FINITE_MEMORY, handle->bytes);
	kv_account_put(handle->account);
	free(handle);
}

void kv_handles_free(struct kv_mount *mount)
{
	struct kv_handle *handle;

	while ((handle = LIST_FIRST(&mount->handles)))
		kv_handle_free(mount, handle);
	free((gid_t *)mount->made.reader.groups);
	free(mount->made.text);
}

/* ---- opening ---- */

static bool wants_write(const struct fuse_file_info *fi)
{
	return (fi->flags & O_ACCMODE) != O_RDONLY ||
	       (fi->flags & O_TRUNC) != 0;
}

/* Open a block.  -ESTALE: the kernel looks the name up again, as another block
 * may have it. */
static int open_block(fuse_req_t req, uint64_t id, struct fuse_file_info *fi,
		      struct kv_handle *handle)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	struct kv_account *account = NULL;
	struct kv_space_info space;
	struct kv_block_info info;
	struct kv_block *block;
	int r;

	if (kv_block_get_id(mount->cache, id, &block) < 0)
		return -ESTALE;
	info = kv_block_stat(mount->cache, block);
	space = kv_space_stat(mount->cache, info.space);
	r = info.removed ? -ESTALE : kv_permit(req, &space, R_OK);
	if (r == 0 && wants_write(fi))
		r = -EPERM;
	if (r == 0) {
		account = kv_account_get(kv_cache_accounts(mount->cache),
					 fuse_req_ctx(req)->uid);
		r = account ? kv_open_charge(mount->cache, block, account,
					     &handle->charge)
			    : -ENOMEM;
		kv_account_put(account);
	}
	if (r < 0) {
		kv_block_put(mount->cache, block);
		return r;
	}
	kv_block_touch(mount->cache, block);
	handle->kind = KV_HANDLE_BLOCK;
	handle->block = block;
	fi->keep_cache = 1;
	fi->noflush = 1;
	return 0;
}

static int open_upload(fuse_req_t req, uint64_t serial,
		       struct fuse_file_info *fi, struct kv_handle *handle)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	struct kv_upload *upload, *fresh;
	int r;

	if (kv_upload_get(mount->uploads, serial, &upload) < 0)
		return -ESTALE;
	/* A file under a block's own name can be read once the block is sealed.
	 * If it was sealed since the look-up, the kernel must look the name up
	 * again, to find the block, whose pages may be mapped. */
	if (!kv_upload_is_for(upload, fuse_req_ctx(req)))
		r = -ENOENT;
	else if (upload->name.kind != KV_NAME_KEY)
		r = 0;
	else if (kv_upload_sealed(upload))
		r = -ESTALE;
	else
		r = wants_write(fi) ? 0 : -ENOENT;
	if (r == 0 && (fi->flags & O_TRUNC) != 0) {
		r = kv_upload_restart(upload, fuse_req_ctx(req), &fresh);
		if (r == 0)
			handle->upload = fresh;
	} else if (r == 0) {
		kv_upload_opened(upload);
		handle->upload = upload;
	}
	kv_upload_put(upload);
	handle->kind = KV_HANDLE_UPLOAD;
	fi->direct_io = 1;
	return r;
}

static int open_layout(fuse_req_t req, const struct kv_node *node,
		       struct fuse_file_info *fi, struct kv_handle *handle)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	const struct kv_name name = {.kind = KV_NAME_LAYOUT};
	struct kv_space_info info;
	_cleanup_(kv_space_putp) struct kv_space *space = NULL;
	int r;

	r = kv_attr_space(mount, node, &space, &info);
	if (r == 0)
		r = kv_permit(req, &info, wants_write(fi) ? W_OK : R_OK);
	if (r < 0)
		return r;
	fi->direct_io = 1;
	if (wants_write(fi)) {
		/* Give the upload the empty name, which is never looked up. */
		handle->kind = KV_HANDLE_UPLOAD;
		r = kv_upload_create(mount->uploads, space, "", &name,
				     fuse_req_ctx(req), 0600, &handle->upload);
		return r == -EEXIST ? -EBUSY : r;
	}
	if (!info.layout)
		return -ESTALE;
	handle->kind = KV_HANDLE_TEXT;
	handle->text = strdup(info.layout->json);
	return handle->text ? 0 : -ENOMEM;
}

/* Return a copy of the last text if it is of @ino, if its making began after this open had
 * come from the kernel, and if its reader had the rights of @reader; else NULL. */
static char *text_made(struct kv_mount *mount, uint64_t ino,
		       const struct kv_caller *reader)
{
	const struct kv_text_made *made = &mount->made;
	const size_t groups = reader->n_groups * sizeof(gid_t);
	char *text = NULL;

	pthread_mutex_lock(&mount->lock);
	if (made->ino == ino && made->began_ns >= kv_arrived_ns &&
	    made->reader.uid == reader->uid &&
	    made->reader.gid == reader->gid &&
	    made->reader.n_groups == reader->n_groups &&
	    (!groups ||
	     memcmp(made->reader.groups, reader->groups, groups) == 0))
		text = strdup(made->text);
	pthread_mutex_unlock(&mount->lock);
	return text;
}

static int open_text(fuse_req_t req, uint64_t ino, struct fuse_file_info *fi,
		     struct kv_handle *handle)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	const struct kv_node node = kv_node_decode(ino);
	_cleanup_(kv_freep) gid_t *groups = NULL;
	struct kv_text_made made = {.ino = ino}, old;
	int r = kv_permit_mount(req, false);

	if (r == 0 && node.type == KV_NODE_TENANT)
		r = kv_permit_tenant(req, node.value);
	if (r < 0)
		return r;
	if (wants_write(fi))
		return -EPERM;
	made.reader = kv_permit_caller(req, &groups);
	fi->direct_io = 1;
	handle->kind = KV_HANDLE_TEXT;
	handle->text = text_made(mount, ino, &made.reader);
	if (handle->text)
		return 0;
	made.began_ns = kv_now_ns();
	r = mount->text(mount->arg, ino, &made.reader, &handle->text);
	made.text = r == 0 ? strdup(handle->text) : NULL;
	if (!made.text)
		return r;
	(void)kv_steal(groups); /* of @made */
	pthread_mutex_lock(&mount->lock);
	old = mount->made;
	mount->made = made;
	pthread_mutex_unlock(&mount->lock);
	free((gid_t *)old.reader.groups);
	free(old.text);
	return 0;
}

/* Valid replies: fuse_reply_open, fuse_reply_err. */
void kv_fs_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	const struct kv_node node = kv_node_decode(ino);
	struct kv_handle handle = {0};
	int r;

	if (node.type == KV_NODE_BLOCK)
		r = open_block(req, node.value, fi, &handle);
	else if (node.type == KV_NODE_UPLOAD)
		r = open_upload(req, node.value, fi, &handle);
	else if (node.type == KV_NODE_LAYOUT)
		r = open_layout(req, &node, fi, &handle);
	else if (node.type == KV_NODE_FIXED || node.type == KV_NODE_TENANT)
		r = open_text(req, ino, fi, &handle);
	else
		r = -EISDIR;
	if (r == 0) {
		r = kv_handle_new(req, &handle, fi);
		if (r < 0)
			handle_drop(mount, &handle);
	}
	if (r < 0) {
		fuse_reply_err(req, -r);
		return;
	}
	/* The caller was interrupted, and will not release the handle. */
	if (fuse_reply_open(req, fi) < 0)
		kv_handle_free(mount, kv_handle_of(fi));
}

/* Valid replies: fuse_reply_buf, fuse_reply_err, or none yet. */
void kv_fs_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		struct fuse_file_info *fi)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	struct kv_handle *handle = kv_handle_of(fi);
	const uint64_t from = (uint64_t)off;
	_cleanup_(kv_freep) char *copy = NULL;
	struct kv_block *block = NULL;
	ssize_t n = -ENOMEM;
	size_t len;

	(void)ino;
	if (handle->kind == KV_HANDLE_BLOCK) {
		kv_read_block(req, handle->block, size, from);
		return;
	}
	if (handle->kind == KV_HANDLE_UPLOAD)
		block = kv_draft_block(handle->upload->draft);
	if (block) {
		kv_read_block(req, block, size, from);
		kv_block_put(mount->cache, block);
		return;
	}
	/* Reply with a copy: the kernel may release the handle during the call
	 * that replies. */
	copy = malloc(KV_MAX(size, 1u));
	if (copy && handle->kind == KV_HANDLE_UPLOAD) {
		n = kv_draft_read(handle->upload->draft, copy, size, from);
	} else if (copy) {
		len = strlen(handle->text);
		n = from < len ? (ssize_t)KV_MIN(size, len - from) : 0;
		memcpy(copy, handle->text + KV_MIN(from, len), (size_t)n);
	}
	if (n < 0)
		fuse_reply_err(req, (int)-n);
	else
		fuse_reply_buf(req, copy, (size_t)n);
}

/* ---- writing ---- */

/* Make an upload.  The kernel found no file of that name, but another process may
 * have made one since. */
static int create(fuse_req_t req, fuse_ino_t parent, const char *text,
		  mode_t mode, int flags, struct kv_upload **ret_upload)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	const struct fuse_ctx *ctx = fuse_req_ctx(req);
	struct kv_node node = kv_node_decode(parent);
	struct kv_space_info info;
	_cleanup_(kv_space_putp) struct kv_space *space = NULL;
	struct kv_upload *old;
	struct kv_block *block;
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
	if (name.kind == KV_NAME_LAYOUT) {
		(void)kv_layout_hidden(mount, info.id, ctx, true);
		/* Until text follows, layout_error reports an empty layout. */
		(void)kv_space_check_layout(mount->cache, space, 0, "", 0);
	}
	if (name.kind == KV_NAME_KEY && (flags & O_EXCL) != 0 &&
	    kv_block_get(mount->cache, space, &name.key, &block) == 0) {
		kv_block_put(mount->cache, block);
		return -EEXIST;
	}
	r = kv_upload_create(mount->uploads, space, text, &name, ctx, mode,
			     ret_upload);
	if (r == -EEXIST) {
		r = kv_upload_find(mount->uploads, space, text, ctx->uid, &old);
		if (r < 0)
			return -ESTALE;
		/* Other processes' uploads are invisible: each process writes its
		 * own, and the first complete one seals. */
		if ((flags & O_EXCL) != 0 && kv_upload_is_for(old, ctx) &&
		    !kv_upload_sealed(old))
			r = -EEXIST;
		else
			r = kv_upload_restart(old, ctx, ret_upload);
		kv_upload_put(old);
	}
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
	entry.ino = kv_node_of(KV_NODE_UPLOAD, handle.upload->serial);
	r = kv_attr_of(mount, entry.ino, &entry.attr, NULL);
	if (r == 0)
		r = kv_handle_new(req, &handle, fi);
	if (r < 0) {
		handle_drop(mount, &handle);
		fuse_reply_err(req, -r);
		return;
	}
	fi->direct_io = 1;
	/* The caller was interrupted, and will not release the handle. */
	if (fuse_reply_create(req, &entry, fi) < 0)
		kv_handle_free(mount, kv_handle_of(fi));
}

/* Make an empty upload: tar --xattrs makes a file with mknod(2), sets attributes, and then
 * opens the file.  Valid replies: fuse_reply_entry, fuse_reply_err. */
void kv_fs_mknod(fuse_req_t req, fuse_ino_t parent, const char *name,
		 mode_t mode, dev_t rdev)
{
	struct kv_upload *upload;
	uint64_t ino = 0;
	int r = -EPERM;

	(void)rdev;
	if (S_ISREG(mode))
		r = create(req, parent, name, mode, O_EXCL, &upload);
	if (r == 0) {
		ino = kv_node_of(KV_NODE_UPLOAD, upload->serial);
		kv_upload_closed(upload, true);
	}
	kv_reply_entry(req, r, ino);
}

/* Valid replies: fuse_reply_write, fuse_reply_err, or none yet. */
void kv_fs_write(fuse_req_t req, fuse_ino_t ino, const char *data, size_t n,
		 off_t off, struct fuse_file_info *fi)
{
	struct kv_handle *handle = kv_handle_of(fi);
	int r = -EPERM;

	(void)ino;
	if (handle->kind == KV_HANDLE_UPLOAD)
		r = kv_draft_write(handle->upload->draft, data, n,
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

/* Seal an upload under a final name; check one that will be renamed later. */
static int finish(struct kv_upload *upload)
{
	enum kv_name_kind kind = upload->name.kind;
	bool is_new;
	int r;

	if (kind == KV_NAME_KEY || kind == KV_NAME_LAYOUT)
		r = kv_upload_seal(upload, &is_new);
	else
		r = kv_draft_check(upload->draft);
	return KV_MIN(r, 0);
}

static bool is_layout(struct kv_upload *upload)
{
	return upload->name.kind == KV_NAME_LAYOUT &&
	       kv_draft_check(upload->draft) != 0;
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

/* Seal @upload and flush it.  Returns 0 if the request is answered later, 1 if
 * nothing is to be flushed, or -errno. */
static int sync_upload(fuse_req_t req, struct kv_upload *upload)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	struct kv_space *space = upload->space;
	struct kv_block *block;
	int r;

	r = finish(upload);
	if (r < 0)
		return r;
	if (upload->name.kind == KV_NAME_LAYOUT)
		return kv_sync_spaces(req, &space, 1);
	block = kv_draft_block(upload->draft);
	if (!block)
		return 1;
	r = kv_sync_block(req, block, false);
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
		r = kv_sync_block(req, handle->block, false);
	else if (handle->kind == KV_HANDLE_UPLOAD)
		r = sync_upload(req, handle->upload);
	if (r != 0)
		fuse_reply_err(req, -KV_MIN(r, 0));
}

/* Valid replies: fuse_reply_err. */
void kv_fs_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	(void)ino;
	kv_handle_free(fuse_req_userdata(req), kv_handle_of(fi));
	fuse_reply_err(req, 0);
}
