/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cgroup.c - memory limits of control groups, version 2.
 *
 * OWNS      nothing.
 *
 * INVARIANTS
 *   (1) A file that is absent, or has no number, limits nothing.
 *   (2) Limits are read only from below a mount of control groups.
 *
 * LOCKING   none.
 */
#include <stdio.h>

#include "fs/base/cgroup.h"

static FILE *open_file(const char *root, const char *path)
{
	_cleanup_(kv_freep) char *whole = NULL;

	if (asprintf(&whole, "%s%s", root, path) < 0)
		return NULL;
	return fopen(whole, "re");
}

/* Find the group of this process: the line "0::PATH". */
static bool find_group(const char *root, char ret_group[PATH_MAX])
{
	_cleanup_(kv_freep) char *line = NULL;
	FILE *f = open_file(root, "/proc/self/cgroup");
	bool found = false;
	size_t room = 0;

	while (f && !found && getline(&line, &room, f) > 0) {
		found = strncmp(line, "0::", 3) == 0;
		if (found)
			snprintf(ret_group, PATH_MAX, "%.*s",
				 (int)strcspn(line + 3, "\n"), line + 3);
	}
	if (f)
		fclose(f);
	return found;
}

static void read_limit(const char *root, const char *dir, const char *name,
		       struct kv_cgroup_limit *limit)
{
	char path[PATH_MAX];
	unsigned long long bytes;
	FILE *f;

	if (snprintf(path, sizeof(path), "%s/%s", dir, name) >=
	    (int)sizeof(path))
		return;
	f = open_file(root, path);
	if (!f)
		return;
	if (fscanf(f, "%llu", &bytes) == 1 && bytes < limit->bytes) {
		limit->bytes = bytes;
		memcpy(limit->file, path, sizeof(path));
	}
	fclose(f);
}

void kv_cgroup_limit(const char *root, bool huge_pages,
		     struct kv_cgroup_limit *ret_limit)
{
	_cleanup_(kv_freep) char *line = NULL;
	FILE *f = open_file(root, "/proc/self/mountinfo");
	char group[PATH_MAX], top[PATH_MAX], at[PATH_MAX], dir[PATH_MAX];
	size_t room = 0, len;

	*ret_limit = (struct kv_cgroup_limit){.bytes = UINT64_MAX};
	while (f && getline(&line, &room, f) > 0) {
		const char *type = strstr(line, " - cgroup2 ");
		const char *below = group;

		if (!type || !find_group(root, group) ||
		    sscanf(line, "%*s %*s %*s %4095s %4095s", top, at) != 2)
			continue;
		/* Of a group outside of the mounted part there are no files:
		 * the mounted group itself is the nearest that is visible. */
		len = strcmp(top, "/") == 0 ? 0 : strlen(top);
		if (strncmp(group, top, len) != 0 ||
		    (group[len] != '/' && group[len] != '\0'))
			below = "";
		else
			below += len;
		if (strstr(below, "/..") || strcmp(below, "/") == 0)
			below = "";
		if (snprintf(dir, sizeof(dir), "%s%s", at, below) >=
		    (int)sizeof(dir))
			continue;
		while (strlen(dir) >= strlen(at)) {
			if (huge_pages) {
				read_limit(root, dir, "hugetlb.2MB.max",
					   ret_limit);
			} else {
				read_limit(root, dir, "memory.max", ret_limit);
				read_limit(root, dir, "memory.high", ret_limit);
			}
			*strrchr(dir, '/') = '\0';
		}
	}
	if (f)
		fclose(f);
}
