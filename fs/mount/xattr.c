/* SPDX-License-Identifier: Apache-2.0 */
/*
 * xattr.c - the attributes user.kvfs.* of blocks, spaces and users: one table.
 *
 * OWNS      nothing.
 *
 * INVARIANTS
 *   (1) Only user.kvfs.pin of a block, and user.kvfs.share of a space that is shared,
 *       are listed, so that cp -a and rsync -X carry what a user chose and nothing
 *       else.
 *   (2) Reading an unknown attribute fails with ENODATA, setting one with
 *       EOPNOTSUPP.  Setting an attribute without a set function fails with EPERM.
 *   (3) Namespaces other than "user." fail with EOPNOTSUPP: ls -l then stops
 *       asking.  ENOSYS would make the kernel stop asking for any attribute.
 *
 * LOCKING   none.
 */
#include <stdio.h>
#include <sys/xattr.h>

#include "common/bytes.h"
#include "fs/base/stats.h"
#include "fs/mount/mount.h"

#define PREFIX "user.kvfs."
#define NAMESPACE "user."
#define PIN PREFIX "pin"
#define SHARE PREFIX "share"
/* most bytes of an attribute's value, except a layout */
#define VALUE_MAX KV_MAX(KV_LAYOUT_ERROR_MAX + 1, 128)

/* The block, file, space or user whose attribute is read or set. */
struct object {
	struct kv_mount *mount;
	fuse_req_t req;
	struct kv_block *block;	  /* pinned (get/put); NULL: no block */
	struct kv_upload *upload; /* pinned (get/put); NULL: no unsealed file */
	struct kv_space *space;	  /* pinned (get/put); NULL: no space */
	struct kv_space_info info;
	uint32_t uid;	       /* uid of the user */
	struct kv_quota quota; /* quota of the space or user */
	const char *text; /* attribute's value, if not in the caller's buffer */
};

static void object_fini(struct object *object)
{
	if (object->block)
		kv_block_put(object->mount->cache, object->block);
	if (object->upload)
		kv_upload_put(object->upload);
	kv_space_put(object->space);
}

/* UPLOAD: this attribute of a block also exists while its file is written. */
enum level { BLOCK = 1, SPACE = 2, USER = 4, UPLOAD = 8 };

/* A row of the table of attributes.  Functions return -errno on failure; @get
 * returns the length of the value, which is in @value (VALUE_MAX bytes) or
 * object->text. */
struct attr {
	const char *name;
	unsigned levels; /* bit set of enum level */
	int (*get)(const struct attr *attr, struct object *object,
		   char *value); /* @get NULL: the attribute has no value */
	/* Return 0, -errno, or 1 if the request was or will be answered. */
	int (*set)(const struct attr *attr, struct object *object,
		   const char *value); /* NULL: @set is not possible */
	/* offset in struct kv_quota, or one of the enumerators below */
	size_t at;
};

/* ---- blocks ---- */

static int set_tier(const struct attr *attr, struct object *object,
		    const char *value)
{
	int r = -EINVAL;

	(void)attr;
	if (strcmp(value, "dram") == 0)
		r = kv_sync_promote(object->req, object->block);
	else if (strcmp(value, "ssd") == 0)
		r = kv_sync_block(object->req, object->block, true);
	return r < 0 ? r : 1;
}

/* Values of attr->at for figures of a block that are in memory. */
enum { TIER, HITS, DURABLE, LEASES };

static int get_info(const struct attr *attr, struct object *object, char *value)
{
	const struct kv_block_info info =
		kv_block_stat(object->mount->cache, object->block);
	if (attr->at == TIER)
		return sprintf(value, "%s%s%s%s",
			       info.tiers & KV_TIER_DRAM ? "dram" : "",
			       (info.tiers & KV_TIER_DRAM) &&
					       (info.tiers & KV_TIER_SSD)
				       ? "+"
				       : "",
			       info.tiers & KV_TIER_SSD ? "ssd" : "",
			       info.tiers & KV_TIER_REMOTE ? "+remote" : "");
	return sprintf(value, "%u",
		       attr->at == HITS	     ? info.hits
		       : attr->at == DURABLE ? info.durable
					     : info.leases);
}

/* Values of attr->at for figures that are stored with a block. */
enum { DIGEST, PARENT, POSITION, TOKENS };

static int get_stored(const struct attr *attr, struct object *object,
		      char *value)
{
	struct kv_digest digest;
	struct kv_meta meta;

	if (kv_block_meta(object->mount->cache, object->block, &meta, &digest) <
	    0)
		return -EIO;
	value[0] = '\0';
	if (attr->at == DIGEST)
		kv_hex(digest.b, sizeof(digest.b), value);
	else if (attr->at == POSITION || attr->at == TOKENS)
		sprintf(value, "%u",
			attr->at == POSITION ? meta.position : meta.tokens);
	else if (meta.parent.len > 0)
		kv_key_name(&meta.parent, value);
	return (int)strlen(value);
}

static int parse_flag(const char *value, bool *ret_flag)
{
	if (strcmp(value, "0") != 0 && strcmp(value, "1") != 0)
		return -EINVAL;
	*ret_flag = value[0] == '1';
	return 0;
}

static int get_pin(const struct attr *attr, struct object *object, char *value)
{
	(void)attr;
	return sprintf(value, "%d",
		       object->upload ? kv_upload_props(object->upload).pin
				      : kv_block_stat(object->mount->cache,
						      object->block)
						.pinned);
}

static int set_pin(const struct attr *attr, struct object *object,
		   const char *value)
{
	struct kv_upload_props props;
	bool pin;
	int r = parse_flag(value, &pin);

	(void)attr;
	if (r < 0)
		return r;
	if (!object->upload)
		return kv_block_pin(object->mount->cache, object->block, pin);
	props = kv_upload_props(object->upload);
	props.pin = pin;
	kv_upload_set_props(object->upload, &props);
	return 0;
}

static int set_ended(const struct attr *attr, struct object *object,
		     const char *value)
{
	(void)attr;
	if (strcmp(value, "1") != 0)
		return -EINVAL;
	kv_block_end(object->mount->cache, object->block);
	return 0;
}

/* ---- spaces and users ---- */

static int get_layout(const struct attr *attr, struct object *object,
		      char *value)
{
	(void)attr;
	(void)value;
	if (!object->info.layout)
		return -ENODATA;
	object->text = object->info.layout->json;
	return (int)strlen(object->text);
}

static int set_layout(const struct attr *attr, struct object *object,
		      const char *value)
{
	int r = kv_permit_owner(object->req, &object->info);

	(void)attr;
	return r < 0 ? r
		     : kv_space_set_layout(object->mount->cache, object->space,
					   fuse_req_ctx(object->req)->uid,
					   value, strlen(value));
}

static int get_layout_error(const struct attr *attr, struct object *object,
			    char *value)
{
	(void)attr;
	return kv_space_layout_error(object->mount->cache, object->space,
				     value) > 0
		       ? (int)strlen(value)
		       : -ENODATA;
}

static int get_share(const struct attr *attr, struct object *object,
		     char *value)
{
	(void)attr;
	return sprintf(value, "%d", object->info.shared);
}

static int set_share(const struct attr *attr, struct object *object,
		     const char *value)
{
	bool share = false;
	int r = kv_permit_owner(object->req, &object->info);

	(void)attr;
	if (r < 0)
		r = kv_permit_operator(object->req);
	if (r == 0)
		r = parse_flag(value, &share);
	return r < 0 ? r
		     : kv_space_set_shared(object->mount->cache, object->space,
					   share);
}

static int get_quota(const struct attr *attr, struct object *object,
		     char *value)
{
	return sprintf(value, "%llu",
		       (unsigned long long)*(
			       uint64_t *)((char *)&object->quota + attr->at));
}

static int set_quota(const struct attr *attr, struct object *object,
		     const char *value)
{
	char text[VALUE_MAX + 16];

	if (strchr(value, ' ')) /* another limit would follow */
		return -EINVAL;
	snprintf(text, sizeof(text), "%s=%s", attr->name, value);
	return kv_limits_set(object->mount->cache, object->mount->rules,
			     fuse_req_ctx(object->req)->uid, object->space,
			     object->uid, text);
}

/* ---- the table ---- */

#define QUOTA(name, field)                         \
	{name, SPACE | USER, get_quota, set_quota, \
	 offsetof(struct kv_quota, field)},

static const struct attr attrs[] = {
	{"pin", BLOCK | UPLOAD, get_pin, set_pin},
	{"tier", BLOCK, get_info, set_tier, TIER},
	{"ended", BLOCK, NULL, set_ended},
	{"hits", BLOCK, get_info, NULL, HITS},
	{"durable", BLOCK, get_info, NULL, DURABLE},
	{"leases", BLOCK, get_info, NULL, LEASES},
	{"digest", BLOCK, get_stored, NULL, DIGEST},
	{"parent", BLOCK, get_stored, NULL, PARENT},
	{"position", BLOCK, get_stored, NULL, POSITION},
	{"tokens", BLOCK, get_stored, NULL, TOKENS},
	{"layout", SPACE, get_layout, set_layout},
	{"layout.error", SPACE, get_layout_error, NULL},
	{"share", SPACE, get_share, set_share},
	KV_QUOTAS(QUOTA)};

static unsigned level_of(const struct kv_node *node)
{
	switch (node->type) {
	case KV_NODE_BLOCK:
	case KV_NODE_UPLOAD:
		return BLOCK;
	case KV_NODE_SPACE:
		return SPACE;
	case KV_NODE_TENANT:
		return USER;
	default:
		return 0;
	}
}

/* Find the attribute @name that nodes of @level have; NULL if there is none. */
static const struct attr *find_attr(const char *name, unsigned level)
{
	if (strncmp(name, PREFIX, strlen(PREFIX)) != 0)
		return NULL;
	for (size_t i = 0; i < KV_ARRAY_LEN(attrs); i++)
		if (strcmp(attrs[i].name, name + strlen(PREFIX)) == 0 &&
		    (attrs[i].levels & level))
			return &attrs[i];
	return NULL;
}

/* Find the object of @node and store it in the zeroed *@ret_object. */
static int find_object(fuse_req_t req, const struct kv_node *node,
		       struct object *ret_object)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	int r;

	ret_object->req = req;
	ret_object->mount = mount;
	switch (node->type) {
	case KV_NODE_BLOCK:
		return kv_block_get_id(mount->cache, node->value,
				       &ret_object->block) < 0
			       ? -ESTALE
			       : 0;
	case KV_NODE_UPLOAD:
		if (kv_upload_get(mount->uploads, node->value,
				  &ret_object->upload) < 0)
			return -ESTALE;
		ret_object->block = kv_draft_block(ret_object->upload->draft);
		if (ret_object->block)
			kv_upload_put(kv_steal(ret_object->upload));
		return 0;
	case KV_NODE_SPACE:
		r = kv_attr_space(mount, node, &ret_object->space,
				  &ret_object->info);
		ret_object->quota = ret_object->info.quota;
		return r;
	default:
		ret_object->uid = (uint32_t)node->value;
		ret_object->quota =
			kv_tenant_stat(mount->cache, ret_object->uid).quota;
		return 0;
	}
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

/* Valid replies: fuse_reply_buf, fuse_reply_xattr, fuse_reply_err. */
void kv_fs_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name,
		    size_t size)
{
	const struct kv_node node = kv_node_decode(ino);
	const unsigned level = level_of(&node);
	const struct attr *attr = find_attr(name, level);
	_cleanup_(object_fini) struct object object = {0};
	char value[VALUE_MAX];
	int r = 0;

	if (strncmp(name, NAMESPACE, strlen(NAMESPACE)) != 0) {
		fuse_reply_err(req, EOPNOTSUPP);
		return;
	}
	if (level)
		r = find_object(req, &node, &object);
	if (r == 0 && level == USER)
		r = kv_permit_tenant(req, object.uid);
	else if (r == 0 && level == SPACE)
		r = kv_permit(req, &object.info, R_OK);
	else if (r == 0 && object.block)
		r = kv_permit_block_read(req, object.block);
	if (r == 0)
		r = !attr || !attr->get ||
				    (object.upload && !(attr->levels & UPLOAD))
			    ? -ENODATA
			    : attr->get(attr, &object, value);
	if (r < 0)
		fuse_reply_err(req, -r);
	else
		reply_value(req, object.text ? object.text : value, (size_t)r,
			    size);
}

/* Valid replies: fuse_reply_buf, fuse_reply_xattr. */
void kv_fs_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size)
{
	const struct kv_node node = kv_node_decode(ino);
	const unsigned level = level_of(&node);
	_cleanup_(object_fini) struct object object = {0};
	bool shared;

	shared = level == SPACE && find_object(req, &node, &object) == 0 &&
		 object.info.shared;
	if (shared)
		reply_value(req, SHARE, sizeof(SHARE), size);
	else
		reply_value(req, PIN, level == BLOCK ? sizeof(PIN) : 0, size);
}

/* ---- set ---- */

/* Set an attribute.  Returns 0, -errno, or 1: the request will be answered. */
static int set_attr(fuse_req_t req, fuse_ino_t ino, const char *name,
		    const char *value)
{
	const struct kv_node node = kv_node_decode(ino);
	const unsigned level = level_of(&node);
	const struct attr *attr = find_attr(name, level);
	_cleanup_(object_fini) struct object object = {0};
	int r;

	if (!level)
		return -EOPNOTSUPP;
	r = find_object(req, &node, &object);
	if (r == 0 && object.block)
		r = kv_permit_block_owner(req, object.block);
	if (r < 0)
		return r;
	if (!attr)
		return -EOPNOTSUPP;
	if (object.upload && !(attr->levels & UPLOAD))
		return attr->get == get_stored ? -EPERM : -EOPNOTSUPP;
	return attr->set ? attr->set(attr, &object, value) : -EPERM;
}

static void set_later(fuse_req_t req, const struct kv_change *asked)
{
	fuse_reply_err(req,
		       -set_attr(req, asked->ino, asked->name, asked->text));
}

/* Valid replies: fuse_reply_err, or none yet. */
void kv_fs_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name,
		    const char *value, size_t size, int flags)
{
	_cleanup_(kv_freep) char *text = strndup(value, size);
	const struct kv_change asked = {
		.make = set_later, .ino = ino, .name = name, .text = text};
	const struct kv_node node = kv_node_decode(ino);
	const unsigned level = level_of(&node);
	int r;

	if (strncmp(name, PREFIX, strlen(PREFIX)) != 0) {
		r = -EOPNOTSUPP;
	} else if (!text) {
		r = -ENOMEM;
	} else if (strlen(text) != size) { /* the value has a NUL */
		r = -EINVAL;
	} else if ((flags & XATTR_CREATE) != 0 && strcmp(name, PIN) == 0) {
		r = -EEXIST; /* every block has the attribute, as 0 or 1 */
	} else if (level == SPACE || level == USER) {
		kv_change_later(req, &asked);
		return;
	} else {
		r = set_attr(req, ino, name, text);
	}
	if (r <= 0)
		fuse_reply_err(req, -r);
}

/* Removing the attribute `pin`, as rsync -X does, unpins the block.
 * Valid replies: fuse_reply_err. */
void kv_fs_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name)
{
	const struct kv_node node = kv_node_decode(ino);
	const unsigned level = level_of(&node);
	const struct attr *attr = find_attr(name, level);
	int r = -ENODATA;

	if (level == BLOCK && strncmp(name, PREFIX, strlen(PREFIX)) == 0) {
		r = set_attr(req, ino, name, "0");
		/* An attribute that can only be set counts as absent. */
		if (r == -EOPNOTSUPP || (r == -EINVAL && attr && !attr->get))
			r = -ENODATA;
		if (attr && attr->set == set_tier)
			r = -EPERM;
	}
	fuse_reply_err(req, -r);
}
