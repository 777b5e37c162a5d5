/* SPDX-License-Identifier: Apache-2.0 */
/*
 * staging.c - mapping of a client's memfd.
 *
 * OWNS      the mapping, until its last holder puts it.  Not the descriptor:
 *           the mapping keeps the file.
 *
 * INVARIANTS
 *   (1) No byte of @data .. @bytes is beyond the end of the file: its size was
 *       read after the seal against shrinking was seen, and only grows.
 *
 * LOCKING   none; the count is atomic, the rest is fixed after map.
 */
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "fs/control/staging.h"

int kv_staging_map(int fd, uint64_t bytes, struct kv_staging **ret_staging)
{
	_cleanup_(kv_freep) struct kv_staging *staging = NULL;
	struct stat st;
	void *data;
	int seals;

	/* Only memfds answer this call. */
	seals = fcntl(fd, F_GET_SEALS);
	if (seals < 0)
		return -EINVAL;
	if (!(seals & F_SEAL_SHRINK))
		return -EPERM;
	if (fstat(fd, &st) < 0)
		return -errno;
	if (bytes == 0 || st.st_size < 0 || bytes > (uint64_t)st.st_size)
		return -EINVAL;

	staging = calloc(1, sizeof(*staging));
	if (!staging)
		return -ENOMEM;
	staging->bytes = bytes;
	/* munmap of 2 MiB pages wants whole ones; st_blksize tells their size.
	 */
	staging->mapped = kv_round_up(bytes, (uint64_t)st.st_blksize);
	atomic_init(&staging->refs, 1);
	data = mmap(NULL, staging->mapped, PROT_READ, MAP_SHARED, fd, 0);
	if (data == MAP_FAILED)
		return -errno;
	(void)madvise(data, staging->mapped, MADV_DONTDUMP);
	staging->data = data;
	*ret_staging = kv_steal(staging);
	return 0;
}

void kv_staging_hold(struct kv_staging *staging)
{
	atomic_fetch_add(&staging->refs, 1);
}

void kv_staging_put(struct kv_staging *staging)
{
	if (!staging || atomic_fetch_sub(&staging->refs, 1) != 1)
		return;
	munmap((void *)staging->data, staging->mapped);
	free(staging);
}

bool kv_staging_has(const struct kv_staging *staging, uint64_t offset,
		    uint64_t bytes)
{
	return offset <= staging->bytes && bytes <= staging->bytes - offset;
}
