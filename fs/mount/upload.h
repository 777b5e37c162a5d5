/* SPDX-License-Identifier: Apache-2.0 */
/*
 * upload.h - files that are being written through the mount, and their names.
 *
 * Files with four kinds of names can be written: a block's own, `.<key>.<suffix>`
 * beside it (as rsync makes them, renamed onto the key later), `.layout`, and
 * `.layout.<suffix>`.  Directories do not list them; kv_upload_is_for() tells which
 * callers can resolve one.
 *
 * Threads: any.
 */
#ifndef KV_FS_MOUNT_UPLOAD_H
#define KV_FS_MOUNT_UPLOAD_H

#include <sys/stat.h>

#include "common/block.h"
#include "fs/mount/draft.h"
#include "fs/mount/mount.h"

enum kv_name_kind {
	KV_NAME_KEY,
	KV_NAME_TEMP,
	KV_NAME_LAYOUT,
	KV_NAME_LAYOUT_TEMP,
};

struct kv_name {
	enum kv_name_kind kind;
	struct kv_key key; /* len 0: a layout */
};

/* Parse a name in the two-digit directory @byte; -1: the space's own directory.
 * -EINVAL none of the four, or the key of another directory; -ENAMETOOLONG. */
int kv_name_parse(const char *text, int byte, struct kv_name *ret_name);

struct kv_uploads;

/* Attributes that programs set between writing and renaming: time and pin are kept
 * for the seal, the rest is only shown. */
struct kv_upload_props {
	mode_t mode;
	uid_t uid;
	gid_t gid;
	int64_t mtime_ns; /* 0: not set */
	bool pin;
};

struct kv_upload {
	struct kv_uploads *uploads; /* fixed after new, as are these: */
	struct kv_space *space;	    /* held */
	struct kv_name name;
	char *text;
	uid_t maker;
	pid_t pid;
	uint64_t serial;
	struct kv_draft *draft;
	struct kv_account *account; /* held; charged for this and the head */

	/* only upload.c uses these, under uploads->lock: */
	struct kv_upload *next; /* in the bucket */
	unsigned refs, opens;
	bool linked;
	bool dropped; /* by unlink(2): it never seals */
	uint64_t used_ns;
	struct kv_upload_props props;
};

/* Start the thread that removes abandoned uploads.  -ENOMEM, -EAGAIN. */
int kv_uploads_new(struct kv_cache *cache, struct kv_uploads **ret_uploads);
void kv_uploads_free(struct kv_uploads *uploads); /* takes NULL */

/* Find by name, for the uid that made it; held.  -ENOENT. */
int kv_upload_find(struct kv_uploads *uploads, struct kv_space *space,
		   const char *text, uid_t uid, struct kv_upload **ret_upload);
/* Find by serial; held.  -ENOENT. */
int kv_upload_get(struct kv_uploads *uploads, uint64_t serial,
		  struct kv_upload **ret_upload);
void kv_upload_put(struct kv_upload *upload);
/* Whether the caller @ctx can resolve the name: a staging name, the user who made
 * it; any other name, only the process that writes it. */
bool kv_upload_is_for(const struct kv_upload *upload,
		      const struct fuse_ctx *ctx);

/*
 * Make the upload @text for the caller @ctx, held and opened once.  -EEXIST the user
 * has one of that name, -ENFILE beyond the user's share, -ENOMEM.
 */
int kv_upload_create(struct kv_uploads *uploads, struct kv_space *space,
		     const char *text, const struct kv_name *name,
		     const struct fuse_ctx *ctx, mode_t mode,
		     struct kv_upload **ret_upload);

/*
 * Replace @old for another writer: processes that have @old open go on with the old
 * bytes, so that two writers never mix.  *@ret_upload takes over the name and the
 * serial, is held, and opened once.  -ENFILE, -ESTALE, -ENOMEM.
 */
int kv_upload_restart(struct kv_upload *old, const struct fuse_ctx *ctx,
		      struct kv_upload **ret_upload);

void kv_upload_opened(struct kv_upload *upload);
/* Close one open file.  The last close drops an upload, unless it is a complete
 * staging file. */
void kv_upload_closed(struct kv_upload *upload);
/* As closed, but the name stays for a while: the file will be opened. */
void kv_upload_park(struct kv_upload *upload);
/* Remove the name; open files can be used, but nothing will be sealed. */
void kv_upload_unlink(struct kv_upload *upload);

bool kv_upload_sealed(struct kv_upload *upload); /* to a block */

/* As kv_draft_seal, and apply the time and pin of the upload to the block.  An
 * upload whose name was removed seals nothing: 0. */
int kv_upload_seal(struct kv_upload *upload, bool *ret_new);

/* Attributes, by serial.  -ESTALE. */
int kv_upload_stat(struct kv_uploads *uploads, uint64_t serial,
		   struct stat *ret_attr);

struct kv_upload_props kv_upload_props(struct kv_upload *upload);
void kv_upload_set_props(struct kv_upload *upload,
			 const struct kv_upload_props *props);

#endif
