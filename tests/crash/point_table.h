/* SPDX-License-Identifier: Apache-2.0 */
/*
 * point_table.h - the file of KVFS_POINTS: how often each kill point was passed.
 */
#ifndef KV_TESTS_CRASH_POINT_TABLE_H
#define KV_TESTS_CRASH_POINT_TABLE_H

#include <stdatomic.h>

#include "common/crash_point.h"

#define KV_POINTS_MAX 256
#define KV_POINT_NAME 40

/* Contents of the file that KVFS_POINTS names; the program that reads the file
 * makes it, filled with zeros. */
struct kv_point_table {
	_Atomic uint32_t n; /* number of entries, one for each kill point */
	struct {
		char name[KV_POINT_NAME];
		_Atomic uint64_t hits;
	} entry[KV_POINTS_MAX];
};

#endif
