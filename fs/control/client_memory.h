/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client_memory.h - a client's file in memory (a memfd, a file in tmpfs or hugetlbfs), from
 * which its blocks are copied: its staging, or memory that it lends.
 */
#ifndef KV_FS_CONTROL_CLIENT_MEMORY_H
#define KV_FS_CONTROL_CLIENT_MEMORY_H

#include "cache/core/account.h"
#include "common/copy.h"
#include "fs/control/server.h"

struct kv_client_memory;

/*
 * Make the memory of @bytes from @offset of the file @fd, which stays the caller's.  The
 * memory is held once, charged to @account, and not mapped.
 *   -EINVAL       no bytes, or beyond the largest file
 *   -EMEDIUMTYPE  not a file in memory
 *   -EACCES       not open for reading
 *   -ENOLCK       beyond the share of @account
 *   -EMFILE, -ENOMEM
 */
int kv_client_memory_new(struct kv_server *server, struct kv_account *account,
			 int fd, uint64_t offset, uint64_t bytes,
			 struct kv_client_memory **ret_memory);

/*
 * Do a step of mapping the memory, if that is safe.  Returns 1: call it again; 0: done.  To
 * be called by a worker, before any copy.
 */
int kv_client_memory_map(struct kv_client_memory *memory);
bool kv_client_memory_is_mapped(const struct kv_client_memory *memory);

void kv_client_memory_hold(struct kv_client_memory *memory);
/* The last put lets a worker unmap and close it.  Takes NULL. */
void kv_client_memory_put(struct kv_client_memory *memory);

uint64_t kv_client_memory_bytes(const struct kv_client_memory *memory);
/* Return whether @n bytes from @at on lie inside, for any values. */
bool kv_client_memory_has(const struct kv_client_memory *memory, uint64_t at,
			  uint64_t n);

/*
 * Copy @n bytes from @at on, which must be inside, to @dst, and hash them unless @hash is
 * NULL.  Any thread.  -EFAULT: the file has become shorter, or cannot be read.
 */
int kv_client_memory_copy(const struct kv_client_memory *memory, uint64_t at,
			  uint64_t n, struct kv_hash *hash, void *dst);

#endif
