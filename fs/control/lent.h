/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lent.h - an engine's paged memory, whose pages are lent to the daemon while it copies
 * blocks from there.
 *
 * Any thread may copy; all else is the control thread's.
 */
#ifndef KV_FS_CONTROL_LENT_H
#define KV_FS_CONTROL_LENT_H

#include <sys/queue.h>

#include "fs/control/client_memory.h"

struct kv_lent;
TAILQ_HEAD(kv_lents, kv_lent_link);

struct kv_lent_link {
	TAILQ_ENTRY(kv_lent_link) others; /* of its client's */
	uint32_t id;			  /* chosen by the client */
};

/* The client's descriptors, which are polled; borrowed. */
struct kv_lender {
	int socket, pidfd; /* pidfd -1: none */
	struct kv_account *account;
};

/*
 * The pages that @pool and its @n strides describe, in the file @fd, which stays
 * the caller's.  Held once, and not in any list.
 * -EINVAL a size, or a stride that ends outside; or an error of
 * kv_client_memory_new.
 */
int kv_lent_new(struct kv_server *server, int fd, const struct wire_pool *pool,
		const struct wire_stride *strides, size_t n,
		const struct kv_lender *lender, struct kv_lent **ret_lent);
/* Return the one with that @id in @lents, or NULL. */
struct kv_lent *kv_lent_find(struct kv_lents *lents, uint32_t id);

void kv_lent_hold(struct kv_lent *lent);
void kv_lent_put(struct kv_lent *lent); /* takes NULL */

/* The client is gone, or has taken the memory back: copies of it are not sealed from now
 * on.  The lender's descriptors are not used any more. */
void kv_lent_forsake(struct kv_lent *lent);
/* Return whether its process is alive and connected.  After a copy, true means that the
 * memory was lent all the time. */
bool kv_lent_is_there(struct kv_lent *lent);

/* Bytes of a block's tensors; pages of a block. */
uint64_t kv_lent_payload(const struct kv_lent *lent);
uint32_t kv_lent_pages_per_block(const struct kv_lent *lent);
bool kv_lent_has_pages(const struct kv_lent *lent, const uint64_t *pages);

/* Copy and hash the block in @pages, which must be valid.  -EFAULT: the file has become
 * shorter. */
int kv_lent_copy(const struct kv_lent *lent, const uint64_t *pages,
		 struct kv_hash *hash, uint8_t *tensors);

#endif
