/* SPDX-License-Identifier: Apache-2.0 */
/*
 * access.c - compare the mount's rules, and the permission bits of a space, with the
 * ids of a caller; set limits.
 *
 * OWNS      nothing; the caller's arrays are borrowed for the call.
 *
 * LOCKING   none.
 */
#include "common/array.h"
#include "fs/base/access.h"
#include "fs/base/quantity.h"

bool kv_caller_in_group(const struct kv_caller *caller, uint32_t gid)
{
	if (caller->gid == gid)
		return true;
	for (size_t i = 0; i < caller->n_groups; i++)
		if (caller->groups[i] == gid)
			return true;
	return false;
}

bool kv_rules_root(const struct kv_rules *rules, uint32_t uid)
{
	return uid == 0 && !rules->squash;
}

bool kv_rules_operator(const struct kv_rules *rules, uint32_t uid)
{
	return uid == 0 ? kv_rules_root(rules, uid) : uid == geteuid();
}

bool kv_access_ok(const struct kv_rules *rules,
		  const struct kv_space_info *space,
		  const struct kv_caller *caller, int want)
{
	uint32_t bits;

	if (kv_rules_root(rules, caller->uid))
		return true;
	if (caller->uid == space->uid)
		bits = space->mode >> 6;
	else if (kv_caller_in_group(caller, space->gid))
		bits = space->mode >> 3;
	else
		bits = space->mode;
	want &= R_OK | W_OK | X_OK;
	return (bits & (uint32_t)want) == (uint32_t)want;
}

static bool root_dir_ok(const struct kv_rules *rules,
			const struct kv_caller *caller, int want)
{
	const struct kv_space_info root = {
		.uid = rules->uid, .gid = rules->gid, .mode = rules->mode};

	return kv_access_ok(rules, &root, caller, want);
}

bool kv_rules_admit(const struct kv_rules *rules,
		    const struct kv_caller *caller)
{
	bool listed = rules->n_allow == 0;

	for (size_t i = 0; !listed && i < rules->n_allow; i++)
		listed =
			rules->allow[i].is_group
				? kv_caller_in_group(caller, rules->allow[i].id)
				: caller->uid == rules->allow[i].id;
	return kv_rules_operator(rules, caller->uid) ||
	       (listed && root_dir_ok(rules, caller, X_OK));
}

bool kv_rules_may_make(const struct kv_rules *rules,
		       const struct kv_caller *caller)
{
	return kv_rules_operator(rules, caller->uid) ||
	       (rules->mkdir == 0 && root_dir_ok(rules, caller, W_OK | X_OK));
}

/* Return -EAGAIN if another call has changed a limit meanwhile. */
static int limits_set_once(struct kv_cache *cache, const struct kv_rules *rules,
			   uint32_t uid, struct kv_space *space,
			   uint32_t tenant, const char *text)
{
#define LIMIT(name, field) {name, offsetof(struct kv_quota, field)},
	static const struct {
		const char *name;
		size_t at;
	} limits[] = {KV_QUOTAS(LIMIT)};
	const bool is_operator = kv_rules_operator(rules, uid);
	_cleanup_(kv_freep) char *copy = strdup(text);
	char *rest = copy, *name, *value;
	struct kv_space_info info = {0};
	struct kv_cache_stats stats;
	struct kv_quota before, quota;

	if (!copy)
		return -ENOMEM;
	if (space)
		info = kv_space_stat(cache, space);
	if (space ? !kv_rules_root(rules, uid) && uid != info.uid
		  : !is_operator)
		return -EPERM;
	before = space ? info.quota : kv_tenant_stat(cache, tenant).quota;
	quota = before;
	while ((name = strsep(&rest, " "))) {
		struct kv_quantity q = {0};
		uint64_t *limit, old, whole;
		size_t i = 0;

		value = name;
		strsep(&value, "=");
		while (i < KV_ARRAY_LEN(limits) &&
		       strcmp(limits[i].name, name) != 0)
			i++;
		if (!value || i == KV_ARRAY_LEN(limits) ||
		    (limits[i].at == offsetof(struct kv_quota, ttl)
			     ? kv_seconds_parse(value, KV_TTL_MAX, &q.value)
			     : kv_quantity_parse(value, &q)) < 0 ||
		    (limits[i].at == offsetof(struct kv_quota, rate_put) &&
		     (q.percent || q.value > KV_RATE_MAX)))
			return -EINVAL;
		limit = (uint64_t *)((char *)&quota + limits[i].at);
		old = *limit;
		*limit = q.value;
		if (q.percent) {
			kv_cache_stats(cache, &stats);
			whole = strstr(name, ".dram") ? stats.dram_total
						      : stats.ssd_total;
			*limit = whole / 100 * q.value +
				 whole % 100 * q.value / 100;
			/* A quota of 0 would mean no limit. */
			if (*limit == 0)
				return -EINVAL;
		}
		if (!is_operator &&
		    (strncmp(name, "reserve.", 8) == 0
			     ? *limit > old
			     : old != 0 && (*limit == 0 || *limit > old)))
			return -EPERM;
	}
	if (!space)
		return kv_tenant_set_quota(cache, tenant, &before, &quota);
	return kv_space_set_quota(cache, space, &before, &quota);
}

int kv_limits_set(struct kv_cache *cache, const struct kv_rules *rules,
		  uint32_t uid, struct kv_space *space, uint32_t tenant,
		  const char *text)
{
	int r;

	do
		r = limits_set_once(cache, rules, uid, space, tenant, text);
	while (r == -EAGAIN);
	return r;
}
