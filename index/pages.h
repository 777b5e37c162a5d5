/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pages.h - is an LMDB file sound, page by page?
 *
 * LMDB 0.9 trusts the pages it reads: a damaged one ends the process by an
 * assertion or a bad pointer.  So every file is looked through here, by code
 * that trusts nothing, before LMDB gets to see it.
 */
#ifndef KV_INDEX_PAGES_H
#define KV_INDEX_PAGES_H

#include "common/kv.h"

#define KV_WHY_MAX 160

/*
 * Look through data.mdb in the directory @path: both meta pages, each page of
 * each database, the order of keys, the list of free pages, and that no page
 * is used twice.  It may claim up to @map_bytes more than it has.  Reads only;
 * memory: a bit for each page.
 *
 * 0 sound; -EBADMSG damaged, and @why says where; -ENOENT no such file, or an
 * empty one; else why it could not be read.
 */
int kv_pages_check(const char *path, uint64_t map_bytes, char why[KV_WHY_MAX]);

#endif
