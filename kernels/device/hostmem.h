/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hostmem.h - memory of the device "host" that is the library's own: it grows,
 * and stays where it is.
 *
 * As device.h says of reserve, grow and release.  A child of a fork does not
 * have it.
 */
#ifndef KV_KERNELS_DEVICE_HOSTMEM_H
#define KV_KERNELS_DEVICE_HOSTMEM_H

#include "common/kv.h"

int kv_hostmem_reserve(const char *name, uint64_t bytes, uint64_t max_bytes,
		       void **ret_memory, void **ret_base);
int kv_hostmem_grow(void *memory, uint64_t bytes);
void kv_hostmem_release(void *memory);

#endif
