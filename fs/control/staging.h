/* SPDX-License-Identifier: Apache-2.0 */
/*
 * staging.h - the memory from which a client saves, mapped read-only.
 */
#ifndef KV_FS_CONTROL_STAGING_H
#define KV_FS_CONTROL_STAGING_H

#include "cache/core/account.h"

struct kv_staging {
	const uint8_t *data;
	uint64_t bytes;
	/* its own */
	uint64_t mapped;
	struct kv_account *account; /* held; has the mapping */
	_Atomic unsigned refs;
};

/*
 * Map the first @bytes of the memfd @fd, which stays the caller's.  It counts
 * as held once.  -EINVAL not a memfd, zero, or longer than the file; -EPERM no
 * F_SEAL_SHRINK; -EACCES not open for reading; -ENOLCK beyond the share of
 * @account; -ENOMEM.
 */
int kv_staging_map(int fd, uint64_t bytes, struct kv_account *account,
		   struct kv_staging **ret_staging);

void kv_staging_hold(struct kv_staging *staging);
void kv_staging_put(struct kv_staging *staging); /* takes NULL */

/* Whether @bytes from @offset lie inside; no sum can overflow. */
bool kv_staging_has(const struct kv_staging *staging, uint64_t offset,
		    uint64_t bytes);

#endif
