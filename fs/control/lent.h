/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lent.h - an engine's paged memory: blocks are saved from where they are, and
 * the pages are lent to the daemon meanwhile.
 *
 * Made and put on the control thread; copied from on any.
 */
#ifndef KV_FS_CONTROL_LENT_H
#define KV_FS_CONTROL_LENT_H

#include <sys/queue.h>

#include "fs/control/client_memory.h"

struct kv_lent;
TAILQ_HEAD(kv_lents, kv_lent_link);

struct kv_lent_link {
	TAILQ_ENTRY(kv_lent_link) others; /* in its client's */
	uint32_t id;			  /* the client's name for it */
};

/* The client's descriptors are looked at, and stay its own. */
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
struct kv_lent_link *kv_lent_link(struct kv_lent *lent);
struct kv_client_memory *kv_lent_memory(struct kv_lent *lent);
/* The one of that name in @lents; NULL. */
struct kv_lent *kv_lent_find(struct kv_lents *lents, uint32_t id);

void kv_lent_hold(struct kv_lent *lent);
void kv_lent_put(struct kv_lent *lent); /* takes NULL */

/* Nothing that is copied from it from now on is to be sealed: the client is
 * gone, or has taken it back.  The lender's descriptors are used no more. */
void kv_lent_forsake(struct kv_lent *lent);
/* Whether its process is there and connected.  Asked after a copy, yes means
 * that what was copied was lent all the time. */
bool kv_lent_is_there(struct kv_lent *lent);

/* Bytes of a block's tensors, and its pages. */
uint64_t kv_lent_payload(const struct kv_lent *lent);
uint32_t kv_lent_pages_per_block(const struct kv_lent *lent);
bool kv_lent_has_pages(const struct kv_lent *lent, const uint64_t *pages);

/* Copy and hash the block in @pages, which it has.  -EFAULT the file has become
 * shorter. */
int kv_lent_copy(const struct kv_lent *lent, const uint64_t *pages,
		 struct kv_hash *hash, uint8_t *tensors);

#endif
