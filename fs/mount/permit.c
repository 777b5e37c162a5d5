/* SPDX-License-Identifier: Apache-2.0 */
/*
 * permit.c - the daemon's own check of who asks.
 *
 * OWNS      nothing.
 *
 * LOCKING   none.
 */
#include <fcntl.h>
#include <stdio.h>

#include "fs/mount/permit.h"
#include "fs/base/access.h"

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

/* Reading a caller's groups costs a look into /proc: only where they decide. */
static bool groups_matter(const struct kv_space_info *info,
			  const struct fuse_ctx *ctx)
{
	return ctx->uid != 0 && ctx->uid != info->uid &&
	       ctx->gid != info->gid &&
	       (info->mode >> 3 & 7) != (info->mode & 7);
}

int kv_permit(fuse_req_t req, const struct kv_space_info *info, int want)
{
	const struct fuse_ctx *ctx = fuse_req_ctx(req);
	struct kv_caller caller = {.uid = ctx->uid, .gid = ctx->gid};
	_cleanup_(kv_freep) gid_t *groups = NULL;
	int n;

	if (groups_matter(info, ctx)) {
		n = fuse_req_getgroups(req, 0, NULL);
		if (n > 0)
			groups = calloc((size_t)n, sizeof(*groups));
		if (groups) {
			int got = fuse_req_getgroups(req, n, groups);

			caller.groups = groups;
			caller.n_groups = got > 0 ? (size_t)KV_MIN(n, got) : 0;
		}
	}
	return kv_access_ok(info, &caller, want) ? 0 : -EACCES;
}

int kv_permit_operator(fuse_req_t req)
{
	uid_t uid = fuse_req_ctx(req)->uid;

	return uid == 0 || uid == geteuid() ? 0 : -EPERM;
}

int kv_permit_owner(fuse_req_t req, const struct kv_space_info *info)
{
	uid_t uid = fuse_req_ctx(req)->uid;

	return uid == 0 || uid == info->uid ? 0 : -EPERM;
}
