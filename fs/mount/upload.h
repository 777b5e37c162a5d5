/* SPDX-License-Identifier: Apache-2.0 */
/*
 * upload.h - files that are being written through the mount, and their names.
 *
 * Four kinds of names are written: a block's own, `.<key>.<suffix>` beside it
 * (as rsync makes them, renamed onto the key later), `.layout`, and
 * `.layout.<suffix>`.  Nobody sees one listed; kv_upload_is_for says who can
 * resolve it.
 *
 * Threads: any.
 */
#ifndef KV_FS_MOUNT_UPLOAD_H
#define KV_FS_MOUNT_UPLOAD_H

#include <sys/stat.h>

#include "common/block.h"
#include "fs/mount/draft.h"
#include "fs/mount/fuse.h"

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

/* @byte: of the two-digit directory, -1: the space's own directory.  -EINVAL:
 * none of the four, or the key belongs in another directory; -ENAMETOOLONG. */
int kv_name_parse(const char *text, int byte, struct kv_name *ret_name);

struct kv_uploads;
struct kv_upload;

/* Starts the thread that sweeps what was left behind.  -ENOMEM, -EAGAIN. */
int kv_uploads_new(struct kv_cache *cache, struct kv_uploads **ret_uploads);
void kv_uploads_free(struct kv_uploads *uploads); /* takes NULL */

/* Find by name, for the uid that made it; held.  -ENOENT. */
int kv_upload_find(struct kv_uploads *uploads, struct kv_space *space,
		   const char *text, uid_t uid, struct kv_upload **ret_upload);
/* Find by serial; held.  -ENOENT. */
int kv_upload_get(struct kv_uploads *uploads, uint64_t serial,
		  struct kv_upload **ret_upload);
void kv_upload_put(struct kv_upload *upload);
/* Whether its name is there for the caller @ctx: a staging name for the user
 * who made it, any other for the process that writes it alone. */
bool kv_upload_is_for(const struct kv_upload *upload,
		      const struct fuse_ctx *ctx);

/*
 * Make @text, for the caller @ctx; it is held and counts as opened once.
 * -EEXIST: it has one already, -ENFILE beyond the caller's share, -ENOMEM.
 */
int kv_upload_create(struct kv_uploads *uploads, struct kv_space *space,
		     const char *text, const struct kv_name *name,
		     const struct fuse_ctx *ctx, mode_t mode,
		     struct kv_upload **ret_upload);

/*
 * Begin @old anew, for a further writer: who has it open goes on with the old
 * bytes, by itself, so that two writers never mix.  *@ret_upload takes over the
 * name and the serial, is held, and opened once.  -ENFILE, -ESTALE, -ENOMEM.
 */
int kv_upload_restart(struct kv_upload *old, const struct fuse_ctx *ctx,
		      struct kv_upload **ret_upload);

void kv_upload_opened(struct kv_upload *upload);
/* The last one closed: unless it was sealed or is a complete staging file,
 * nothing remains. */
void kv_upload_closed(struct kv_upload *upload);
/* As closed, but the name stays for a while: it is yet to be opened. */
void kv_upload_park(struct kv_upload *upload);
/* The name goes; who has it open can go on, but nothing will be sealed. */
void kv_upload_unlink(struct kv_upload *upload);

struct kv_draft *
kv_upload_draft(struct kv_upload *upload); /* as long as held */
uint64_t kv_upload_serial(const struct kv_upload *upload);
const struct kv_name *kv_upload_name(const struct kv_upload *upload);
struct kv_space *kv_upload_space(const struct kv_upload *upload);
bool kv_upload_sealed(struct kv_upload *upload); /* to a block */

/*
 * Seal if it is complete, as kv_draft_seal, and give the block what was set on
 * the file before: time and pin.  An unlinked one seals nothing: 0.
 */
int kv_upload_seal(struct kv_upload *upload, bool *ret_new);

/* Attributes, by serial.  -ESTALE. */
int kv_upload_stat(struct kv_uploads *uploads, uint64_t serial,
		   struct stat *ret_attr);

/* Attributes that programs set between writing and renaming; time and pin are
 * kept for the seal, the rest is only shown. */
struct kv_upload_props {
	mode_t mode;
	uid_t uid;
	gid_t gid;
	int64_t mtime_ns; /* 0: not set */
	bool pin;
};
struct kv_upload_props kv_upload_props(struct kv_upload *upload);
void kv_upload_set_props(struct kv_upload *upload,
			 const struct kv_upload_props *props);

#endif
