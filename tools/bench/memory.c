/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory.c - plain memory in 2 MiB pages, as an engine's pool would have it.
 *
 * OWNS      the mappings.
 *
 * INVARIANTS
 *   (1) A mapping is not inherited by fork: else each start of a child would
 *       leave the pool's pages write-protected, and the next copy would pay.
 *
 * LOCKING   none.
 */
#include "tools/bench/memory.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_PAGE (2ul << 20)

/* Free 2 MiB pages first: they are only there if the operator made some. */
static void *map_hugetlb(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

static void *map_transparent(size_t bytes)
{
	char *raw, *p;
	size_t before;

	raw = mmap(NULL, bytes + HUGE_PAGE, PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (raw == MAP_FAILED)
		return NULL;
	before = -(uintptr_t)raw & (HUGE_PAGE - 1);
	p = raw + before;
	if (before)
		munmap(raw, before);
	munmap(p + bytes, HUGE_PAGE - before);
	madvise(p, bytes, MADV_HUGEPAGE);
	return p;
}

int kv_bench_memory_map(size_t bytes, struct kv_bench_memory *ret_memory)
{
	void *p;

	bytes = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
	p = map_hugetlb(bytes);
	if (!p)
		p = map_transparent(bytes);
	if (!p)
		return -ENOMEM;
	madvise(p, bytes, MADV_DONTFORK);
	memset(p, 1, bytes);
	*ret_memory = (struct kv_bench_memory){p, bytes};
	return 0;
}

void kv_bench_memory_unmap(struct kv_bench_memory *memory)
{
	if (memory->base)
		munmap(memory->base, memory->bytes);
	*memory = (struct kv_bench_memory){0};
}

unsigned kv_bench_memory_huge_percent(void)
{
	unsigned long kib, anonymous = 0, huge = 0;
	char line[256];
	FILE *f = fopen("/proc/self/smaps_rollup", "re");

	if (!f)
		return 0;
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, "Anonymous: %lu", &kib) == 1)
			anonymous += kib;
		else if (sscanf(line, "AnonHugePages: %lu", &kib) == 1)
			huge += kib;
		else if (sscanf(line, "Private_Hugetlb: %lu", &kib) == 1) {
			anonymous += kib;
			huge += kib;
		}
	}
	fclose(f);
	return anonymous ? (unsigned)(100 * huge / anonymous) : 0;
}
