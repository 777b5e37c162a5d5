/* SPDX-License-Identifier: Apache-2.0 */
/* tree.h - remove a directory of a test with all its files. */
#ifndef KV_TESTS_TREE_H
#define KV_TESTS_TREE_H

#include <ftw.h>
#include <stdio.h>
#include <sys/stat.h>

static inline int tree_remove_one(const char *path, const struct stat *st,
				  int flag, struct FTW *ftw)
{
	(void)st;
	(void)flag;
	(void)ftw;
	return remove(path);
}

static inline void tree_remove(const char *path)
{
	nftw(path, tree_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

#endif
