/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lent.h - an engine's paged memory, mapped read-only: blocks are saved from it
 * where it is, and the pages are lent to us meanwhile.
 *
 * Made and put on the control thread; copied from on any.
 */
#ifndef KV_FS_CONTROL_LENT_H
#define KV_FS_CONTROL_LENT_H

#include <sys/queue.h>

#include "cache/core/account.h"
#include "common/copy.h"
#include "common/wire.h"
#include "fs/control/ingest.h"

struct kv_lent;
TAILQ_HEAD(kv_lents, kv_lent_link);

struct kv_lent_link {
	TAILQ_ENTRY(kv_lent_link) others; /* in its client's */
	uint32_t id;			  /* the client's name for it */
};

/* The client's descriptors are looked at, and stay its own. */
struct kv_lender {
	int socket, pidfd; /* pidfd -1: none */
	uint32_t uid;
	struct kv_account *account; /* has the mapping */
};

/*
 * Map what @pool and its @n strides say of @fd, which stays the caller's.  It
 * is held once, and not in any list.
 * -EINVAL a size, or a stride that ends outside; -EMEDIUMTYPE not a file in
 * memory (memfd, tmpfs, hugetlbfs); -ENODATA the file has holes, which reading
 * would fill at our cost; -EACCES not open for reading; -ENOLCK beyond the
 * share of the account; -EMFILE, -ENOMEM.
 */
int kv_lent_new(int fd, const struct wire_pool *pool,
		const struct wire_stride *strides, size_t n,
		const struct kv_lender *lender, struct kv_lent **ret_lent);
struct kv_lent_link *kv_lent_link(struct kv_lent *lent);
/* The one of that name in @lents; NULL. */
struct kv_lent *kv_lent_find(struct kv_lents *lents, uint32_t id);

void kv_lent_hold(struct kv_lent *lent);
/* The last one has it unmapped by @ingest, for that takes its time. */
void kv_lent_put(struct kv_lent *lent, struct kv_ingest *ingest);

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
/* Whether the file is without holes now. */
bool kv_lent_is_whole(const struct kv_lent *lent);

/* Copy and hash the block in @pages, which it has.  SIGBUS where the file has
 * become shorter. */
void kv_lent_copy(const struct kv_lent *lent, const uint64_t *pages,
		  struct kv_hash *hash, uint8_t *tensors);

#endif
