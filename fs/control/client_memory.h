/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client_memory.h - a client's file in memory (memfd, tmpfs or hugetlbfs), from which its
 * blocks are copied: the client's staging memory, or memory that the client lends.
 */
#ifndef KV_FS_CONTROL_CLIENT_MEMORY_H
#define KV_FS_CONTROL_CLIENT_MEMORY_H

#include "cache/core/account.h"
#include "common/copy.h"
#include "fs/control/server.h"

struct kv_client_memory;

/*
 * Make client memory of @bytes from @offset of the file @fd, which stays the caller's.
 * The memory is held once, charged to @account, and not mapped.  Returns 0, or:
 *   -EINVAL       no bytes, or an end beyond the largest file
 *   -EMEDIUMTYPE  @fd is not a file in memory
 *   -EACCES       @fd is not open for reading
 *   -ENOLCK       beyond the share of @account
 *   -EMFILE, -ENOMEM
 */
int kv_client_memory_new(struct kv_server *server, struct kv_account *account,
			 int fd, uint64_t offset, uint64_t bytes,
			 struct kv_client_memory **ret_memory);

/*
 * Do a step of mapping the memory, if mapping is safe.  A worker calls this before any
 * copy.  Returns 1 if there are further steps, 0 if the work is done.
 */
int kv_client_memory_map(struct kv_client_memory *memory);
bool kv_client_memory_is_mapped(const struct kv_client_memory *memory);

void kv_client_memory_hold(struct kv_client_memory *memory);
/* Unhold the memory.  After the last hold a worker unmaps and closes the file.
 * Takes NULL. */
void kv_client_memory_put(struct kv_client_memory *memory);

uint64_t kv_client_memory_bytes(const struct kv_client_memory *memory);
/* Return true if @n bytes from @at on lie inside the memory, for any values. */
bool kv_client_memory_has(const struct kv_client_memory *memory, uint64_t at,
			  uint64_t n);

/*
 * Copy @n bytes from @at on, which must lie inside the memory, to @dst, and hash the bytes
 * unless @hash is NULL.  Any thread.  Returns 0, or -EFAULT if the file has become shorter
 * or cannot be read.
 */
int kv_client_memory_copy(const struct kv_client_memory *memory, uint64_t at,
			  uint64_t n, struct kv_hash *hash, void *dst);

/* ---- paged memory that an engine lends ---- */

struct kv_lent;
TAILQ_HEAD(kv_lents, kv_lent_link);

/* Link in the list of memory that a client lends; used by the control thread
 * only. */
struct kv_lent_link {
	TAILQ_ENTRY(kv_lent_link) others;
	uint32_t id; /* chosen by the client */
};

/* The lending client's descriptors, borrowed, to notice that the client ends. */
struct kv_lender {
	int socket, pidfd; /* pidfd -1: none */
	struct kv_account *account;
};

/*
 * Make the lent memory that @pool and its @n strides describe, in the file @fd, which
 * stays the caller's.  The memory is held once, and is in no list.  Returns 0, -EINVAL for
 * a bad size or a stride that ends outside the pool, or an error of kv_client_memory_new.
 */
int kv_lent_new(struct kv_server *server, int fd, const struct wire_pool *pool,
		const struct wire_stride *strides, size_t n,
		const struct kv_lender *lender, struct kv_lent **ret_lent);
void kv_lent_put(struct kv_lent *lent); /* takes NULL */

/* Seal no more copies of the memory, which its client has taken back, and stop
 * using the lender's descriptors. */
void kv_lent_forsake(struct kv_lent *lent);

#endif
