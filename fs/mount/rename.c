/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rename.c - rename and unlink.
 *
 * OWNS      nothing.
 *
 * INVARIANTS
 *   (1) Only a staging file is ever renamed, and only onto its own name: that
 *       seals it.
 *
 * LOCKING   none.
 */
#include <fcntl.h>
#include <stdio.h>

#include "fs/mount/attr.h"
#include "fs/mount/parked.h"
#include "fs/mount/hidden.h"
#include "fs/mount/ops.h"
#include "fs/mount/permit.h"
#include "fs/mount/snapshots.h"
#include "fs/mount/upload.h"

/* A directory in which files are written, and a name in it. */
struct place {
	struct kv_space *space; /* held */
	struct kv_space_info info;
	int byte; /* -1: the space's own directory */
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

/* Only staging files are renamed: blocks and directories stay. */
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
	enum kv_name_kind kind = kv_upload_name(upload)->kind;
	struct kv_name name;
	bool is_new;
	int r;

	if (kind != KV_NAME_TEMP && kind != KV_NAME_LAYOUT_TEMP)
		return -EPERM;
	r = kv_name_parse(to->text, to->byte, &name);
	if (r < 0)
		return r;
	if ((name.kind != KV_NAME_KEY && name.kind != KV_NAME_LAYOUT) ||
	    !kv_key_equal(&name.key, &kv_upload_name(upload)->key))
		return -EINVAL;
	r = kv_upload_seal(upload, &is_new);
	if (r == 0)
		return -EINVAL; /* nothing in it */
	if (r == 1 && !is_new && (flags & RENAME_NOREPLACE) != 0)
		return -EEXIST;
	return KV_MIN(r, 0);
}

static int rename_file(fuse_req_t req, const struct place *from,
		       const struct place *to, unsigned flags)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	struct kv_upload *upload;
	int r;

	r = kv_upload_find(mount->uploads, from->space, from->text,
			   fuse_req_ctx(req)->uid, &upload);
	if (r < 0)
		return refuse(mount, from);
	if (!kv_upload_is_for(upload, fuse_req_ctx(req)))
		r = -ENOENT;
	else if (to->space != from->space)
		r = -EXDEV;
	else
		r = seal_as(upload, to, flags);
	if (r == 0)
		kv_upload_unlink(upload);
	kv_upload_put(upload);
	return r;
}

static void rename_asked(fuse_req_t req, const struct kv_change *asked)
{
	_cleanup_(place_putp) struct place from = {0};
	_cleanup_(place_putp) struct place to = {0};
	int r;

	r = find_place(req, asked->ino, asked->name, &from);
	if (r == 0)
		r = find_place(req, asked->other, asked->text, &to);
	if (r == 0 && (asked->flags & ~(unsigned)RENAME_NOREPLACE) != 0)
		r = -EINVAL;
	if (r == 0)
		r = rename_file(req, &from, &to, asked->flags);
	fuse_reply_err(req, -r);
}

/* To seal a layout waits for the disk.
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

static int unlink_upload(fuse_req_t req, const struct place *place)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	struct kv_upload *upload;
	int r;

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

static int unlink_file(fuse_req_t req, const struct place *place)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	struct kv_block *block;
	struct kv_key key;
	int r;

	if (place->byte < 0 && strcmp(place->text, ".layout") == 0 &&
	    place->info.layout) {
		kv_hidden_add(mount->hidden, place->info.id, fuse_req_ctx(req));
		return 0;
	}
	if (place->byte < 0 || kv_key_parse(place->text, &key) < 0 ||
	    kv_block_get(mount->cache, place->space, &key, &block) < 0)
		return unlink_upload(req, place);
	r = kv_block_unlink(mount->cache, block);
	kv_block_put(mount->cache, block);
	return r;
}

static int unlink_link(fuse_req_t req, const struct kv_node *node,
		       const char *text)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	struct kv_space_info info;
	_cleanup_(kv_space_putp) struct kv_space *space = NULL;
	int r;

	r = kv_attr_space(mount, node, &space, &info);
	if (r == 0)
		r = kv_permit(req, &info, W_OK | X_OK);
	return r < 0 ? r : kv_snapshots_unlink(mount, node, text);
}

/* Valid replies: fuse_reply_err. */
void kv_fs_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct kv_node node = kv_node_decode(parent);
	_cleanup_(place_putp) struct place place = {0};
	int r;

	if (node.type == KV_NODE_SNAPSHOT) {
		fuse_reply_err(req, -unlink_link(req, &node, name));
		return;
	}
	r = find_place(req, parent, name, &place);
	/* Only the name in .~tmp~ goes: the block stays in its place. */
	if (r == 0 && !is_delayed(&node))
		r = unlink_file(req, &place);
	fuse_reply_err(req, -r);
}
