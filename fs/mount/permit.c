/* SPDX-License-Identifier: Apache-2.0 */
/*
 * permit.c - the daemon's own checks of callers' rights.
 *
 * OWNS      nothing.
 *
 * LOCKING   none.
 */
#include <fcntl.h>
#include <stdio.h>

#include "fs/mount/mount.h"

pid_t kv_process_of(pid_t tid)
{
	char path[32], text[512] = {0};
	_cleanup_(kv_closep) int fd = -1;
	const char *line;

	snprintf(path, sizeof(path), "/proc/%d/status", tid);
	fd = tid > 0 ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	if (fd < 0 || read(fd, text, sizeof(text) - 1) < 0)
		return tid;
	line = strstr(text, "\nTgid:");
	return line ? (pid_t)strtol(line + 6, NULL, 10) : tid;
}

/* Return true if the caller's rights depend on its groups, which libfuse must
 * read from a file of /proc. */
static bool groups_matter(const struct fuse_ctx *ctx,
			  const struct kv_space_info *info)
{
	return ctx->uid != info->uid && ctx->gid != info->gid &&
	       (info->mode >> 3 & 7) != (info->mode & 7);
}

struct kv_caller kv_permit_caller(fuse_req_t req, gid_t **ret_groups)
{
	const struct fuse_ctx *ctx = fuse_req_ctx(req);
	struct kv_caller caller = {.uid = ctx->uid, .gid = ctx->gid};
	int n = fuse_req_getgroups(req, 0, NULL), got;

	*ret_groups = n > 0 ? calloc((size_t)n, sizeof(**ret_groups)) : NULL;
	if (!*ret_groups)
		return caller;
	got = fuse_req_getgroups(req, n, *ret_groups);
	caller.groups = *ret_groups;
	caller.n_groups = got > 0 ? (size_t)KV_MIN(n, got) : 0;
	return caller;
}

int kv_permit_mount(fuse_req_t req, bool make)
{
	const struct kv_mount *mount = fuse_req_userdata(req);
	const struct fuse_ctx *ctx = fuse_req_ctx(req);
	const struct kv_rules *rules = mount->rules;
	const struct kv_space_info root = {
		.uid = rules->uid, .gid = rules->gid, .mode = rules->mode};
	struct kv_caller caller = {.uid = ctx->uid, .gid = ctx->gid};
	_cleanup_(kv_freep) gid_t *groups = NULL;
	bool matters = groups_matter(ctx, &root);

	if (kv_rules_operator(rules, ctx->uid))
		return 0;
	for (size_t i = 0; i < rules->n_allow; i++)
		matters |= rules->allow[i].is_group;
	if (matters)
		caller = kv_permit_caller(req, &groups);
	return kv_rules_admit(rules, &caller) &&
			       (!make || kv_rules_may_make(rules, &caller))
		       ? 0
		       : -EACCES;
}

int kv_permit(fuse_req_t req, const struct kv_space_info *info, int want)
{
	const struct kv_mount *mount = fuse_req_userdata(req);
	const struct fuse_ctx *ctx = fuse_req_ctx(req);
	_cleanup_(kv_freep) gid_t *groups = NULL;
	struct kv_caller caller = {.uid = ctx->uid, .gid = ctx->gid};
	int r;

	if (kv_rules_root(mount->rules, ctx->uid))
		return 0;
	r = kv_permit_mount(req, false);
	if (r < 0)
		return r;
	if (groups_matter(ctx, info))
		caller = kv_permit_caller(req, &groups);
	return kv_access_ok(mount->rules, info, &caller, want) ? 0 : -EACCES;
}

int kv_permit_operator(fuse_req_t req)
{
	const struct kv_mount *mount = fuse_req_userdata(req);

	return kv_rules_operator(mount->rules, fuse_req_ctx(req)->uid) ? 0
								       : -EPERM;
}

int kv_permit_tenant(fuse_req_t req, uint64_t uid)
{
	return uid == fuse_req_ctx(req)->uid || kv_permit_operator(req) == 0
		       ? kv_permit_mount(req, false)
		       : -EACCES;
}

int kv_permit_owner(fuse_req_t req, const struct kv_space_info *info)
{
	const struct kv_mount *mount = fuse_req_userdata(req);
	uid_t uid = fuse_req_ctx(req)->uid;

	return kv_rules_root(mount->rules, uid) || uid == info->uid ? 0
								    : -EPERM;
}

static struct kv_space_info space_of(fuse_req_t req, struct kv_block *block)
{
	const struct kv_mount *mount = fuse_req_userdata(req);

	return kv_space_stat(mount->cache,
			     kv_block_stat(mount->cache, block).space);
}

int kv_permit_block_owner(fuse_req_t req, struct kv_block *block)
{
	struct kv_space_info info = space_of(req, block);

	return kv_permit_owner(req, &info);
}

int kv_permit_block_read(fuse_req_t req, struct kv_block *block)
{
	struct kv_space_info info = space_of(req, block);

	return kv_permit(req, &info, R_OK);
}

int kv_permit_group(fuse_req_t req, uint32_t gid)
{
	_cleanup_(kv_freep) gid_t *groups = NULL;
	struct kv_caller caller;

	if (kv_permit_operator(req) == 0)
		return 0;
	caller = kv_permit_caller(req, &groups);
	return kv_caller_in_group(&caller, gid) ? 0 : -EPERM;
}
