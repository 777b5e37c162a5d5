/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis.h - Redis, asked over a UNIX socket without a client library.
 */
#ifndef KV_TOOLS_BENCH_REDIS_H
#define KV_TOOLS_BENCH_REDIS_H

#include <stddef.h>

#include "tools/bench/child.h"

struct kv_bench_redis;

/*
 * Start redis-server in @dir and store the first @present of the @n @names.
 * -ETIMEDOUT: it does not answer; -ENAMETOOLONG: @dir; -EIO; -ENOMEM.
 */
int kv_bench_redis_new(struct kv_bench_children *children, const char *dir,
		       char (*names)[65], size_t n, size_t present,
		       struct kv_bench_redis **ret_redis);
void kv_bench_redis_free(struct kv_bench_redis *redis); /* takes NULL */

/* One EXISTS for each of the names, in one write.  How many are there. */
long kv_bench_redis_exists(struct kv_bench_redis *redis);

#endif
