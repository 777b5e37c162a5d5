/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cgroup.c - limits of control groups, read from the files of their mounts.
 *
 * OWNS      nothing.
 *
 * INVARIANTS
 *   (1) A file that is absent, or says what no number is, limits nothing.
 *   (2) Nothing outside of a mount of control groups is read for one.
 *
 * LOCKING   none.
 */
#include <stdio.h>

#include "fs/base/cgroup.h"

/* A hierarchy's mount, as a line of /proc/self/mountinfo has it. */
struct hierarchy {
	char root[PATH_MAX]; /* the group that is mounted */
	char at[PATH_MAX];
	bool unified; /* version 2 */
};

struct kind {
	const char *controller;
	const char *files[2]; /* version 2; NULL: no more */
	const char *old;      /* version 1 */
};

static const struct kind kinds[] = {
	[KV_CGROUP_PAGES] = {"memory",
			     {"memory.max", "memory.high"},
			     "memory.limit_in_bytes"},
	[KV_CGROUP_HUGE_PAGES] = {"hugetlb",
				  {"hugetlb.2MB.max", NULL},
				  "hugetlb.2MB.limit_in_bytes"},
};

/* Whether @word is one of @list, which has commas between them. */
static bool has_word(const char *list, const char *word)
{
	size_t len = strlen(word);

	for (const char *at = list; at; at = strchr(at, ',')) {
		at += *at == ',';
		if (strncmp(at, word, len) == 0 &&
		    (at[len] == ',' || at[len] == '\0' || at[len] == '\n'))
			return true;
	}
	return false;
}

static FILE *open_file(const char *root, const char *path)
{
	_cleanup_(kv_freep) char *whole = NULL;

	if (asprintf(&whole, "%s%s", root, path) < 0)
		return NULL;
	return fopen(whole, "re");
}

/* Whether @line is of a hierarchy that has the controller. */
static bool parse_mount(const char *line, const char *controller,
			struct hierarchy *ret_hierarchy)
{
	char type[16], options[512];
	const char *rest = strstr(line, " - ");

	if (!rest || sscanf(rest, " - %15s %*s %511s", type, options) != 2 ||
	    sscanf(line, "%*s %*s %*s %4095s %4095s", ret_hierarchy->root,
		   ret_hierarchy->at) != 2)
		return false;
	ret_hierarchy->unified = strcmp(type, "cgroup2") == 0;
	return ret_hierarchy->unified ||
	       (strcmp(type, "cgroup") == 0 && has_word(options, controller));
}

/* The group of this process in the hierarchy; false: there is none. */
static bool find_group(const char *root, const struct hierarchy *h,
		       const char *controller, char ret_group[PATH_MAX])
{
	_cleanup_(kv_freep) char *line = NULL;
	FILE *f = open_file(root, "/proc/self/cgroup");
	bool found = false;
	size_t room = 0;
	char *colon, *path;

	while (f && !found && getline(&line, &room, f) > 0) {
		colon = strchr(line, ':');
		path = colon ? strchr(colon + 1, ':') : NULL;
		if (!path)
			continue;
		*path++ = '\0';
		found = h->unified ? strcmp(line, "0:") == 0
				   : has_word(colon + 1, controller);
		if (found)
			snprintf(ret_group, PATH_MAX, "%.*s",
				 (int)strcspn(path, "\n"), path);
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

/* The group at @dir and those above it, up to the mount itself. */
static void read_groups(const char *root, const struct hierarchy *h,
			const struct kind *kind, char *dir,
			struct kv_cgroup_limit *limit)
{
	size_t top = strlen(h->at);

	for (;;) {
		if (!h->unified)
			read_limit(root, dir, kind->old, limit);
		for (size_t i = 0; h->unified && i < 2 && kind->files[i]; i++)
			read_limit(root, dir, kind->files[i], limit);
		if (strlen(dir) <= top)
			return;
		*strrchr(dir, '/') = '\0';
	}
}

/* A group outside of what is mounted has no files there: the mount's own then
 * are the nearest that can be seen. */
static void read_hierarchy(const char *root, const struct hierarchy *h,
			   const struct kind *kind,
			   struct kv_cgroup_limit *limit)
{
	char group[PATH_MAX], dir[PATH_MAX];
	const char *below = group;
	size_t len = strcmp(h->root, "/") == 0 ? 0 : strlen(h->root);

	if (!find_group(root, h, kind->controller, group))
		return;
	if (strncmp(group, h->root, len) == 0 &&
	    (group[len] == '/' || group[len] == '\0'))
		below += len;
	else
		below = "";
	if (strstr(below, "/..") || strcmp(below, "/") == 0)
		below = "";
	if (snprintf(dir, sizeof(dir), "%s%s", h->at, below) < (int)sizeof(dir))
		read_groups(root, h, kind, dir, limit);
}

void kv_cgroup_limit(const char *root, enum kv_cgroup_memory what,
		     struct kv_cgroup_limit *ret_limit)
{
	_cleanup_(kv_freep) char *line = NULL;
	FILE *f = open_file(root, "/proc/self/mountinfo");
	struct hierarchy h;
	size_t room = 0;

	*ret_limit = (struct kv_cgroup_limit){.bytes = UINT64_MAX};
	while (f && getline(&line, &room, f) > 0)
		if (parse_mount(line, kinds[what].controller, &h))
			read_hierarchy(root, &h, &kinds[what], ret_limit);
	if (f)
		fclose(f);
}
