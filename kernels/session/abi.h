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
 * Copy the caller's struct @from, of any size, into the library's of @known bytes
 * at @ret; bytes past the caller's size are zero.
 * -EINVAL: the size is too small to hold itself
 * -E2BIG: the caller set a field that the library does not know, or the size is
 *         absurd
 */
int kv_abi_in(void *ret, size_t known, const void *from);

/* The same for options; NULL gives the defaults, all zero. */
int kv_abi_opts(kvfs_opts *ret_opts, const kvfs_opts *opts);

/* Return whether @opts sets nothing but deadline, user and these @flags. */
bool kv_abi_opts_are_plain(const kvfs_opts *opts, unsigned flags);

/* Copy the library's struct @from of @known bytes into the caller's, up to the
 * caller's size; the rest of it becomes zero.  Errors as kv_abi_in. */
int kv_abi_out(void *ret, const void *from, size_t known);

/* Return whether all of @reserved is zero. */
bool kv_abi_is_zero(const void *reserved, size_t bytes);

#endif
