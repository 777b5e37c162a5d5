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

/* Whether @bytes of @fd may be mapped, for good. */
static int check(int fd, uint64_t bytes, struct stat *ret_stat)
{
	/* Only memfds answer this call. */
	int seals = fcntl(fd, F_GET_SEALS);

	if (seals < 0)
		return -EINVAL;
	if (!(seals & F_SEAL_SHRINK))
		return -EPERM;
	if (fstat(fd, ret_stat) < 0)
		return -errno;
	if (bytes == 0 || ret_stat->st_size < 0 ||
	    bytes > (uint64_t)ret_stat->st_size)
		return -EINVAL;
	return 0;
}

static int charge(struct kv_account *account, uint64_t bytes)
{
	int r = kv_account_charge(account, KV_FINITE_STAGINGS, 1);

	if (r < 0)
		return r;
	r = kv_account_charge(account, KV_FINITE_STAGING_BYTES, bytes);
	if (r < 0)
		kv_account_credit(account, KV_FINITE_STAGINGS, 1);
	return r;
}

static void credit(struct kv_account *account, uint64_t bytes)
{
	kv_account_credit(account, KV_FINITE_STAGINGS, 1);
	kv_account_credit(account, KV_FINITE_STAGING_BYTES, bytes);
}

static int map(int fd, struct kv_staging *staging)
{
	void *data;
	int r = charge(staging->account, staging->mapped);

	if (r < 0)
		return r;
	data = mmap(NULL, staging->mapped, PROT_READ, MAP_SHARED, fd, 0);
	if (data == MAP_FAILED) {
		r = -errno;
		credit(staging->account, staging->mapped);
		return r;
	}
	(void)madvise(data, staging->mapped, MADV_DONTDUMP);
	staging->data = data;
	return 0;
}

int kv_staging_map(int fd, uint64_t bytes, struct kv_account *account,
		   struct kv_staging **ret_staging)
{
	_cleanup_(kv_freep) struct kv_staging *staging = NULL;
	struct stat st;
	int r;

	r = check(fd, bytes, &st);
	if (r < 0)
		return r;
	staging = calloc(1, sizeof(*staging));
	if (!staging)
		return -ENOMEM;
	staging->account = account;
	staging->bytes = bytes;
	/* munmap of 2 MiB pages wants whole ones; st_blksize tells their size.
	 */
	staging->mapped = kv_round_up(bytes, (uint64_t)st.st_blksize);
	atomic_init(&staging->refs, 1);
	r = map(fd, staging);
	if (r < 0)
		return r;
	kv_account_hold(account);
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
	credit(staging->account, staging->mapped);
	kv_account_put(staging->account);
	free(staging);
}

bool kv_staging_has(const struct kv_staging *staging, uint64_t offset,
		    uint64_t bytes)
{
	return offset <= staging->bytes && bytes <= staging->bytes - offset;
}
