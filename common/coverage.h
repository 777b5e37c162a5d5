/* SPDX-License-Identifier: Apache-2.0 */
/*
 * coverage.h - the set of byte ranges of a block that have arrived.
 *
 * Shared by the daemon and libkvfs.
 */
#ifndef KV_COMMON_COVERAGE_H
#define KV_COMMON_COVERAGE_H

#include "common/kv.h"

#define KV_COVERAGE_MAX 4096 /* separate ranges */

struct kv_span {
	uint64_t start, end; /* end exclusive */
};

/* In the owner's memory; a zeroed struct covers nothing. */
struct kv_coverage {
	struct kv_span *ranges; /* ascending, with gaps between them */
	size_t n, room;
};

/* afterwards @coverage covers nothing */
void kv_coverage_fini(struct kv_coverage *coverage);

/* Add [start, end).  -ENOMEM, -EFBIG (too many holes): @coverage is
 * unchanged. */
int kv_coverage_add(struct kv_coverage *coverage, uint64_t start, uint64_t end);

/* Return the bytes from 0 to the first hole. */
uint64_t kv_coverage_prefix(const struct kv_coverage *coverage);

/* Return the end of the last range. */
uint64_t kv_coverage_end(const struct kv_coverage *coverage);

#endif
