/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mount.h - what all handlers of a mount share: its state, which daemon.c fills in; node
 * ids; attributes; checks of rights; snapshots; notices to the kernel; open files; requests
 * that wait; drafts and uploads.
 */
#ifndef KV_FS_MOUNT_MOUNT_H
#define KV_FS_MOUNT_MOUNT_H

/* The version of libfuse's low-level interface that fs/ uses. */
#define FUSE_USE_VERSION 312
#include <fuse3/fuse_lowlevel.h>
#include <sys/queue.h>
#include <sys/stat.h>

#include "cache/cache.h"
#include "cache/core/account.h"
#include "common/block.h"
#include "common/thread.h"
#include "fs/base/access.h"

#define KV_HIDDEN_RECORDS 64u
#define KV_NOTICES 4096u

struct kv_mount {
	/* fields without a mark are fixed after start */
	struct kv_cache *cache;
	struct kv_uploads *uploads;
	struct kv_parking *parking;
	const char *control_path;
	const struct kv_rules *rules;
	uint32_t umask; /* bits cleared in the mode of new spaces */
	int64_t started_ns;
	/* largest requests in bytes, agreed with the kernel */
	uint32_t max_write, max_readahead;
	/* Make the text of a file below .kvfs, as @reader may see it; caller
	 * frees. Returns 0, -ENOMEM or -ESTALE. */
	int (*text)(void *arg, uint64_t ino, const struct kv_caller *reader,
		    char **ret_text);
	void *arg;

	pthread_mutex_t lock;		/* taken before the notifier's lock */
	LIST_HEAD(, kv_handle) handles; /* lock */
	uint64_t opens;			/* lock; handles made so far */
	/* Layouts hidden from the processes that removed them: see tree.c. */
	struct kv_hidden_record {
		uint32_t space; /* 0: none */
		uid_t uid;
		pid_t process;
		uint64_t until_ns;
	} hidden[KV_HIDDEN_RECORDS]; /* lock */
	unsigned next_hidden;	     /* lock; index of the oldest record */
	/* lock; the newest text of a file, for other readers with its reader's rights */
	struct kv_text_made {
		uint64_t ino, began_ns;
		struct kv_caller reader; /* owns its groups */
		char *text;		 /* NULL: none yet */
	} made;

	/* queue of notices; only notify.c uses these fields */
	struct kv_periodic notifier;
	struct fuse_session *session;
	bool notifying; /* guarded by lock: the notifier runs */
	unsigned first_notice, n_notices; /* lock */
	uint64_t notices[KV_NOTICES];	  /* lock; ring of changed nodes */
};

/* The time at which the request of this thread was read from the kernel. */
extern _Thread_local uint64_t kv_arrived_ns;

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

/* Return true if the layout of @space is hidden from the process of @ctx, which
 * has removed that layout.  With @show, end this: the process makes a layout
 * again. */
bool kv_layout_hidden(struct kv_mount *mount, uint32_t space,
		      const struct fuse_ctx *ctx, bool show);

/* ---- node ids (inode numbers) ----
 *
 * An id encodes type, space, directory and block.  So the daemon keeps no state per
 * inode, ignores the kernel's FORGET requests, and uses no id twice. */

enum kv_node_type {
	KV_NODE_FIXED, /* root, .kvfs and its files; value: KV_NODE_ROOT, ... */
	KV_NODE_BLOCK, /* value: the id in struct kv_block_info */
	KV_NODE_SPACE,
	KV_NODE_DIR, /* directory "ab" has @byte 0xab; each mkdir gives a new @life */
	KV_NODE_LAYOUT,
	KV_NODE_UPLOAD,	   /* a file being written; value: its serial */
	KV_NODE_SNAPSHOTS, /* a space's .snapshots */
	KV_NODE_SNAPSHOT,  /* value: kv_snapshot_info.id */
	/* link in a snapshot, at @position; value: the snapshot's id */
	KV_NODE_LINK,
	KV_NODE_DELAYED, /* .~tmp~ in a KV_NODE_DIR of that @byte and @life */
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

/* Names of .kvfs and of the files in it; NULL: no name. */
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
/* Return the node of a space, its layout or its .snapshots. */
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

#define KV_TIMEOUT 1.0	      /* seconds */
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

/* Check that the caller has the rights @want (R_OK, W_OK, X_OK) in the space; may read the
 * block's space; or may read usage and limits of the user @uid.  Return 0 or -EACCES. */
int kv_permit(fuse_req_t req, const struct kv_space_info *info, int want);
int kv_permit_block_read(fuse_req_t req, struct kv_block *block);
int kv_permit_tenant(fuse_req_t req, uint64_t uid);

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

/* Start the notifier's thread; earlier notices are dropped.  0 or -EAGAIN. */
int kv_notify_start(struct kv_mount *mount, struct fuse_session *session);
/* Stop the notifier's thread, if it runs; later notices are dropped. */
void kv_notify_stop(struct kv_mount *mount);

/*
 * Tell the kernel that the block @node is gone, or that owner or mode of the space @node,
 * of its directories and blocks have changed.  Never blocks.  When there are too many,
 * notices are dropped, and the kernel itself forgets the attributes after a second.
 */
void kv_notify_node(struct kv_mount *mount, uint64_t node);

/* ---- handles: the state of a file or directory that is open through the mount ---- */

enum kv_handle_kind {
	KV_HANDLE_BLOCK,  /* a block: `block`, held and charged */
	KV_HANDLE_UPLOAD, /* an upload: `upload`, held and counted as opened */
	KV_HANDLE_TEXT,	  /* a file of .kvfs: `text`, made at open */
	KV_HANDLE_DIR,	  /* a directory: `nodes`, listed at open */
};

struct kv_handle {
	enum kv_handle_kind kind;
	union {
		struct {
			struct kv_block *block;
			struct kv_open_charge *charge;
		};
		struct kv_upload *upload;
		char *text;
		struct {
			uint64_t *nodes;
			size_t n, room;
		};
	};
	struct kv_account *account; /* held; of the user who opened the file */
	size_t bytes;		    /* bytes charged to @account */
	LIST_ENTRY(kv_handle) all;  /* mount->lock */
};

/* Make a handle for @req, a copy of @from, and take over what @from holds.  Returns 0,
 * -ENOMEM, or -ENFILE beyond the user's share; on an error the caller keeps @from's holds. */
int kv_handle_new(fuse_req_t req, const struct kv_handle *from,
		  struct fuse_file_info *fi);
void kv_handle_free(struct kv_mount *mount, struct kv_handle *handle);

/* Free the handles that the kernel did not release. */
void kv_handles_free(struct kv_mount *mount);

static inline struct kv_handle *kv_handle_of(const struct fuse_file_info *fi)
{
	return (struct kv_handle *)(uintptr_t)fi->fh;
}

/* ---- requests that wait for the SSD, for room or for the disk ----
 *
 * Each call answers its request, at once or later, so that no FUSE thread waits.  A parked
 * request is charged to its user, and cancelled when its caller is interrupted or the
 * mount ends. */

/* Answer @req with the bytes of @block: at once if they are in memory, otherwise when a
 * thread has read them. */
void kv_read_block(fuse_req_t req, struct kv_block *block, size_t size,
		   uint64_t offset);

/* Arguments of a FUSE handler that makes a change; each handler uses some. */
struct kv_change {
	/* Make the change, and reply to @req as a handler does. */
	void (*make)(fuse_req_t req, const struct kv_change *change);
	fuse_ino_t ino, other; /* the call's inode; a rename's new directory */
	const char *name, *text;
	unsigned flags;
	struct stat attr;
	struct kv_upload *upload; /* upload, open until the reply */
};

/*
 * Copy @change, a change of a space or user that waits for the disk, and have a thread
 * make the change.  A change that has not begun ends with EINTR when its caller is
 * interrupted or the mount ends, and with ENOLCK beyond the user's share of memory.
 */
void kv_change_later(fuse_req_t req, const struct kv_change *change);

/* Retry a write that found no room, or is beyond its space's rate, until it succeeds or
 * fails.  Returns 0; or -ENOMEM, or -ENOSPC beyond the user's share: the caller replies. */
int kv_park_write(fuse_req_t req, struct kv_upload *upload, const char *data,
		  size_t n, uint64_t offset);

/*
 * Answer @req when all @spaces or the block are durable, with @demotes also when the
 * block's slot is freed, or -EBUSY if the block is leased; or when the block is in DRAM
 * (kv_sync_promote).  Return 0; or -ENOMEM or -ENOLCK: the caller replies.
 */
int kv_sync_spaces(fuse_req_t req, struct kv_space *const *spaces, size_t n);
int kv_sync_block(fuse_req_t req, struct kv_block *block, bool demotes);
int kv_sync_promote(fuse_req_t req, struct kv_block *block);

int kv_parking_new(struct kv_parking **ret_parking); /* -ENOMEM, -EAGAIN */
/* Retry parked writes, because there may be room.  Takes NULL. */
void kv_parking_room(struct kv_parking *parking);
/* Cancel all parked requests, and wait until they are answered.  No request may be parked
 * later.  Takes NULL, and a stopped parking. */
void kv_parking_stop(struct kv_parking *parking);
/* After kv_parking_stop, wait for threads that use the cache.  Takes NULL. */
void kv_parking_join(struct kv_parking *parking);
/* Free @parking, after kv_parking_join.  Takes NULL. */
void kv_parking_free(struct kv_parking *parking);

/* ---- drafts: the content of a file that is being written, up to the sealed block ----
 *
 * Writes come in any order.  Until the header, which has the length, is complete, bytes
 * are kept in memory that is charged to their user; later writes go straight to the
 * block's slot.  A file with a hole is never sealed.  Calls on one draft exclude each
 * other. */

struct kv_draft;

/* Make a draft of the block @key of @space, or with @key NULL of the space's layout.
 * @account is the writer's, and must outlive the draft.  Returns 0 or -ENOMEM. */
int kv_draft_new(struct kv_cache *cache, struct kv_space *space,
		 const struct kv_key *key, struct kv_account *account,
		 struct kv_draft **ret_draft);
void kv_draft_free(
	struct kv_draft *draft); /* drops unsealed bytes; takes NULL */

/*
 * Write to the draft.  Returns 0, or:
 *   -EINVAL, -EBADMSG, -EFBIG   not safetensors, not of the space's layout, past its
 *                               end or too large: the file must be written anew
 *   -EBUSY    no room now: repeat the call later
 *   -EAGAIN   beyond the space's rate: repeat the call later
 *   -ENOSPC   no room
 *   -EPERM    the draft is sealed
 *   -ENOMEM, -EROFS
 */
int kv_draft_write(struct kv_draft *draft, const void *data, size_t n,
		   uint64_t offset);

/* Copy at most @n bytes and return their number, 0 at the end of the file.  Holes read as
 * zeros.  A sealed draft reads its block, which may fail with -EIO, -EBADMSG or -ENOENT. */
ssize_t kv_draft_read(struct kv_draft *draft, void *data, size_t n,
		      uint64_t offset);

/* Return the end of the last byte that was written. */
uint64_t kv_draft_size(struct kv_draft *draft);

/* Forget all written bytes.  Returns 0, or -EPERM if the draft is sealed. */
int kv_draft_reset(struct kv_draft *draft);

/* Returns 1 if the draft is complete and valid, or sealed; 0 if nothing was written;
 * -EINVAL if it is incomplete; or an error of kv_draft_write. */
int kv_draft_check(struct kv_draft *draft);

/*
 * Seal the draft if it is complete, with the time @mtime_ns (0: now).  Returns as
 * kv_draft_check: 1 when the block or layout is visible, with *@ret_new true if it was
 * absent before; or:
 *   -EEXIST  the key has other bytes
 *   -EPERM   the layout shares the space, but the writer may not
 *   -ESTALE  the space was removed
 * Sealing a layout waits for the disk, sealing a block does not.
 */
int kv_draft_seal(struct kv_draft *draft, int64_t mtime_ns, bool *ret_new);

/* Return the sealed block, held for the caller; NULL if it is not sealed or gone. */
struct kv_block *kv_draft_block(struct kv_draft *draft);

/* ---- the set of byte ranges of a draft that were written ---- */

/* separate ranges, 4 KiB for each upload: not charged to its user */
#define KV_COVERAGE_MAX 256

struct kv_span {
	uint64_t start, end; /* end exclusive */
};

/* A zeroed struct covers nothing. */
struct kv_coverage {
	struct kv_span *ranges; /* ascending, with gaps between them */
	size_t n, room;
};

/* Free the ranges; @coverage then covers nothing. */
void kv_coverage_fini(struct kv_coverage *coverage);

/* Add the range [start, end).  -ENOMEM, -EFBIG (too many holes): not added. */
int kv_coverage_add(struct kv_coverage *coverage, uint64_t start, uint64_t end);

/* Return the number of bytes before the first hole. */
uint64_t kv_coverage_prefix(const struct kv_coverage *coverage);

/* Return the end of the last range, 0 if there is none. */
uint64_t kv_coverage_end(const struct kv_coverage *coverage);

/* ---- uploads: files that are being written through the mount, and their names ----
 *
 * Files with four kinds of names can be written: a block's own name, `.<key>.<suffix>`
 * beside it (which rsync makes, and renames onto the key later), `.layout`, and
 * `.layout.<suffix>`.  Directories do not list uploads; kv_upload_is_for() decides which
 * callers can resolve the name of one. */

enum kv_name_kind {
	KV_NAME_KEY,
	KV_NAME_TEMP,
	KV_NAME_LAYOUT,
	KV_NAME_LAYOUT_TEMP,
};

struct kv_name {
	enum kv_name_kind kind;
	struct kv_key key; /* len 0: the name of a layout */
};

/* Parse a name in the two-digit directory @byte, or with -1 in the space's own directory.
 * Returns 0, -ENAMETOOLONG, or -EINVAL if the name is of none of the four kinds, or the key
 * belongs into another directory. */
int kv_name_parse(const char *text, int byte, struct kv_name *ret_name);

struct kv_uploads;

/* Attributes that programs set between writing and renaming.  Time and pin are
 * applied to the block when it is sealed; the others are only shown. */
struct kv_upload_props {
	mode_t mode;
	uid_t uid;
	gid_t gid;
	int64_t mtime_ns; /* time to set at the seal; 0: none */
	bool pin;
};

struct kv_upload {
	/* fixed after new, as are the following fields */
	struct kv_uploads *uploads;
	struct kv_space *space; /* held */
	struct kv_name name;
	char *text;
	uid_t maker;
	pid_t pid;
	uint64_t serial;
	struct kv_draft *draft;
	/* the maker's, held; charged with the upload and its draft's head */
	struct kv_account *account;

	/* only upload.c uses the following fields, under uploads->lock */
	LIST_ENTRY(kv_upload) bucket;
	unsigned refs, opens;
	bool linked;
	bool dropped; /* removed by unlink(2): never seal it */
	uint64_t used_ns;
	struct kv_upload_props props;
};

/* Start the thread that removes abandoned uploads.  0, -ENOMEM or -EAGAIN. */
int kv_uploads_new(struct kv_cache *cache, struct kv_uploads **ret_uploads);
void kv_uploads_free(struct kv_uploads *uploads); /* takes NULL */

/* Find and hold the upload @text that the user @uid made.  Returns 0 or -ENOENT. */
int kv_upload_find(struct kv_uploads *uploads, struct kv_space *space,
		   const char *text, uid_t uid, struct kv_upload **ret_upload);
/* Find and hold the upload with the serial number.  Returns 0 or -ENOENT. */
int kv_upload_get(struct kv_uploads *uploads, uint64_t serial,
		  struct kv_upload **ret_upload);
void kv_upload_put(struct kv_upload *upload);
/* Return true if the caller @ctx can resolve the upload's name: for a staging name, the
 * user who made it; for other names, only the process that writes the file. */
bool kv_upload_is_for(const struct kv_upload *upload,
		      const struct fuse_ctx *ctx);

/*
 * Make the upload @text for the caller @ctx, held and opened once.  Returns 0, -ENOMEM,
 * -EEXIST if the user has one of that name, or -ENFILE beyond the user's share.
 */
int kv_upload_create(struct kv_uploads *uploads, struct kv_space *space,
		     const char *text, const struct kv_name *name,
		     const struct fuse_ctx *ctx, mode_t mode,
		     struct kv_upload **ret_upload);

/*
 * Replace @old by a new upload for another writer.  Processes that have @old open go on
 * with the old bytes, so that two writers never mix.  *@ret_upload takes over the name and
 * the serial, is held, and opened once.  Returns 0, -ENFILE, -ESTALE or -ENOMEM.
 */
int kv_upload_restart(struct kv_upload *old, const struct fuse_ctx *ctx,
		      struct kv_upload **ret_upload);

void kv_upload_opened(struct kv_upload *upload);
/* Close one open file.  The last close drops the upload, unless it is a complete staging
 * file, or with @keep: the file will be opened soon. */
void kv_upload_closed(struct kv_upload *upload, bool keep);
/* Remove the name.  Open files can still be used, but the upload is never sealed. */
void kv_upload_unlink(struct kv_upload *upload);

bool kv_upload_sealed(struct kv_upload *upload); /* true: sealed as a block */

/* Seal as kv_draft_seal does, and apply the time and pin of the upload to the block.
 * Returns 0, without sealing, if the upload was unlinked. */
int kv_upload_seal(struct kv_upload *upload, bool *ret_new);

/* Return attributes of the upload with the serial number.  0 or -ESTALE. */
int kv_upload_stat(struct kv_uploads *uploads, uint64_t serial,
		   struct stat *ret_attr);

struct kv_upload_props kv_upload_props(struct kv_upload *upload);
void kv_upload_set_props(struct kv_upload *upload,
			 const struct kv_upload_props *props);

#endif
