/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attr.c - getattr and setattr: stat, chmod, chown, utimens, truncate.
 *
 * OWNS      nothing.
 *
 * INVARIANTS
 *   (1) The sum of st_blocks over a space is the size of its blocks in the tiers:
 *       st_blocks is 0 for directories, and never 0 for a block.
 *   (2) Directories have one link, which tells find(1) not to count subdirectories.
 *   (3) chmod and chown change a space and a file being written.  On a block they
 *       succeed without a change, so that cp -a, tar and rsync do not fail.
 *   (4) The kernel has checked ownership (default_permissions); the daemon checks it
 *       again for spaces.
 *
 * LOCKING   none: the cache returns copies.
 */
#include <stdio.h>

#include "common/bytes.h"
#include "fs/mount/mount.h"

/* st_blksize: the size of reads and writes for cp(1) */
#define BLOCK_IO_BYTES (1 << 20)
#define SEC_MAX INT64_C(9000000000) /* year 2255; int64_t ns end in 2262 */
#define SET_OWNER (FUSE_SET_ATTR_MODE | FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID)

/* ---- node ids ---- */

#define TYPE_SHIFT 60
#define VALUE_MASK ((UINT64_C(1) << TYPE_SHIFT) - 1)
#define LIFE_SHIFT 40
#define LIFE_MASK ((1u << 20) - 1)
#define POSITION_SHIFT 32

uint64_t kv_node_of(enum kv_node_type type, uint64_t value)
{
	return (uint64_t)type << TYPE_SHIFT | (value & VALUE_MASK);
}

uint64_t kv_node_in(enum kv_node_type type, uint32_t space)
{
	return kv_node_of(type, (uint64_t)space << 8);
}

uint64_t kv_node_of_dir(uint32_t space, uint8_t byte, uint32_t life)
{
	return kv_node_of(KV_NODE_DIR, (uint64_t)(life & LIFE_MASK)
						       << LIFE_SHIFT |
					       (uint64_t)space << 8 | byte);
}

uint64_t kv_node_of_delayed(uint64_t parent)
{
	bool of_dir = kv_node_decode(parent).type == KV_NODE_DIR;

	return kv_node_of(of_dir ? KV_NODE_DELAYED : KV_NODE_DELAYED_LAYOUT,
			  parent);
}

uint64_t kv_node_of_link(uint64_t snapshot, uint32_t position)
{
	return kv_node_of(KV_NODE_LINK,
			  (uint64_t)position << POSITION_SHIFT | snapshot);
}

struct kv_node kv_node_decode(uint64_t ino)
{
	enum kv_node_type type = (enum kv_node_type)(ino >> TYPE_SHIFT);
	uint64_t value = ino & VALUE_MASK;

	return (struct kv_node){
		.type = type,
		.value = type == KV_NODE_LINK ? (uint32_t)value : value,
		.position = (uint32_t)(value >> POSITION_SHIFT),
		.space = (uint32_t)(ino >> 8),
		.byte = (uint8_t)ino,
		.life = (uint32_t)(ino >> LIFE_SHIFT) & LIFE_MASK,
	};
}

int kv_dir_parse(const char *name, uint8_t *ret_byte)
{
	return strlen(name) == 2 ? kv_unhex(name, 1, ret_byte) : -EINVAL;
}

const char *const kv_fixed_names[KV_NODE_FIXED_END] = {
	[KV_NODE_KVFS] = ".kvfs",      [KV_NODE_CONTROL] = "control",
	[KV_NODE_CONFIG] = "config",   [KV_NODE_STATS] = "stats",
	[KV_NODE_METRICS] = "metrics", [KV_NODE_TENANTS] = "tenants"};

uint64_t kv_dir_node(struct kv_mount *mount, struct kv_space *space,
		     uint32_t id, uint8_t byte)
{
	uint32_t life;

	return kv_dir_exists(mount->cache, space, byte, &life)
		       ? kv_node_of_dir(id, byte, life)
		       : 0;
}

/* ---- attributes ---- */

struct timespec kv_attr_time(int64_t ns)
{
	struct timespec t = {.tv_sec = ns / 1000000000,
			     .tv_nsec = ns % 1000000000};

	if (t.tv_nsec < 0) {
		t.tv_sec--;
		t.tv_nsec += 1000000000;
	}
	return t;
}

static void attr_times(struct stat *st, int64_t mtime_ns, int64_t atime_ns)
{
	st->st_mtim = st->st_ctim = kv_attr_time(mtime_ns);
	st->st_atim = kv_attr_time(KV_MAX(atime_ns, mtime_ns));
}

int kv_attr_space(struct kv_mount *mount, const struct kv_node *node,
		  struct kv_space **ret_space, struct kv_space_info *ret_info)
{
	struct kv_snapshot_info snapshot = {.space = node->space};
	struct kv_space_info info;
	_cleanup_(kv_space_putp) struct kv_space *space = NULL;

	if ((node->type == KV_NODE_SNAPSHOT || node->type == KV_NODE_LINK) &&
	    kv_snapshot_stat(mount->cache, node->value, &snapshot) < 0)
		return -ESTALE;
	space = kv_space_by_id(mount->cache, snapshot.space);
	if (!space)
		return -ESTALE;
	info = kv_space_stat(mount->cache, space);
	if (info.removed)
		return -ESTALE;
	if ((node->type == KV_NODE_DIR || node->type == KV_NODE_DELAYED) &&
	    kv_dir_node(mount, space, node->space, node->byte) !=
		    kv_node_of_dir(node->space, node->byte, node->life))
		return -ESTALE;
	*ret_space = kv_steal(space);
	*ret_info = info;
	return 0;
}

void kv_attr_block(const struct kv_block_info *info, struct stat *ret_attr)
{
	*ret_attr = (struct stat){
		.st_ino = kv_node_of(KV_NODE_BLOCK, info->id),
		.st_mode = S_IFREG | (0644 & info->mode),
		.st_nlink = info->removed ? 0 : 1,
		.st_uid = info->uid,
		.st_gid = info->gid,
		.st_size = (off_t)info->length,
		.st_blksize = BLOCK_IO_BYTES,
		.st_blocks = (blkcnt_t)KV_MAX(info->held / 512, 1),
	};
	attr_times(ret_attr, info->mtime_ns, info->atime_ns);
}

static int attr_fixed(const struct kv_mount *mount, uint64_t ino,
		      struct stat *st)
{
	st->st_uid = mount->rules->uid;
	st->st_gid = mount->rules->gid;
	attr_times(st, mount->started_ns, 0);
	switch (ino) {
	case KV_NODE_ROOT:
		st->st_mode = S_IFDIR | mount->rules->mode;
		return 0;
	case KV_NODE_KVFS:
	case KV_NODE_TENANTS:
		st->st_mode = S_IFDIR | 0555;
		return 0;
	case KV_NODE_CONTROL:
		st->st_mode = S_IFLNK | 0777;
		st->st_size = (off_t)strlen(mount->control_path);
		return 0;
	case KV_NODE_CONFIG:
	case KV_NODE_STATS:
	case KV_NODE_METRICS:
		/* The text is made at open, as in /proc, so its size is unknown. */
		st->st_mode = S_IFREG | 0444;
		return 0;
	default:
		return -ESTALE;
	}
}

int kv_snapshots_target(struct kv_mount *mount, const struct kv_node *node,
			char ret_target[KV_SNAPSHOT_TARGET_MAX])
{
	char name[KV_NAME_MAX + 1];
	struct kv_pick pick;

	if (kv_snapshot_read(mount->cache, node->value, node->position, &pick,
			     1) != 1 ||
	    pick.position != node->position)
		return -ESTALE;
	kv_key_name(&pick.key, name);
	snprintf(ret_target, KV_SNAPSHOT_TARGET_MAX, "../../%.2s/%s", name,
		 name);
	return 0;
}

/* Change @st from the attributes of a directory of the space to those of a snapshot or
 * of a link in one. */
static int attr_snapshot(struct kv_mount *mount, const struct kv_node *node,
			 struct stat *st)
{
	char target[KV_SNAPSHOT_TARGET_MAX];
	struct kv_snapshot_info info;
	int r;

	if (kv_snapshot_stat(mount->cache, node->value, &info) < 0)
		return -ESTALE;
	attr_times(st, info.mtime_ns, 0);
	if (node->type == KV_NODE_SNAPSHOT)
		return 0;
	r = kv_snapshots_target(mount, node, target);
	if (r < 0)
		return r;
	st->st_mode = S_IFLNK | 0777;
	st->st_size = (off_t)strlen(target);
	return 0;
}

static int attr_in_space(struct kv_mount *mount, const struct kv_node *node,
			 struct stat *st)
{
	_cleanup_(kv_space_putp) struct kv_space *space = NULL;
	struct kv_space_info info;
	int r;

	r = kv_attr_space(mount, node, &space, &info);
	if (r < 0)
		return r;
	st->st_mode = S_IFDIR | info.mode;
	st->st_uid = info.uid;
	st->st_gid = info.gid;
	attr_times(st,
		   node->type == KV_NODE_DIR
			   ? kv_dir_mtime(mount->cache, space, node->byte)
			   : info.mtime_ns,
		   0);
	if (node->type == KV_NODE_SNAPSHOT || node->type == KV_NODE_LINK)
		return attr_snapshot(mount, node, st);
	if (node->type != KV_NODE_LAYOUT)
		return 0;
	if (!info.layout)
		return -ESTALE;
	st->st_mode = S_IFREG | (0644 & info.mode);
	st->st_size = (off_t)strlen(info.layout->json);
	st->st_blocks = (st->st_size + 511) / 512;
	return 0;
}

double kv_name_timeout(uint64_t ino, double attr_timeout)
{
	return kv_node_decode(ino).type == KV_NODE_SNAPSHOT ? 0 : attr_timeout;
}

int kv_attr_of(struct kv_mount *mount, uint64_t ino, struct stat *ret_attr,
	       double *ret_timeout)
{
	const struct kv_node node = kv_node_decode(ino);
	double timeout = KV_TIMEOUT;
	struct kv_block_info info;
	int r = 0;

	*ret_attr = (struct stat){
		.st_ino = ino, .st_nlink = 1, .st_blksize = KV_PAGE};
	switch (node.type) {
	case KV_NODE_FIXED:
		if (ino != KV_NODE_ROOT)
			timeout = KV_TIMEOUT_FIXED;
		r = attr_fixed(mount, ino, ret_attr);
		break;
	case KV_NODE_TENANT:
		/* The kernel lets the daemon's user set the attributes of the
		 * file; kv_permit_tenant() restricts readers. */
		timeout = KV_TIMEOUT_FIXED;
		ret_attr->st_mode = S_IFREG | 0644;
		ret_attr->st_uid = geteuid();
		ret_attr->st_gid = getegid();
		attr_times(ret_attr, mount->started_ns, 0);
		break;
	case KV_NODE_BLOCK:
		if (kv_block_stat_id(mount->cache, node.value, &info) < 0)
			r = -ESTALE;
		else
			kv_attr_block(&info, ret_attr);
		break;
	case KV_NODE_UPLOAD:
		timeout = 0;
		r = kv_upload_stat(mount->uploads, node.value, ret_attr);
		break;
	default:
		if (node.type == KV_NODE_LAYOUT)
			timeout = 0;
		r = attr_in_space(mount, &node, ret_attr);
	}
	if (ret_timeout)
		*ret_timeout = timeout;
	return r;
}

void kv_reply_entry(fuse_req_t req, int r, uint64_t ino)
{
	struct fuse_entry_param entry = {.ino = ino};

	if (r == 0 && kv_attr_of(fuse_req_userdata(req), ino, &entry.attr,
				 &entry.attr_timeout) < 0)
		r = -ENOENT; /* the node was removed meanwhile */
	entry.entry_timeout = kv_name_timeout(ino, entry.attr_timeout);
	if (r < 0)
		fuse_reply_err(req, -r);
	else
		fuse_reply_entry(req, &entry);
}

/* ---- setting ---- */

/* Return the modification time to set; 0: none.  Times outside the range are set
 * to its end, as other filesystems do, and the epoch to a nanosecond later. */
static int64_t mtime_of(const struct stat *attr, int to_set)
{
	int64_t sec, ns;

	if (to_set & FUSE_SET_ATTR_MTIME_NOW)
		return kv_wall_ns();
	if (!(to_set & FUSE_SET_ATTR_MTIME))
		return 0;
	sec = KV_MAX(KV_MIN(attr->st_mtim.tv_sec, SEC_MAX), -SEC_MAX);
	ns = sec * 1000000000 + attr->st_mtim.tv_nsec;
	return ns ? ns : 1;
}

static int set_block(struct kv_mount *mount, struct kv_block *block,
		     const struct stat *attr, int to_set)
{
	int64_t mtime_ns = mtime_of(attr, to_set);

	if (to_set & FUSE_SET_ATTR_SIZE)
		return -EPERM;
	/* Count a use of the block for `touch -a`, or any time "now"; not for
	 * cp -a or tar, which set both times. */
	if (to_set & FUSE_SET_ATTR_ATIME_NOW ||
	    (to_set & FUSE_SET_ATTR_ATIME && !(to_set & FUSE_SET_ATTR_MTIME)))
		kv_block_touch(mount->cache, block);
	if (mtime_ns != 0)
		return kv_block_set_mtime(mount->cache, block, mtime_ns);
	return 0;
}

static int set_space(fuse_req_t req, const struct kv_node *node,
		     const struct stat *attr, int to_set)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	int64_t mtime_ns = mtime_of(attr, to_set);
	struct kv_space_info info;
	_cleanup_(kv_space_putp) struct kv_space *space = NULL;
	uint32_t uid, gid, mode;
	int r;

	r = kv_attr_space(mount, node, &space, &info);
	if (r < 0)
		return r;
	/* Directories of a space have the space's owner, mode and time. */
	if (node->type != KV_NODE_SPACE)
		return to_set & FUSE_SET_ATTR_SIZE ? -EPERM : 0;
	uid = to_set & FUSE_SET_ATTR_UID ? attr->st_uid : info.uid;
	gid = to_set & FUSE_SET_ATTR_GID ? attr->st_gid : info.gid;
	mode = to_set & FUSE_SET_ATTR_MODE ? attr->st_mode & 07777 : info.mode;
	r = to_set & SET_OWNER ? kv_permit_owner(req, &info) : 0;
	/* Only operators may change the owner: the space would look as if the
	 * new owner had made it. */
	if (r == 0 && uid != info.uid)
		r = kv_permit_operator(req);
	if (r == 0 && gid != info.gid)
		r = kv_permit_group(req, gid);
	if (r < 0)
		return r;
	if (uid != info.uid || gid != info.gid || mode != info.mode) {
		r = kv_space_chown(mount->cache, space, uid, gid, mode);
		kv_notify_node(mount, kv_node_in(KV_NODE_SPACE, info.id));
	}
	if (r == 0 && mtime_ns != 0)
		r = kv_space_set_mtime(mount->cache, space, mtime_ns);
	return r;
}

static int set_upload(struct kv_mount *mount, struct kv_upload *upload,
		      const struct stat *attr, int to_set)
{
	struct kv_block *block = kv_draft_block(upload->draft);
	struct kv_upload_props props = kv_upload_props(upload);
	int64_t mtime_ns = mtime_of(attr, to_set);
	int r = 0;

	if (block) {
		r = set_block(mount, block, attr, to_set);
		kv_block_put(mount->cache, block);
		return r;
	}
	if (to_set & FUSE_SET_ATTR_SIZE && attr->st_size == 0)
		r = kv_draft_reset(upload->draft);
	else if (to_set & FUSE_SET_ATTR_SIZE &&
		 (uint64_t)attr->st_size != kv_draft_size(upload->draft))
		r = -EINVAL;
	if (r < 0)
		return r;
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

/* Set attributes of a block, or of a file that is being written: of the open file @fi, or
 * without @fi of the upload that has the node now. */
static int set_file(fuse_req_t req, const struct kv_node *node,
		    const struct fuse_file_info *fi, const struct stat *attr,
		    int to_set)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	struct kv_upload *upload;
	struct kv_block *block;
	int r;

	if (node->type == KV_NODE_BLOCK) {
		if (kv_block_get_id(mount->cache, node->value, &block) < 0)
			return -ESTALE;
		r = kv_permit_block_owner(req, block);
		if (r == 0)
			r = set_block(mount, block, attr, to_set);
		kv_block_put(mount->cache, block);
		return r;
	}
	if (fi && kv_handle_of(fi)->kind == KV_HANDLE_UPLOAD)
		return set_upload(mount, kv_handle_of(fi)->upload, attr,
				  to_set);
	if (kv_upload_get(mount->uploads, node->value, &upload) < 0)
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

static void set_later(fuse_req_t req, const struct kv_change *asked)
{
	struct kv_node node = kv_node_decode(asked->ino);
	int r = set_space(req, &node, &asked->attr, (int)asked->flags);

	if (r < 0)
		fuse_reply_err(req, -r);
	else
		reply_attr(req, asked->ino);
}

/* Valid replies: fuse_reply_attr, fuse_reply_err, or none yet. */
void kv_fs_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr,
		   int to_set, struct fuse_file_info *fi)
{
	const struct kv_change asked = {.make = set_later,
					.ino = ino,
					.attr = *attr,
					.flags = (unsigned)to_set};
	const struct kv_mount *mount = fuse_req_userdata(req);
	const struct kv_rules *rules = mount->rules;
	struct kv_node node = kv_node_decode(ino);
	int r = -EPERM;

	if (node.type == KV_NODE_SPACE) {
		kv_change_later(req, &asked);
		return;
	}
	if (node.type == KV_NODE_BLOCK || node.type == KV_NODE_UPLOAD ||
	    (node.type == KV_NODE_LAYOUT && fi &&
	     kv_handle_of(fi)->kind == KV_HANDLE_UPLOAD))
		r = set_file(req, &node, fi, attr, to_set);
	else if (ino == KV_NODE_ROOT)
		/* Accept times, and the owner and mode that the root directory
		 * has: tar and rsync restore them when they unpack there.
		 * Nothing is changed. */
		r = to_set & FUSE_SET_ATTR_SIZE ||
				    (to_set & FUSE_SET_ATTR_UID &&
				     attr->st_uid != rules->uid) ||
				    (to_set & FUSE_SET_ATTR_GID &&
				     attr->st_gid != rules->gid) ||
				    (to_set & FUSE_SET_ATTR_MODE &&
				     (attr->st_mode & 07777) != rules->mode)
			    ? -EPERM
			    : 0;
	else if (node.type != KV_NODE_FIXED && node.type != KV_NODE_TENANT)
		r = set_space(req, &node, attr, to_set);
	if (r < 0)
		fuse_reply_err(req, -r);
	else
		reply_attr(req, ino);
}
