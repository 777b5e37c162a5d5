/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory.c - the memory of one arena segment: a memfd that is allocated in
 * full, locked, mapped once for writing and then sealed, so that whoever gets
 * the descriptor can only ever map it for reading.
 *
 * Until it is known whose blocks it gets it is sealed only against changes of
 * its size, and an open one stays so.  Others than the owner's clients then get
 * a descriptor open for reading; the file's mode keeps them from opening it
 * again for writing (/proc/self/fd).
 *
 * Clients never get the descriptor that the daemon keeps, but others of the
 * same file: so the kernel can tell whether any of them is open, or mapped,
 * anywhere.  It grants a lease for writing to none but the only one who has a
 * file open.  Where it grants none at all, nobody is said to have it.
 *
 * Huge pages come from overcommit: the kernel takes pages when a segment is
 * made and gets them back when it goes, also after SIGKILL.  The system's limit
 * of them is raised while a store is mounted.
 *
 * OWNS     arena.overcommit, and the second line of STORE/lock, which says what
 *          a daemon that was killed could not take back: the next one does.  A
 *          kv_memory is its caller's.
 *
 * INVARIANTS
 *   (1) The line is written before the limit is raised and taken away after it
 *       was lowered.  It counts only in the boot that it names.
 *
 * LOCKING  none: the limit is changed before the threads start and after they
 *          end, and read and written under flock, for the other daemons;
 *          lease_granted is fixed, once lease_once has run.
 */
#include "cache/dram/dram.h"

#include <fcntl.h>
#include <inttypes.h>
#include <linux/memfd.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>

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

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

static int map_segment(uint64_t bytes, bool huge, struct kv_memory *m)
{
	unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;

	if (huge)
		flags |= MFD_HUGETLB | MFD_HUGE_2MB;
	m->fd = memfd_create("kvfs-arena", flags);
	if (m->fd < 0)
		return -errno;
	if (ftruncate(m->fd, (off_t)bytes) < 0 ||
	    fallocate(m->fd, 0, 0, (off_t)bytes) < 0)
		return -errno;
	m->base = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_POPULATE, m->fd, 0);
	if (m->base == MAP_FAILED) {
		m->base = NULL;
		return -errno;
	}
	m->huge = huge;
	m->locked = huge || mlock(m->base, bytes) == 0;
	madvise(m->base, bytes, MADV_DONTDUMP);
	madvise(m->base, bytes, MADV_DONTFORK);
	return 0;
}

void kv_memory_free(struct kv_memory *m, uint64_t bytes)
{
	if (m->base)
		munmap(m->base, bytes);
	kv_closep(&m->fd);
	kv_closep(&m->read_fd);
	kv_closep(&m->write_fd);
	m->base = NULL;
	m->fd = m->read_fd = m->write_fd = -1;
}

static int open_again(int fd, int flags)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return open(path, flags | O_CLOEXEC);
}

static pthread_once_t lease_once = PTHREAD_ONCE_INIT;
static bool lease_granted;

/* Of a file that nobody else has: a kernel that refuses it refuses all. */
static void try_lease(void)
{
	_cleanup_(kv_closep) int fd = memfd_create("kvfs-lease", MFD_CLOEXEC);
	_cleanup_(kv_closep) int again = open_again(fd, O_RDWR);

	lease_granted = fcntl(again, F_SETLEASE, F_WRLCK) == 0;
}

/* Where there is no /proc there are no other descriptors, so that all clients
 * have to do with a sealed one. */
static int seal_segment(struct kv_memory *m, bool seal)
{
	int seals = F_SEAL_SHRINK | F_SEAL_GROW;

	if (fchmod(m->fd, S_IRUSR | S_IWUSR) == 0)
		m->read_fd = open_again(m->fd, O_RDONLY);
	m->undecided = !seal && m->read_fd >= 0;
	if (!m->undecided)
		seals |= F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
	return fcntl(m->fd, F_ADD_SEALS, seals) < 0 ? -errno : 0;
}

int kv_memory_seal(struct kv_memory *m, bool open)
{
	int seals = F_SEAL_SEAL;

	if (!m->undecided)
		return 0;
	if (open)
		m->write_fd = open_again(m->fd, O_RDWR);
	if (m->write_fd < 0)
		seals |= F_SEAL_FUTURE_WRITE;
	if (fcntl(m->fd, F_ADD_SEALS, seals) < 0) {
		kv_closep(&m->write_fd);
		m->write_fd = -1;
		return -errno;
	}
	m->undecided = false;
	return 0;
}

bool kv_memory_in_use(struct kv_memory *m)
{
	_cleanup_(kv_closep) int fd = -1;

	kv_closep(&m->read_fd);
	kv_closep(&m->write_fd);
	m->read_fd = m->write_fd = -1;
	fd = open_again(m->fd, O_RDWR);
	pthread_once(&lease_once, try_lease);
	return lease_granted && fd >= 0 && fcntl(fd, F_SETLEASE, F_WRLCK) < 0 &&
	       errno == EAGAIN;
}

int kv_memory_new(uint64_t bytes, enum kv_hugepages huge, bool seal,
		  struct kv_memory *ret_memory)
{
	struct kv_memory m = {.fd = -1, .read_fd = -1, .write_fd = -1};
	int r = -ENOMEM;

	if (huge != KV_HUGE_OFF && bytes % (2u << 20) == 0)
		r = map_segment(bytes, true, &m);
	if (r < 0 && huge != KV_HUGE_ON) {
		kv_memory_free(&m, bytes);
		r = map_segment(bytes, false, &m);
	}
	if (r == 0)
		r = seal_segment(&m, seal);
	if (r < 0) {
		kv_memory_free(&m, bytes);
		return r;
	}
	*ret_memory = m;
	return 0;
}
