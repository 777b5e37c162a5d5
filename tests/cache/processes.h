/* SPDX-License-Identifier: Apache-2.0 */
/* processes.h - read processes and their descriptors from /proc. */
#ifndef KV_TESTS_CACHE_PROCESSES_H
#define KV_TESTS_CACHE_PROCESSES_H

#include <dirent.h>
#include <stdio.h>

#include "common/kv.h"

static inline unsigned descriptors_of(pid_t pid)
{
	char path[64];
	DIR *all;
	unsigned n = 0;

	snprintf(path, sizeof(path), "/proc/%d/fd", pid);
	all = opendir(path);
	while (all && readdir(all))
		n++;
	if (all)
		closedir(all);
	return n;
}

/* Find the children of @parent, at most @max.  Return how many there are. */
static inline unsigned children(pid_t parent, pid_t *ret_pids, unsigned max)
{
	char path[300];
	struct dirent *task;
	unsigned n = 0;
	DIR *tasks;

	snprintf(path, sizeof(path), "/proc/%d/task", parent);
	tasks = opendir(path);
	while (tasks && (task = readdir(tasks))) {
		FILE *file;

		snprintf(path, sizeof(path), "/proc/%d/task/%.20s/children",
			 parent, task->d_name);
		file = fopen(path, "r");
		while (file && n < max && fscanf(file, "%d", &ret_pids[n]) == 1)
			n++;
		if (file)
			fclose(file);
	}
	if (tasks)
		closedir(tasks);
	return n;
}

/* Copy the value of line @name of /proc/PID/status to @value.  Return false if
 * there is no such process or line. */
static inline bool status_line(pid_t pid, const char *name, char value[100])
{
	const size_t n = strlen(name);
	char path[64], line[300];
	bool found = false;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	file = fopen(path, "r");
	while (file && !found && fgets(line, sizeof(line), file))
		found = strncmp(line, name, n) == 0 && line[n] == ':';
	if (file)
		fclose(file);
	if (found)
		snprintf(value, 100, "%.*s", (int)strcspn(line + n + 2, "\n"),
			 line + n + 2);
	return found;
}

/* Return how many descriptors this process has, the listing's own included. */
static inline unsigned descriptors(void)
{
	return descriptors_of(getpid());
}

#endif
