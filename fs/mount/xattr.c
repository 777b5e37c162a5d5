/* SPDX-License-Identifier: Apache-2.0 */
/*
 * xattr.c - the attributes user.kvfs.* of blocks, spaces and users.
 *
 * OWNS      nothing.
 *
 * INVARIANTS
 *   (1) Only user.kvfs.pin is listed, so that cp -a and rsync -X carry what a
 *       user chose and nothing else.
 *   (2) What is unknown is not there (ENODATA) and cannot be set (EOPNOTSUPP);
 *       what is known but only shown cannot be set either (EPERM).
 *   (3) Other namespaces than user. do not exist (EOPNOTSUPP): ls -l stops
 *       asking then.  ENOSYS would make the kernel stop asking for any.
 *
 * LOCKING   none.
 */
#include <stdio.h>
#include <sys/xattr.h>

#include "common/bytes.h"
#include "fs/mount/attr.h"
#include "fs/mount/parked.h"
#include "fs/mount/ops.h"
#include "fs/mount/permit.h"
#include "fs/base/quantity.h"
#include "fs/mount/upload.h"

#define PREFIX "user.kvfs."
#define NAMESPACE "user."
#define PIN PREFIX "pin"
#define VALUE_MAX 128 /* of all but the layout */

/* The part behind "user.kvfs.", or NULL. */
static const char *short_name(const char *name)
{
	size_t n = strlen(PREFIX);

	return strncmp(name, PREFIX, n) == 0 ? name + n : NULL;
}

/* ---- values of a block ---- */

static const char *tier_name(unsigned tiers)
{
	if (tiers == (KV_TIER_DRAM | KV_TIER_SSD))
		return "dram+ssd";
	return tiers == KV_TIER_DRAM ? "dram" : "ssd";
}

/* From what is in memory; -ENODATA: not there. */
static int quick_value(const struct kv_block_info *info, const char *name,
		       char *value)
{
	if (strcmp(name, "tier") == 0)
		return snprintf(value, VALUE_MAX, "%s", tier_name(info->tiers));
	if (strcmp(name, "hits") == 0)
		return snprintf(value, VALUE_MAX, "%u", info->hits);
	if (strcmp(name, "durable") == 0)
		return snprintf(value, VALUE_MAX, "%d", info->durable);
	if (strcmp(name, "pin") == 0)
		return snprintf(value, VALUE_MAX, "%d", info->pinned);
	if (strcmp(name, "leases") == 0)
		return snprintf(value, VALUE_MAX, "%u", info->leases);
	return -ENODATA;
}

static bool is_stored(const char *name)
{
	return strcmp(name, "digest") == 0 || strcmp(name, "parent") == 0 ||
	       strcmp(name, "position") == 0 || strcmp(name, "tokens") == 0;
}

static int stored_value(struct kv_mount *mount, struct kv_block *block,
			const char *name, char *value)
{
	struct kv_digest digest;
	struct kv_meta meta;
	int r;

	r = kv_block_meta(mount->cache, block, &meta, &digest);
	if (r < 0)
		return -EIO;
	value[0] = '\0';
	if (strcmp(name, "digest") == 0)
		kv_hex(digest.b, sizeof(digest.b), value);
	else if (strcmp(name, "parent") == 0 && meta.parent.len > 0)
		kv_key_name(&meta.parent, value);
	else if (strcmp(name, "position") == 0)
		sprintf(value, "%u", meta.position);
	else if (strcmp(name, "tokens") == 0)
		sprintf(value, "%u", meta.tokens);
	return (int)strlen(value);
}

static int block_value(struct kv_mount *mount, struct kv_block *block,
		       const char *name, char *value)
{
	struct kv_block_info info;

	if (is_stored(name))
		return stored_value(mount, block, name, value);
	info = kv_block_stat(mount->cache, block);
	return quick_value(&info, name, value);
}

/* ---- values of a space ---- */

static uint64_t *quota_of(struct kv_quota *quota, const char *name)
{
	if (strcmp(name, "quota.dram") == 0)
		return &quota->quota_dram;
	if (strcmp(name, "quota.ssd") == 0)
		return &quota->quota_ssd;
	if (strcmp(name, "reserve.dram") == 0)
		return &quota->reserve_dram;
	if (strcmp(name, "reserve.ssd") == 0)
		return &quota->reserve_ssd;
	return strcmp(name, "rate.put") == 0 ? &quota->rate_put : NULL;
}

/* ---- finding the file of a node ---- */

struct file {
	struct kv_mount *mount;
	struct kv_block *block;	  /* held, or else: */
	struct kv_upload *upload; /* held, not sealed yet */
};

static void file_putp(struct file *file)
{
	if (file->block)
		kv_block_put(file->mount->cache, file->block);
	if (file->upload)
		kv_upload_put(file->upload);
}

static int find(struct kv_mount *mount, const struct kv_node *node,
		struct file *ret_file)
{
	struct kv_upload *upload;

	ret_file->mount = mount;
	if (node->type == KV_NODE_BLOCK)
		return kv_block_get_id(mount->cache, node->value,
				       &ret_file->block) < 0
			       ? -ESTALE
			       : 0;
	if (kv_upload_get(mount->uploads, node->value, &upload) < 0)
		return -ESTALE;
	ret_file->block = kv_draft_block(kv_upload_draft(upload));
	if (!ret_file->block)
		ret_file->upload = upload;
	else
		kv_upload_put(upload);
	return 0;
}

static bool is_file(const struct kv_node *node)
{
	return node->type == KV_NODE_BLOCK || node->type == KV_NODE_UPLOAD;
}

/* ---- get ---- */

static void reply_value(fuse_req_t req, const char *value, size_t n,
			size_t size)
{
	if (size == 0)
		fuse_reply_xattr(req, n);
	else if (n > size)
		fuse_reply_err(req, ERANGE);
	else
		fuse_reply_buf(req, value, n);
}

static int file_value(fuse_req_t req, const struct kv_node *node,
		      const char *name, char *value)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	_cleanup_(file_putp) struct file file = {0};
	int r = find(mount, node, &file);

	if (r == 0 && file.block)
		r = kv_permit_block_read(req, file.block);
	if (r < 0)
		return r;
	if (file.block)
		return block_value(mount, file.block, name, value);
	if (strcmp(name, "pin") != 0)
		return -ENODATA;
	return sprintf(value, "%d", kv_upload_props(file.upload).pin);
}

static void reply_number(fuse_req_t req, uint64_t number, size_t size)
{
	char value[VALUE_MAX];
	int n = sprintf(value, "%llu", (unsigned long long)number);

	reply_value(req, value, (size_t)n, size);
}

static void get_of_tenant(fuse_req_t req, const struct kv_node *node,
			  const char *name, size_t size)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	struct kv_tenant_info info =
		kv_tenant_stat(mount->cache, (uint32_t)node->value);
	const uint64_t *quota = quota_of(&info.quota, name);
	int r = kv_permit_mount(req);

	if (r == 0 && quota)
		reply_number(req, *quota, size);
	else
		fuse_reply_err(req, r < 0 ? -r : ENODATA);
}

static void get_of_space(fuse_req_t req, const struct kv_node *node,
			 const char *name, size_t size)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	struct kv_space_info info;
	_cleanup_(kv_space_putp) struct kv_space *space = NULL;
	char why[KV_LAYOUT_ERROR_MAX + 1];
	uint64_t *quota;
	int r;

	r = kv_attr_space(mount, node, &space, &info);
	if (r == 0)
		r = kv_permit(req, &info, R_OK);
	quota = r < 0 ? NULL : quota_of(&info.quota, name);
	if (r == 0 && strcmp(name, "layout") == 0 && info.layout) {
		reply_value(req, info.layout->json, strlen(info.layout->json),
			    size);
	} else if (r == 0 && strcmp(name, "layout.error") == 0 &&
		   kv_space_layout_error(mount->cache, space, why) > 0) {
		reply_value(req, why, strlen(why), size);
	} else if (r == 0 && strcmp(name, "share") == 0) {
		reply_number(req, info.shared, size);
	} else if (quota) {
		reply_number(req, *quota, size);
	} else {
		fuse_reply_err(req, r < 0 ? -r : ENODATA);
	}
}

/* Valid replies: fuse_reply_buf, fuse_reply_xattr, fuse_reply_err. */
void kv_fs_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name,
		    size_t size)
{
	struct kv_node node = kv_node_decode(ino);
	const char *rest = short_name(name);
	char value[VALUE_MAX];
	int r = -ENODATA;

	if (strncmp(name, NAMESPACE, strlen(NAMESPACE)) != 0) {
		fuse_reply_err(req, EOPNOTSUPP);
		return;
	}
	if (rest && node.type == KV_NODE_SPACE) {
		get_of_space(req, &node, rest, size);
		return;
	}
	if (rest && node.type == KV_NODE_TENANT) {
		get_of_tenant(req, &node, rest, size);
		return;
	}
	if (rest && is_file(&node))
		r = file_value(req, &node, rest, value);
	if (r < 0)
		fuse_reply_err(req, -r);
	else
		reply_value(req, value, (size_t)r, size);
}

/* Valid replies: fuse_reply_buf, fuse_reply_xattr. */
void kv_fs_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size)
{
	struct kv_node node = kv_node_decode(ino);

	if (is_file(&node))
		reply_value(req, PIN, sizeof(PIN), size);
	else
		reply_value(req, "", 0, size);
}

/* ---- set ---- */

static int flag_of(const char *value, bool *ret_flag)
{
	if (strcmp(value, "0") != 0 && strcmp(value, "1") != 0)
		return -EINVAL;
	*ret_flag = value[0] == '1';
	return 0;
}

/* 1: it was answered, or will be. */
static int set_tier(fuse_req_t req, struct kv_block *block, const char *value)
{
	int r = -EINVAL;

	if (strcmp(value, "dram") == 0)
		r = kv_sync_promote(req, block);
	else if (strcmp(value, "ssd") == 0)
		r = kv_sync_demote(req, block);
	return r < 0 ? r : 1;
}

/* As set_tier. */
static int set_on_block(fuse_req_t req, struct kv_block *block,
			const char *name, const char *value)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	struct kv_block_info info;
	char now[VALUE_MAX];
	bool pin;
	int r;

	if (strcmp(name, "pin") == 0) {
		r = flag_of(value, &pin);
		return r < 0 ? r : kv_block_pin(mount->cache, block, pin);
	}
	if (strcmp(name, "tier") == 0)
		return set_tier(req, block, value);
	if (strcmp(name, "ended") == 0) {
		if (strcmp(value, "1") != 0)
			return -EINVAL;
		kv_block_end(mount->cache, block);
		return 0;
	}
	info = kv_block_stat(mount->cache, block);
	if (is_stored(name) || quick_value(&info, name, now) >= 0)
		return -EPERM;
	return -EOPNOTSUPP;
}

static int set_on_upload(struct kv_upload *upload, const char *name,
			 const char *value)
{
	struct kv_upload_props props = kv_upload_props(upload);
	int r;

	if (strcmp(name, "pin") != 0)
		return is_stored(name) ? -EPERM : -EOPNOTSUPP;
	r = flag_of(value, &props.pin);
	if (r == 0)
		kv_upload_set_props(upload, &props);
	return r;
}

static int set_on_file(fuse_req_t req, const struct kv_node *node,
		       const char *name, const char *value)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	_cleanup_(file_putp) struct file file = {0};
	int r = find(mount, node, &file);

	if (r == 0 && file.block)
		r = kv_permit_block_owner(req, file.block);
	if (r < 0)
		return r;
	return file.block ? set_on_block(req, file.block, name, value)
			  : set_on_upload(file.upload, name, value);
}

/* A limit that is lifted, a guarantee that is raised: at others' cost. */
static bool grants(const char *name, uint64_t old, uint64_t new)
{
	if (strncmp(name, "reserve.", 8) == 0)
		return new > old;
	return old != 0 && (new == 0 || new > old);
}

/* A quota of a tier may be given as a part of that, as it is now. */
static int parse_quota(struct kv_mount *mount, const char *name,
		       const char *value, uint64_t *ret_bytes)
{
	struct kv_cache_stats stats;
	struct kv_quantity q;
	uint64_t whole;

	if (kv_quantity_parse(value, &q) < 0 ||
	    (q.percent && strcmp(name, "rate.put") == 0))
		return -EINVAL;
	*ret_bytes = q.value;
	if (!q.percent)
		return 0;
	kv_cache_stats(mount->cache, &stats);
	whole = strstr(name, ".dram") ? stats.dram_total : stats.ssd_total;
	*ret_bytes = whole / 100 * q.value + whole % 100 * q.value / 100;
	/* 0 would be no limit. */
	return *ret_bytes ? 0 : -EINVAL;
}

static int set_on_tenant(fuse_req_t req, const struct kv_node *node,
			 const char *name, const char *value)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	const uint32_t uid = (uint32_t)node->value;
	struct kv_tenant_info info = kv_tenant_stat(mount->cache, uid);
	uint64_t *quota = quota_of(&info.quota, name);
	int r;

	if (!quota)
		return -EOPNOTSUPP;
	r = kv_permit_operator(req);
	if (r == 0)
		r = parse_quota(mount, name, value, quota);
	return r < 0 ? r : kv_tenant_set_quota(mount->cache, uid, &info.quota);
}

static int set_share(struct kv_mount *mount, struct kv_space *space,
		     const char *value)
{
	bool share;
	int r = flag_of(value, &share);

	return r < 0 ? r : kv_space_set_shared(mount->cache, space, share);
}

static int set_on_space(fuse_req_t req, const struct kv_node *node,
			const char *name, const char *value)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	struct kv_space_info info;
	_cleanup_(kv_space_putp) struct kv_space *space = NULL;
	uint64_t *quota, old;
	int r;

	r = kv_attr_space(mount, node, &space, &info);
	if (r < 0)
		return r;
	quota = quota_of(&info.quota, name);
	if (strcmp(name, "layout.error") == 0)
		return -EPERM;
	if (!quota && strcmp(name, "layout") != 0 && strcmp(name, "share") != 0)
		return -EOPNOTSUPP;
	r = kv_permit_owner(req, &info);
	if (r < 0 && strcmp(name, "share") == 0)
		r = kv_permit_operator(req);
	if (r < 0)
		return r;
	if (strcmp(name, "share") == 0)
		return set_share(mount, space, value);
	if (!quota)
		return kv_space_set_layout(mount->cache, space,
					   fuse_req_ctx(req)->uid, value,
					   strlen(value));
	old = *quota;
	r = parse_quota(mount, name, value, quota);
	if (r < 0)
		return r;
	r = grants(name, old, *quota) ? kv_permit_operator(req) : 0;
	return r < 0 ? r : kv_space_set_quota(mount->cache, space, &info.quota);
}

static void set_later(fuse_req_t req, const struct kv_change *asked)
{
	struct kv_node node = kv_node_decode(asked->ino);
	int r = node.type == KV_NODE_SPACE
			? set_on_space(req, &node, asked->name, asked->text)
			: set_on_tenant(req, &node, asked->name, asked->text);

	fuse_reply_err(req, -r);
}

/* As set_tier. */
static int set(fuse_req_t req, fuse_ino_t ino, const char *name,
	       const char *value)
{
	const struct kv_change asked = {
		.make = set_later, .ino = ino, .name = name, .text = value};
	struct kv_node node = kv_node_decode(ino);

	if (is_file(&node))
		return set_on_file(req, &node, name, value);
	if (node.type != KV_NODE_SPACE && node.type != KV_NODE_TENANT)
		return -EOPNOTSUPP;
	kv_change_later(req, &asked);
	return 1;
}

/* Valid replies: fuse_reply_err, or none yet. */
void kv_fs_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name,
		    const char *value, size_t size, int flags)
{
	_cleanup_(kv_freep) char *text = strndup(value, size);
	int r;

	if (!short_name(name))
		r = -EOPNOTSUPP;
	else if (!text)
		r = -ENOMEM;
	else if (strlen(text) != size) /* a NUL in it */
		r = -EINVAL;
	else if ((flags & XATTR_CREATE) != 0 && strcmp(name, PIN) == 0)
		r = -EEXIST; /* every block has one, 0 or 1 */
	else
		r = set(req, ino, short_name(name), text);
	if (r <= 0)
		fuse_reply_err(req, -r);
}

/* To take the pin's attribute away is to unpin: rsync -X does that.
 * Valid replies: fuse_reply_err. */
void kv_fs_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name)
{
	struct kv_node node = kv_node_decode(ino);
	const char *rest = short_name(name);
	int r = -ENODATA;

	if (rest && is_file(&node)) {
		r = set_on_file(req, &node, rest, "0");
		/* What is told and not kept is never there. */
		if (r == -EOPNOTSUPP ||
		    (r == -EINVAL && strcmp(rest, "ended") == 0))
			r = -ENODATA;
		if (strcmp(rest, "tier") == 0)
			r = -EPERM;
	}
	fuse_reply_err(req, -r);
}
