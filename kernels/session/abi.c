/* SPDX-License-Identifier: Apache-2.0 */
/*
 * abi.c - structs of a caller that was built against another version of kvfs.h.
 *
 * OWNS      nothing.
 *
 * INVARIANTS
 *   (1) Every struct with a size has that first, as a size_t.
 *   (2) Nothing is read or written beyond the caller's size.
 *
 * LOCKING   none.
 */
#include "kernels/session/abi.h"

/* Larger than any struct will be: a size beyond is no size. */
#define SIZE_MAX_OF_ALL 4096u

_Static_assert(offsetof(kvfs_opts, size) == 0 &&
		       offsetof(kvfs_pool_desc, size) == 0 &&
		       offsetof(struct kvfs_pool_info, size) == 0,
	       "(1)");

uint32_t kvfs_version(void)
{
	return KVFS_VERSION;
}

const char *kvfs_version_text(void)
{
	return KV_VERSION;
}

bool kv_abi_is_zero(const void *reserved, size_t bytes)
{
	const uint8_t *at = reserved;

	for (size_t i = 0; i < bytes; i++)
		if (at[i] != 0)
			return false;
	return true;
}

static int read_size(const void *from, size_t *ret_size)
{
	memcpy(ret_size, from, sizeof(*ret_size));
	if (*ret_size < sizeof(*ret_size))
		return -EINVAL;
	return *ret_size > SIZE_MAX_OF_ALL ? -E2BIG : 0;
}

int kv_abi_in(void *ret, size_t known, const void *from)
{
	size_t size;
	int r = read_size(from, &size);

	if (r < 0)
		return r;
	if (size > known &&
	    !kv_abi_is_zero((const uint8_t *)from + known, size - known))
		return -E2BIG;
	memset(ret, 0, known);
	memcpy(ret, from, KV_MIN(size, known));
	memcpy(ret, &known, sizeof(known));
	return 0;
}

int kv_abi_opts(kvfs_opts *ret_opts, const kvfs_opts *opts)
{
	static const kvfs_opts none = KVFS_OPTS_INIT;

	int r = kv_abi_in(ret_opts, sizeof(*ret_opts), opts ? opts : &none);

	if (r == 0 &&
	    !kv_abi_is_zero(ret_opts->reserved, sizeof(ret_opts->reserved)))
		r = -EINVAL;
	return r;
}

bool kv_abi_opts_are_plain(const kvfs_opts *opts, unsigned flags)
{
	kvfs_opts plain = {.size = opts->size,
			   .user = opts->user,
			   .deadline = opts->deadline,
			   .flags = opts->flags & flags};

	return memcmp(&plain, opts, sizeof(plain)) == 0;
}

int kv_abi_out(void *ret, const void *from, size_t known)
{
	size_t size;
	int r = read_size(ret, &size);

	if (r < 0)
		return r;
	memcpy(ret, from, KV_MIN(size, known));
	if (size > known)
		memset((uint8_t *)ret + known, 0, size - known);
	memcpy(ret, &size, sizeof(size));
	return 0;
}
