/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hostmem.c - memory of the device "host" that is the library's own: it grows,
 * and stays where it is.
 *
 * OWNS      a mapping of a memfd, as long as it may ever get.  The descriptor
 *           is closed at once: no child, and no program executed, keeps it.
 *
 * INVARIANTS
 *   (1) The first @bytes of the mapping are readable, writable and allocated:
 *       no touch of them finds the machine out of memory.
 *   (2) The rest cannot be touched.
 *
 * LOCKING   none: one grows a memory at a time.
 */
#include <linux/memfd.h>
#include <sys/mman.h>

#include "kernels/device/hostmem.h"

struct hostmem {
	uint8_t *base;
	uint64_t bytes, max_bytes;
};

static void unmap(struct hostmem *memory)
{
	if (memory == NULL)
		return;
	if (memory->base != NULL)
		munmap(memory->base, memory->max_bytes);
	free(memory);
}

static void unmapp(struct hostmem **memory)
{
	unmap(*memory);
}

/* Populating takes page after page until the machine has none left: what is out
 * of proportion must not get that far. */
static bool is_out_of_proportion(uint64_t bytes)
{
	uint64_t all = (uint64_t)sysconf(_SC_PHYS_PAGES) *
		       (uint64_t)sysconf(_SC_PAGESIZE);

	return bytes > all / 4 * 3;
}

static int map_memfd(struct hostmem *memory)
{
	_cleanup_(kv_closep) int fd = memfd_create("kvfs-pages", MFD_CLOEXEC);
	void *base;

	if (fd < 0)
		return -errno;
	if (ftruncate(fd, (off_t)memory->max_bytes) < 0)
		return -errno;
	base = mmap(NULL, memory->max_bytes, PROT_NONE,
		    MAP_SHARED | MAP_NORESERVE, fd, 0);
	if (base == MAP_FAILED)
		return -errno;
	memory->base = base;
	madvise(base, memory->max_bytes, MADV_DONTFORK);
	return 0;
}

int kv_hostmem_grow(void *memory, uint64_t bytes)
{
	struct hostmem *m = memory;
	uint64_t more;
	uint8_t *at;

	bytes = kv_round_up(bytes, KV_PAGE);
	if (bytes <= m->bytes)
		return 0;
	if (bytes > m->max_bytes || is_out_of_proportion(bytes))
		return -ENOMEM;
	at = m->base + m->bytes;
	more = bytes - m->bytes;
	if (mprotect(at, more, PROT_READ | PROT_WRITE) < 0)
		return -ENOMEM;
	if (madvise(at, more, MADV_POPULATE_WRITE) < 0) {
		madvise(at, more, MADV_REMOVE);
		mprotect(at, more, PROT_NONE);
		return -ENOMEM;
	}
	m->bytes = bytes;
	return 0;
}

int kv_hostmem_reserve(const char *name, uint64_t bytes, uint64_t max_bytes,
		       void **ret_memory, void **ret_base)
{
	_cleanup_(unmapp) struct hostmem *memory = calloc(1, sizeof(*memory));
	int r;

	(void)name;
	if (memory == NULL || max_bytes > INT64_MAX - KV_PAGE)
		return -ENOMEM;
	memory->max_bytes = kv_round_up(max_bytes, KV_PAGE);
	r = map_memfd(memory);
	if (r == 0)
		r = kv_hostmem_grow(memory, bytes);
	if (r < 0)
		return r == -EFBIG || r == -EINVAL ? -ENOMEM : r;
	*ret_base = memory->base;
	*ret_memory = kv_steal(memory);
	return 0;
}

void kv_hostmem_release(void *memory)
{
	unmap(memory);
}
