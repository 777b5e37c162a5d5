/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sidecar.h - what is kept beside the index, so that it can be made anew:
 *
 *   STORE/store           the store record, as of the last mount
 *   STORE/spaces/NNNNNN   a space's record, name and layout, as `spaces` has it
 *
 * and what the index does not have:
 *
 *   STORE/tenants         the records of users who have quotas
 *
 * A file is replaced as a whole and synced with its directory before a call
 * that writes returns, if no other is said.  @store_fd is STORE, @dir is
 * STORE/spaces.
 */
#ifndef KV_INDEX_SIDECAR_H
#define KV_INDEX_SIDECAR_H

#include "index/index.h"

#define KV_SPACE_FILE_NAME 16

/* -ENOENT, -EBADMSG damaged, -ENOTSUP another format. */
int kv_store_file_read(int store_fd, struct kv_store_info *ret_info);
bool kv_store_file_there(int store_fd); /* of whatever format */
int kv_store_file_write(int store_fd, const struct kv_store_info *info);

/* Open STORE/spaces; @make it first if it is absent. */
int kv_spaces_dir(int store_fd, bool make);

int kv_space_file_write(int dir, const struct kv_space_record *record,
			const char *name, const char *layout);
/* Caller frees @ret_name and @ret_layout.  -ENOENT, -EBADMSG, -ENOMEM. */
int kv_space_file_read(int dir, uint32_t id, struct kv_space_record *ret_record,
		       char **ret_name, char **ret_layout);
int kv_space_file_remove(int dir, uint32_t id); /* absent is no error */
/*
 * The same of several at a time: begin them all, end them all (which takes the
 * descriptor over, and syncs the file), unlink what is to go, and sync the
 * directory once.
 */
int kv_space_file_begin(int dir, const struct kv_space_record *record,
			const char *name, const char *layout, int *ret_fd);
int kv_space_file_end(int dir, uint32_t id, int fd);
int kv_space_file_unlink(int dir, uint32_t id);
int kv_space_files_sync(int dir);

void kv_space_file_name(uint32_t id, char name[KV_SPACE_FILE_NAME]);
bool kv_space_file_parse(const char *name, uint32_t *ret_id);

/* Replace the file; without any records there is none. */
int kv_tenants_write(int store_fd, const struct kv_tenant_record *records,
		     size_t n);
/*
 * The records, without those that are damaged, whose number is *@ret_damaged;
 * caller frees.  A missing file has none.  -EBADMSG: no file, -ENOMEM, and the
 * errors of open(2) and read(2).
 */
int kv_tenants_read(int store_fd, struct kv_tenant_record **ret_records,
		    size_t *ret_n, size_t *ret_damaged);
#define KV_TENANTS_MAX 4096

/* The bytes that a file takes of the disk, its place in the directory included.
 */
uint64_t kv_space_file_bytes(size_t name_len, size_t layout_len);
uint64_t kv_tenants_bytes(size_t n);

#endif
