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

/* ---- paged memory that an engine lends ---- */

struct kv_lent;
TAILQ_HEAD(kv_lents, kv_lent_link);

/* Links the memory that a client lends; used by the control thread only. */
struct kv_lent_link {
	TAILQ_ENTRY(kv_lent_link) others;
	uint32_t id; /* chosen by the client */
};

/* The client's descriptors, which are polled; borrowed. */
struct kv_lender {
	int socket, pidfd; /* pidfd -1: none */
	struct kv_account *account;
};

/*
 * Make the lent memory that @pool and its @n strides describe, in the file @fd, which
 * stays the caller's.  The memory is held once, and is in no list.  Returns 0, -EINVAL
 * for a bad size or a stride that ends outside, or an error of kv_client_memory_new.
 */
int kv_lent_new(struct kv_server *server, int fd, const struct wire_pool *pool,
		const struct wire_stride *strides, size_t n,
		const struct kv_lender *lender, struct kv_lent **ret_lent);
void kv_lent_put(struct kv_lent *lent); /* takes NULL */

/* Seal no more copies of the memory, which its client has taken back, and no longer use
 * the lender's descriptors. */
void kv_lent_forsake(struct kv_lent *lent);

#endif
