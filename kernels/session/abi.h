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
 * The caller's struct @from, whatever its size, as the library knows it: @known
 * bytes at @ret, zero past what the caller has.  -EINVAL: it has no room for
 * its own size; -E2BIG: something that the library does not know is set, or its
 * size is none that a struct has.
 */
int kv_abi_in(void *ret, size_t known, const void *from);

/* The same for options, which may be NULL: then all is zero. */
int kv_abi_opts(kvfs_opts *ret_opts, const kvfs_opts *opts);

/* Whether @opts has nothing but deadline, user and those @flags. */
bool kv_abi_opts_are_plain(const kvfs_opts *opts, unsigned flags);

/* The library's struct @from of @known bytes into the caller's, as much as its
 * size says; the rest of it is zero.  Errors as kv_abi_in. */
int kv_abi_out(void *ret, const void *from, size_t known);

/* Whether all of @reserved is zero. */
bool kv_abi_is_zero(const void *reserved, size_t bytes);

#endif
