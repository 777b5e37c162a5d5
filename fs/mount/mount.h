/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mount.h - what all handlers of a mount share: its state, which daemon.c fills in; node
 * ids; attributes; checks of rights; snapshots; notices to the kernel.
 */
#ifndef KV_FS_MOUNT_MOUNT_H
#define KV_FS_MOUNT_MOUNT_H

/* The version of libfuse's low-level interface that fs/ uses. */
#define FUSE_USE_VERSION 312
#include <fuse3/fuse_lowlevel.h>
#include <sys/stat.h>

#include "cache/cache.h"
#include "fs/base/access.h"

/* Layouts that are hidden from the processes that removed them: see tree.c. */
#define KV_HIDDEN_RECORDS 64u
struct kv_hidden {
	pthread_mutex_t lock;
	unsigned next; /* lock, as are: */
	struct kv_hidden_record {
		uint32_t space; /* 0: none */
		uid_t uid;
		pid_t process;
		uint64_t until_ns;
	} records[KV_HIDDEN_RECORDS];
};

struct kv_mount {
	/* fixed after start, as are all other fields except `hidden` */
	struct kv_cache *cache;
	struct kv_uploads *uploads;
	struct kv_hidden hidden;
	struct kv_handles *handles;
	struct kv_notify *notify;
	struct kv_parking *parking;
	const char *control_path;
	const struct kv_rules *rules;
	uint32_t umask; /* cleared from the mode of new spaces */
	int64_t started_ns;
	uint32_t max_write, max_readahead; /* bytes, agreed with the kernel */
	/* Make the text of a file below .kvfs, as @reader may see it; caller
	 * frees. Returns 0, -ENOMEM or -ESTALE. */
	int (*text)(void *arg, uint64_t ino, const struct kv_caller *reader,
		    char **ret_text);
	void *arg;
};

/* The FUSE handlers, each of which replies exactly once. */
#define KV_FS_HANDLERS(X) \
	X(lookup);        \
	X(getattr);       \
	X(setattr);       \
	X(readlink);      \
	X(mknod);         \
	X(mkdir);         \
	X(unlink);        \
	X(rmdir);         \
	X(symlink);       \
	X(rename);        \
	X(link);          \
	X(open);          \
	X(read);          \
	X(write);         \
	X(flush);         \
	X(release);       \
	X(fsync);         \
	X(opendir);       \
	X(readdir);       \
	X(readdirplus);   \
	X(releasedir);    \
	X(fsyncdir);      \
	X(statfs);        \
	X(setxattr);      \
	X(getxattr);      \
	X(listxattr);     \
	X(removexattr);   \
	X(create)

#define KV_FS_DECLARE(op) \
	__typeof__(*((struct fuse_lowlevel_ops *)0)->op) kv_fs_##op
KV_FS_HANDLERS(KV_FS_DECLARE);

/* The caller makes a layout: no longer hide the old layout from its process. */
void kv_layout_show(struct kv_mount *mount, uint32_t space,
		    const struct fuse_ctx *ctx);

/* ---- node ids (inode numbers) ----
 *
 * An id encodes type, space, directory and block.  So the daemon keeps no state per
 * inode, ignores the kernel's FORGET requests, and uses no id twice. */

enum kv_node_type {
	KV_NODE_FIXED, /* the root and .kvfs; value: KV_NODE_ROOT and following */
	KV_NODE_BLOCK, /* value: kv_block_info.id */
	KV_NODE_SPACE,
	KV_NODE_DIR, /* a two-digit directory; has byte and life */
	KV_NODE_LAYOUT,
	KV_NODE_UPLOAD,	   /* a file being written; value: its serial */
	KV_NODE_SNAPSHOTS, /* a space's .snapshots */
	KV_NODE_SNAPSHOT,  /* value: kv_snapshot_info.id */
	KV_NODE_LINK, /* link to a block; value: snapshot's id; has position */
	KV_NODE_DELAYED, /* .~tmp~ of a two-digit directory; has byte and life */
	KV_NODE_DELAYED_LAYOUT, /* .~tmp~ of a space */
	KV_NODE_TENANT,		/* value: a user's id */
};

enum {
	KV_NODE_ROOT = 1,
	KV_NODE_KVFS, /* .kvfs */
	KV_NODE_CONTROL,
	KV_NODE_CONFIG,
	KV_NODE_STATS,
	KV_NODE_METRICS,
	KV_NODE_TENANTS,
	KV_NODE_FIXED_END,
};

/* Names of the fixed nodes; NULL: none. */
extern const char *const kv_fixed_names[KV_NODE_FIXED_END];

struct kv_node {
	enum kv_node_type type;
	uint64_t value;
	uint32_t space;
	uint8_t byte;
	uint32_t life;
	uint32_t position;
};

/* Return the node of a block, upload, snapshot or user with the id @value. */
uint64_t kv_node_of(enum kv_node_type type, uint64_t value);
/* Return a node that each space has once: the space, its layout or its
 * .snapshots. */
uint64_t kv_node_in(enum kv_node_type type, uint32_t space);
uint64_t kv_node_of_dir(uint32_t space, uint8_t byte, uint32_t life);
/* Return the node of a two-digit directory of the space, or 0 if there is none.  A
 * directory that is made again gets another node, because a process whose working
 * directory is the removed one would otherwise corrupt the kernel's view of the new one. */
uint64_t kv_dir_node(struct kv_mount *mount, struct kv_space *space,
		     uint32_t id, uint8_t byte);
/* Return the .~tmp~ of @parent, a KV_NODE_DIR or KV_NODE_SPACE. */
uint64_t kv_node_of_delayed(uint64_t parent);
uint64_t kv_node_of_link(uint64_t snapshot, uint32_t position);
struct kv_node kv_node_decode(uint64_t ino);

/* Parse the name of a two-digit directory, such as "ab".  Returns 0 or -EINVAL. */
int kv_dir_parse(const char *name, uint8_t *ret_byte);

/* ---- what stat(2) shows of a node ---- */

/*
 * Fill in the attributes of any node; @ret_timeout (or NULL) is how many seconds the
 * kernel may keep them.  Returns 0, -ESTALE if the node is gone, or -EIO.
 */
int kv_attr_of(struct kv_mount *mount, uint64_t ino, struct stat *ret_attr,
	       double *ret_timeout);
void kv_attr_block(const struct kv_block_info *info, struct stat *ret_attr);

/* Reply to a look-up with the node @ino, or with the error @r. */
void kv_reply_entry(fuse_req_t req, int r, uint64_t ino);

/* Get the space of @node, which is a space or a node below one other than a block or an
 * upload, if both still exist.  Returns 0 or -ESTALE. */
int kv_attr_space(struct kv_mount *mount, const struct kv_node *node,
		  struct kv_space **ret_space, struct kv_space_info *ret_info);

struct timespec kv_attr_time(int64_t ns);

#define KV_TIMEOUT_SPACE 1.0
#define KV_TIMEOUT_BLOCK 1.0  /* seconds; blocks and two-digit directories */
#define KV_TIMEOUT_FIXED 60.0 /* .kvfs */

/* Return how many seconds the kernel may keep the name of a node whose attributes it may
 * keep for @attr_timeout.  0 for snapshots: clients create and drop them by the socket. */
double kv_name_timeout(uint64_t ino, double attr_timeout);

#define KV_TENANT_NAME 11 /* room for a user's id in decimal and a NUL */

/* ---- the daemon's own checks of callers' rights, besides default_permissions ---- */

/* Return the process of the thread @tid, or @tid if the process cannot be seen; 0 for a
 * thread of another pid namespace. */
pid_t kv_process_of(pid_t tid);

/* Return the caller of @req with its groups; the caller frees *@ret_groups. */
struct kv_caller kv_permit_caller(fuse_req_t req, gid_t **ret_groups);

/* Check that the caller of @req may use the mount and, if @make, may make spaces.
 * Returns 0 or -EACCES.  Call this at each use: the kernel resolves names by itself
 * that other users looked up. */
int kv_permit_mount(fuse_req_t req, bool make);

/* Check that the caller has the rights @want (R_OK, W_OK, X_OK) in the space; or may read
 * the block's space.  Return 0 or -EACCES. */
int kv_permit(fuse_req_t req, const struct kv_space_info *info, int want);
int kv_permit_block_read(fuse_req_t req, struct kv_block *block);

/* Check that the caller is an operator (access.h); may give its files to the group @gid,
 * as chown(2) decides; or owns the space, or the block's space, or has root's rights.
 * Return 0 or -EPERM. */
int kv_permit_operator(fuse_req_t req);
int kv_permit_group(fuse_req_t req, uint32_t gid);
int kv_permit_owner(fuse_req_t req, const struct kv_space_info *info);
int kv_permit_block_owner(fuse_req_t req, struct kv_block *block);

/* ---- <space>/.snapshots/<name>/<position> ----
 *
 * A snapshot is a directory of symbolic links to its blocks.  A link's name is its block's
 * position, in exactly eight digits; a link exists even if its block is gone. */

#define KV_SNAPSHOTS ".snapshots"
#define KV_SNAPSHOT_TARGET_MAX (sizeof("../../ab/") + KV_NAME_MAX)

/* Return the target of a KV_NODE_LINK.  Returns 0 or -ESTALE. */
int kv_snapshots_target(struct kv_mount *mount, const struct kv_node *node,
			char ret_target[KV_SNAPSHOT_TARGET_MAX]);

/* ---- tell the kernel which attributes it must forget ----
 *
 * Notices name an inode, never a name: to forget a name the kernel takes the directory's
 * lock, which may be held by a process that waits for the daemon's answer.  If the daemon
 * is killed then, that thread keeps /dev/fuse open for ever and every process on the mount
 * hangs (observed).  After it has forgotten an inode's attributes, the kernel asks for
 * them, gets ESTALE if the inode is gone, and looks the name up again. */

int kv_notify_new(struct kv_mount *mount,
		  struct kv_notify **ret_notify); /* -ENOMEM */
void kv_notify_free(struct kv_notify *notify);	  /* stopped, or NULL */

/* Start the thread, once; earlier notices are dropped.  Returns 0 or -EAGAIN. */
int kv_notify_start(struct kv_notify *notify, struct fuse_session *session);
/* Stop the thread, if it runs; later notices are dropped. */
void kv_notify_stop(struct kv_notify *notify);

/*
 * Tell the kernel that the block @node is gone, or that owner or mode of the space @node,
 * of its directories and blocks have changed.  Never blocks.  When there are too many,
 * notices are dropped, and the kernel itself forgets the attributes after a second.
 */
void kv_notify_node(struct kv_notify *notify, uint64_t node);

#endif
