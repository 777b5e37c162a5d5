/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fault.h - what LMDB does to a program when its map cannot be read, as a
 * return value; index/ only.
 *
 * A page of the map that is not in memory and that the disk does not give is
 * SIGBUS; one that is no page of LMDB's may be a failed assertion of LMDB's.
 */
#ifndef KV_INDEX_FAULT_H
#define KV_INDEX_FAULT_H

#include "index/env.h"

/*
 * Run @call(@arg), which calls LMDB for @index and nothing else.  MDB_PANIC: it
 * did not come back.  Its transaction must neither be used nor ended, and the
 * environment is opened anew before another one begins.
 */
int kv_fault_guard(struct kv_index *index, int (*call)(void *arg), void *arg);

/* For mdb_env_set_assert. */
void kv_fault_assert(MDB_env *env, const char *text);

#endif
