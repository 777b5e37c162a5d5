/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pages.h - check an LMDB file page by page.
 *
 * LMDB 0.9 trusts the pages it reads: a damaged one ends the process by an
 * assertion or a bad pointer, and a damaged free list makes later writes destroy
 * pages in use.  So every file is checked before LMDB opens it.
 */
#ifndef KV_INDEX_PAGES_H
#define KV_INDEX_PAGES_H

#include "common/kv.h"

#define KV_WHY_MAX 160

/*
 * Check data.mdb in the directory @path: both meta pages, each page of each
 * database, the order of keys, the free list, and that no page is used twice.
 * The meta page may claim up to @map_bytes more than the file has.  Reads only;
 * memory: one bit for each page.
 * 0: sound
 * -EBADMSG: damaged; @why names the place
 * -ENOENT: no such file, or an empty one
 * other errors of open(2) and read(2)
 */
int kv_pages_check(const char *path, uint64_t map_bytes, char why[KV_WHY_MAX]);

#endif
