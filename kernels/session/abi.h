/* SPDX-License-Identifier: Apache-2.0 */
/*
 * abi.h - structs of a caller that was built against another version of kvfs.h:
 * those that begin with their size, and those with reserved fields.
 */
#ifndef KV_KERNELS_SESSION_ABI_H
#define KV_KERNELS_SESSION_ABI_H

#include "kernels/kvfs.h"
#include "common/kv.h"

/*
 * Copy the caller's struct @from, whose first member is its size, to the
 * library's struct of @known bytes at @ret.  Members that the caller's struct
 * lacks become zero.
 * -EINVAL: the size is too small for the size member itself
 * -E2BIG: the caller set a member that the library does not know, or the size
 * is more than 4096
 */
int kv_abi_in(void *ret, size_t known, const void *from);

/* Copy the caller's options @opts to @ret_opts as kv_abi_in does.  Without
 * options (NULL) all members are zero. */
int kv_abi_opts(kvfs_opts *ret_opts, const kvfs_opts *opts);

/* Return whether @opts sets only deadline, user and the flags in @flags. */
bool kv_abi_opts_are_plain(const kvfs_opts *opts, unsigned flags);

/* Copy the library's struct @from of @known bytes to the caller's struct @ret,
 * up to the size in @ret.  Members that the library lacks become zero.  Errors
 * as for kv_abi_in. */
int kv_abi_out(void *ret, const void *from, size_t known);

bool kv_abi_is_zero(const void *reserved, size_t bytes);

#endif
