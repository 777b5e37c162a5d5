/* SPDX-License-Identifier: Apache-2.0 */
/*
 * overcommit.c - the system's limit of huge pages, raised while a store is
 * mounted.
 *
 * OWNS       arena.overcommit, and the second line of STORE/lock, which says
 *            what a daemon that was killed could not take back: the next one
 *            does.
 *
 * INVARIANTS
 *   (1) The line is written before the limit is raised and taken away after it
 *       was lowered.  It counts only in the boot that it names.
 *
 * LOCKING    none: it runs before the threads start and after they end.  The
 *            limit is read and written under flock, for the other daemons.
 */
#include "cache/dram/dram.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/file.h>

#define LIMIT "/proc/sys/vm/nr_overcommit_hugepages"
#define BOOT_ID "/proc/sys/kernel/random/boot_id"

/* Returns whether it did. */
static bool change_limit(int64_t pages)
{
	_cleanup_(kv_closep) int fd = open(LIMIT, O_RDWR | O_CLOEXEC);
	char text[32] = {0};
	int64_t now;
	int n;

	if (fd < 0 || flock(fd, LOCK_EX) < 0 ||
	    pread(fd, text, sizeof(text) - 1, 0) < 0)
		return false;
	now = strtoll(text, NULL, 10) + pages;
	n = snprintf(text, sizeof(text), "%" PRId64 "\n", KV_MAX(now, 0));
	return pwrite(fd, text, (size_t)n, 0) == n;
}

static void read_boot_id(char id[40])
{
	_cleanup_(kv_closep) int fd = open(BOOT_ID, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? 0 : pread(fd, id, 36, 0);

	id[KV_MAX(n, 0)] = '\0';
}

static bool write_line(int lock_fd, int64_t pages)
{
	char boot[40], text[128];
	int n;

	read_boot_id(boot);
	n = snprintf(text, sizeof(text), "%d\n", (int)getpid());
	if (pages > 0)
		n += snprintf(text + n, sizeof(text) - (size_t)n,
			      "%" PRId64 " huge pages, boot %s\n", pages, boot);
	return pwrite(lock_fd, text, (size_t)n, 0) == n &&
	       ftruncate(lock_fd, n) == 0;
}

void kv_overcommit_recover(int lock_fd)
{
	char text[128] = {0}, boot[40], then[40] = "";
	int64_t pages = 0;

	if (pread(lock_fd, text, sizeof(text) - 1, 0) < 0)
		return;
	read_boot_id(boot);
	if (sscanf(text, "%*d %" SCNd64 " huge pages, boot %39s", &pages,
		   then) == 2 &&
	    pages > 0 && strcmp(boot, then) == 0)
		(void)change_limit(-pages);
}

void kv_overcommit_raise(struct kv_cache *cache, int64_t pages)
{
	if (cache->lock_fd >= 0 && !write_line(cache->lock_fd, pages))
		return;
	if (change_limit(pages))
		cache->arena.overcommit = (uint64_t)pages;
}

void kv_overcommit_lower(struct kv_cache *cache)
{
	if (!cache->arena.overcommit)
		return;
	(void)change_limit(-(int64_t)cache->arena.overcommit);
	cache->arena.overcommit = 0;
	if (cache->lock_fd >= 0)
		(void)write_line(cache->lock_fd, 0);
}
