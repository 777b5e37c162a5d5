/* SPDX-License-Identifier: Apache-2.0 */
/*
 * access.h - rights of users to the mount and its spaces, for requests of the mount
 * and of the control socket.
 */
#ifndef KV_FS_BASE_ACCESS_H
#define KV_FS_BASE_ACCESS_H

#include <sys/types.h>

#include "cache/cache.h"

struct kv_caller {
	uint32_t uid, gid;
	const gid_t *groups; /* supplementary groups; NULL: none */
	size_t n_groups;
};

bool kv_caller_in_group(const struct kv_caller *caller, uint32_t gid);

struct kv_id {
	uint32_t id;
	bool is_group;
};

/* The rules that mount options set for users; fixed while the daemon runs. */
struct kv_rules {
	uint32_t uid, gid, mode; /* owner and mode of the root directory */
	unsigned mkdir;	 /* 0: every user may make spaces; 1: operators only */
	unsigned squash; /* 1: the user with uid 0 has no special rights */
	struct kv_id *allow; /* users and groups that may use the mount */
	size_t n_allow;	     /* 0: everybody */
};

/* The fields of struct kv_quota, with the names of their attributes. */
#define KV_QUOTAS(X)                    \
	X("quota.dram", quota_dram)     \
	X("quota.ssd", quota_ssd)       \
	X("reserve.dram", reserve_dram) \
	X("reserve.ssd", reserve_ssd)   \
	X("rate.put", rate_put)         \
	X("ttl", ttl)

/* Return true if @uid is an operator: the daemon's own uid, or 0 unless squashed. */
bool kv_rules_operator(const struct kv_rules *rules, uint32_t uid);

/* Return true if @uid has every right in every space: 0, unless squashed. */
bool kv_rules_root(const struct kv_rules *rules, uint32_t uid);

/* Return true if @caller may use the mount at all: as an operator, or as a user that
 * `allow` lists and that may search the root directory. */
bool kv_rules_admit(const struct kv_rules *rules,
		    const struct kv_caller *caller);

/* Return true if @caller, an admitted user, may make spaces. */
bool kv_rules_may_make(const struct kv_rules *rules,
		       const struct kv_caller *caller);

/*
 * Return true if @caller has all rights in @want (R_OK, W_OK, X_OK) in the space, as
 * access(2) decides for a directory with the space's owner, group and mode: only one
 * of owner, group and others counts, so an owner without a right does not get it from
 * the group.
 */
bool kv_access_ok(const struct kv_rules *rules,
		  const struct kv_space_info *space,
		  const struct kv_caller *caller, int want);

/*
 * Set all or none of the limits in @text, NAME=VALUE with a blank between two, of @space, or
 * if that is NULL of the user @tenant, for the user @uid.  NAME: one of KV_QUOTAS.  VALUE:
 * bytes with K, M, G, T, or % of the tier; seconds with m, h, d.  Waits.  Returns 0, or
 *   -EINVAL  bad name or value
 *   -EPERM   @uid may not: owners may lower the limits of their spaces, only operators may
 *            raise a limit or a reserve, or set a user's
 *   -ENOSPC, -EROFS, as kv_space_set_quota
 */
int kv_limits_set(struct kv_cache *cache, const struct kv_rules *rules,
		  uint32_t uid, struct kv_space *space, uint32_t tenant,
		  const char *text);

#endif
