/* SPDX-License-Identifier: Apache-2.0 */
/*
 * upload.h - uploads: files that are being written through the mount, and their names.
 *
 * Files with four kinds of names can be written: a block's own name, `.<key>.<suffix>`
 * beside it (which rsync makes, and renames onto the key later), `.layout`, and
 * `.layout.<suffix>`.  Directories do not list uploads; kv_upload_is_for() decides which
 * callers can resolve the name of one.
 *
 * Any thread may call these functions.
 */
#ifndef KV_FS_MOUNT_UPLOAD_H
#define KV_FS_MOUNT_UPLOAD_H

#include <sys/stat.h>

#include "common/block.h"
#include "cache/core/account.h"
#include "fs/mount/mount.h"

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

#define KV_COVERAGE_MAX 4096 /* separate ranges */

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

/* Add [start, end).  -ENOMEM, -EFBIG (too many holes): @coverage is
 * unchanged. */
int kv_coverage_add(struct kv_coverage *coverage, uint64_t start, uint64_t end);

/* Return the bytes from 0 to the first hole. */
uint64_t kv_coverage_prefix(const struct kv_coverage *coverage);

/* Return the end of the last range. */
uint64_t kv_coverage_end(const struct kv_coverage *coverage);

/* ---- uploads ---- */

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
	int64_t mtime_ns; /* 0: no time was set */
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
	/* held; charged with the upload and the head of its draft */
	struct kv_account *account;

	/* only upload.c uses the following fields, under uploads->lock */
	struct kv_upload *next; /* next upload of the bucket */
	unsigned refs, opens;
	bool linked;
	bool dropped; /* removed by unlink(2): never seal it */
	uint64_t used_ns;
	struct kv_upload_props props;
};

/* Start the thread that removes abandoned uploads.  Returns 0, -ENOMEM or
 * -EAGAIN. */
int kv_uploads_new(struct kv_cache *cache, struct kv_uploads **ret_uploads);
void kv_uploads_free(struct kv_uploads *uploads); /* takes NULL */

/* Find and hold the upload @text that the user @uid made.  Returns 0 or -ENOENT. */
int kv_upload_find(struct kv_uploads *uploads, struct kv_space *space,
		   const char *text, uid_t uid, struct kv_upload **ret_upload);
/* Find and hold the upload with the serial.  Returns 0 or -ENOENT. */
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

/* Return the attributes of the upload with the serial.  Returns 0 or -ESTALE. */
int kv_upload_stat(struct kv_uploads *uploads, uint64_t serial,
		   struct stat *ret_attr);

struct kv_upload_props kv_upload_props(struct kv_upload *upload);
void kv_upload_set_props(struct kv_upload *upload,
			 const struct kv_upload_props *props);

#endif
