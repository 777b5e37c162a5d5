/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mapper.c - map blocks of the FUSE mount, and read them when the daemon is dead: pages
 * that the kernel has cached stay readable, other pages raise SIGBUS, and an old descriptor
 * fails with ENOTCONN, as kvfs-space(5) promises.
 *
 *   mapper MOUNT JOURNAL SEED
 *
 * OWNS      its descriptors and mappings, of one mount at a time.
 *
 * INVARIANTS
 *   (1) A byte that can be read is the block's.
 *
 * LOCKING   none: one thread.
 */
#include <linux/magic.h>
#include <setjmp.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "tests/crash/client.h"
#include "tests/crash/journal.h"

#define MAPS 8

struct map {
	int fd;
	const uint8_t *at;
	uint64_t length, id, gen;
};

static struct journal *journal;
static uint64_t seed;
static sigjmp_buf on_fault;

static void on_sigbus(int signal)
{
	(void)signal;
	siglongjmp(on_fault, 1);
}

/* Read a mapping.  Return 0, -EFAULT after a SIGBUS, or -EBADMSG for wrong bytes. */
static int look(const struct map *map, uint64_t *ret_gen)
{
	if (sigsetjmp(on_fault, 1) != 0)
		return -EFAULT;
	return content_check_file(map->at, map->length, map->id, ret_gen);
}

/* Map a block that must be present, of those that are saved by libkvfs. */
static bool map_one(const char *root, struct map *map)
{
	unsigned writer = (unsigned)client_random(&seed, JOURNAL_CHURN);
	unsigned index = (unsigned)client_random(&seed, JOURNAL_ITEMS);
	char path[512];
	struct stat st;

	map->id = journal_id(writer, index);
	content_path(root, map->id, path);
	map->fd = open(path, O_RDONLY | O_CLOEXEC);
	if (map->fd < 0 || fstat(map->fd, &st) < 0 || st.st_size == 0) {
		kv_closep(&map->fd);
		return false;
	}
	map->length = (uint64_t)st.st_size;
	map->at = mmap(NULL, map->length, PROT_READ, MAP_SHARED, map->fd, 0);
	if (map->at == MAP_FAILED || look(map, &map->gen) < 0) {
		munmap((void *)map->at, map->length);
		close(map->fd);
		return false;
	}
	atomic_fetch_add(&journal->maps, 1);
	/* Map half of the blocks without reading them first, so that the kernel
	 * has not cached their pages. */
	if (client_random(&seed, 2) == 0) {
		madvise((void *)map->at, map->length, MADV_DONTNEED);
		posix_fadvise(map->fd, 0, 0, POSIX_FADV_DONTNEED);
	}
	return true;
}

static void look_again(const struct map *map)
{
	uint64_t gen = 0;
	int r = look(map, &gen);

	if (r == -EFAULT)
		atomic_fetch_add(&journal->sigbus, 1);
	else if (r < 0 || gen != map->gen)
		journal_fault(journal, "mapped bytes changed", map->id);
}

static void follow(int root)
{
	struct map maps[MAPS];
	char path[64];
	struct stat st;
	unsigned n = 0;
	char byte;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", root);
	while (!client_stop && fstat(root, &st) == 0) {
		n += n < MAPS && map_one(path, &maps[n]);
		usleep(2000);
	}
	for (unsigned i = 0; i < n; i++) {
		look_again(&maps[i]);
		if (pread(maps[i].fd, &byte, 1, 0) < 0 && errno == ENOTCONN)
			atomic_fetch_add(&journal->notconn, 1);
		munmap((void *)maps[i].at, maps[i].length);
		close(maps[i].fd);
	}
}

int main(int argc, char **argv)
{
	struct sigaction action = {.sa_handler = on_sigbus};
	struct statfs fs;
	int root;

	if (argc != 4)
		return 2;
	client_until_term();
	sigaction(SIGBUS, &action, NULL);
	journal = journal_open(argv[2]);
	seed = strtoull(argv[3], NULL, 0) * 1000033;
	while (!client_stop) {
		usleep(2000);
		if (journal->ready != journal->mounted ||
		    !journal_same(journal, journal->ready))
			continue;
		root = open(argv[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (root >= 0 && fstatfs(root, &fs) == 0 &&
		    fs.f_type == FUSE_SUPER_MAGIC)
			follow(root);
		kv_closep(&root);
	}
	return 0;
}
