/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sidecar.h - the files beside the index.  Two are for rebuilding a lost index:
 *
 *   STORE/store           the store record, as of the last mount
 *   STORE/spaces/NNNNNN   a space's record, name and layout, as in `spaces`
 *
 * and two have no copy in the index:
 *
 *   STORE/tenants         the records of users with quotas
 *   STORE/lock            locked by the daemon that has the store
 *
 * Calls that write replace the whole file and sync it and its directory before
 * they return, unless their comment differs.  @store_fd is STORE, @dir is
 * STORE/spaces.
 */
#ifndef KV_INDEX_SIDECAR_H
#define KV_INDEX_SIDECAR_H

#include "index/index.h"
#include "common/kv.h"

#define KV_SPACE_FILE_NAME 16

/* Call @each with every name in the directory @name of @at, but . and .., until
 * a call returns another value than 0.  Return that value, or the error of
 * openat(2), which follows no symbolic link; @dir is the open directory. */
int kv_dir_walk(int at, const char *name,
		int (*each)(void *arg, int dir, const char *name), void *arg);

/* Read STORE/store.  -ENOENT, -EBADMSG damaged, -ENOTSUP another format. */
int kv_store_file_read(int store_fd, struct kv_store_info *ret_info);
bool kv_store_file_there(int store_fd); /* true for any format */
int kv_store_file_write(int store_fd, const struct kv_store_info *info);

/* Open STORE/spaces; with @make, create the directory if it is absent. */
int kv_spaces_dir(int store_fd, bool make);

int kv_space_file_write(int dir, const struct kv_space_record *record,
			const char *name, const char *layout);
/* Read a space's file; the caller frees *@ret_name and *@ret_layout.  -ENOENT,
 * -EBADMSG, -ENOMEM. */
int kv_space_file_read(int dir, uint32_t id, struct kv_space_record *ret_record,
		       char **ret_name, char **ret_layout);
int kv_space_file_remove(int dir, uint32_t id); /* 0 if the file is absent */

void kv_space_file_name(uint32_t id, char name[KV_SPACE_FILE_NAME]);
/* Parse the name of a file: an id, as %06u prints it, then @end. */
bool kv_id_parse(const char *name, const char *end, uint32_t *ret_id);
bool kv_space_file_parse(const char *name, uint32_t *ret_id);

/* Replace STORE/tenants, or remove it if there are no records. */
int kv_tenants_write(int store_fd, const struct kv_tenant_record *records,
		     size_t n);
/* Read the undamaged records of STORE/tenants; count damaged ones in
 * *@ret_damaged.  The caller frees *@ret_records.  A missing file counts as
 * empty.  -EBADMSG: not a regular file; -ENOMEM; errors of open(2), read(2). */
int kv_tenants_read(int store_fd, struct kv_tenant_record **ret_records,
		    size_t *ret_n, size_t *ret_damaged);
#define KV_TENANTS_MAX 4096

/* Return the disk space that a space's file takes, with its directory entry. */
uint64_t kv_space_file_bytes(size_t name_len, size_t layout_len);
uint64_t kv_tenants_bytes(size_t n);

/* ---- STORE/lock: one daemon owns a store ---- */

enum kv_lock_state { KV_LOCK_FREE, KV_LOCK_HELD, KV_LOCK_ENDING };

struct kv_lock_wait {
	/* Called once if the store's daemon is ending; may be NULL. */
	void (*waiting)(void *arg, long owner);
	void *arg;
};

/*
 * Lock the store whose directory is @store, until *@ret_fd and @store are
 * closed.  Without @write the lock is shared, and *@ret_fd is -1 if STORE/lock
 * does not exist.  Waits some seconds for an owner that may be ending, and
 * longer for an owner that has announced its end.
 *   -EBUSY  the owner continues
 *   and the errors of openat(2) and fcntl(2)
 */
int kv_lock_take(int store, bool write, const struct kv_lock_wait *wait,
		 int *ret_fd);
/* Announce, as the owner of the lock, that it will be released soon. */
void kv_lock_end(int fd);
/* Return the state of the store's lock; @fd is STORE/lock, open for reading. */
enum kv_lock_state kv_lock_look(int fd);
/* Return the process id in STORE/lock; 0: none. */
long kv_lock_owner(int store);
/*
 * Write to STORE/lock, as the owner of the lock @fd, its process id, @line, and
 * how many blocks its end has lost, the reason being the errno @error.  @lost is
 * -1 until then.  Errors of pwrite(2) and ftruncate(2).
 */
int kv_lock_write(int fd, const char *line, long long lost, int error);
/* Read what process @owner has left in STORE/lock, @fd, with kv_lock_write.
 * -ENODATA: nothing. */
int kv_lock_lost(int fd, long owner, long long *ret_lost, int *ret_error);

#endif
