/* SPDX-License-Identifier: Apache-2.0 */
/*
 * helpers.h - a backend of helpers: one for each tenant that has asked for something
 * lately, each a user of its own, and one of the node's for what is no tenant's.
 */
#ifndef KV_CACHE_REMOTE_HELPERS_H
#define KV_CACHE_REMOTE_HELPERS_H

#include "cache/remote/helper.h"

/* So many users it takes at least that no two of @max tenants' are one: those of
 * helpers that have not ended yet, and the node's, too. */
#define KV_HELPERS_UIDS(max) (2 * (max) + 2)

struct kv_helpers_config {
	struct kv_helper_config helper; /* but for launch.uid and tenant */
	/* Whom they run as: so many users from the first; the last is the node's
	 * helper.  Of no effect unless we are root. */
	uint32_t first_uid, uids; /* KV_HELPERS_UIDS, or one for all */
	unsigned max;		  /* of tenants */
	uint64_t idle_ns;
};

/* As the calls of struct kv_remote_driver.  @config is copied with its strings. */
int kv_helpers_open(const struct kv_helpers_config *config, void **ret_backend,
		    char **ret_why);
void kv_helpers_submit(void *backend, struct kv_remote_op *const *ops,
		       size_t n);
void kv_helpers_cancel(void *backend, struct kv_remote_op *op);
int kv_helpers_fd(void *backend);
size_t kv_helpers_reap(void *backend, struct kv_remote_op **ret_ops,
		       size_t max);
void kv_helpers_tell(void *backend, struct kv_remote_stats *stats);
int kv_helpers_close(void *backend);

#endif
