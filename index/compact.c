/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compact.c - giving back the disk space of an index that has shrunk.
 *
 * OWNS      the copy beside the index while it is being made.
 *
 * INVARIANTS
 *   (1) At any moment one whole index is called data.mdb: the copy is on disk
 *       before it takes the name.
 *
 * LOCKING   none: the caller is alone with the index.
 */
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>

#include "index/env.h"
#include "common/crash_point.h"

#define COPY_NAME "compact.tmp"
/* Bytes; not worth the trouble below. */
#define SMALL KV_POINTS_OR(128u << 10, 4u << 20)

static uint64_t pages_of(const MDB_stat *stat)
{
	return stat->ms_branch_pages + stat->ms_leaf_pages +
	       stat->ms_overflow_pages;
}

/* Bytes a compacted copy would have, about. */
static int live_bytes(struct kv_index *index, uint64_t *ret_bytes)
{
	const MDB_dbi dbis[] = {index->meta, index->spaces, index->segments,
				index->slots};
	_cleanup_(kv_txn_abortp) MDB_txn *txn = NULL;
	uint64_t pages;
	MDB_stat stat;
	int r;

	r = kv_env_errno(mdb_txn_begin(index->env, NULL, MDB_RDONLY, &txn));
	if (r < 0)
		return r;
	mdb_env_stat(index->env, &stat);
	pages = 2 + pages_of(&stat);
	for (size_t i = 0; i < KV_ARRAY_LEN(dbis); i++) {
		r = kv_env_errno(mdb_stat(txn, dbis[i], &stat));
		if (r < 0)
			return r;
		pages += pages_of(&stat);
	}
	*ret_bytes = pages * stat.ms_psize;
	return 0;
}

static int copy_to(struct kv_index *index, const char *path)
{
	_cleanup_(kv_closep) int fd = -1;
	int r;

	fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	r = kv_env_errno(mdb_env_copyfd2(index->env, fd, MDB_CP_COMPACT));
	if (r < 0)
		return r;
	KV_POINT("compact.copied");
	return fsync(fd) < 0 ? -errno : 0;
}

static int take_name(const char *directory, const char *from, const char *to)
{
	_cleanup_(kv_closep) int fd = -1;

	KV_POINT("compact.before_rename");
	if (rename(from, to) < 0)
		return -errno;
	KV_POINT("compact.renamed");
	fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	return fsync(fd) < 0 ? -errno : 0;
}

/* If the index cannot be opened again, *@index is NULL and the error told. */
int kv_index_compact(struct kv_index **index, const char *path,
		     uint64_t map_bytes)
{
	char from[PATH_MAX], to[PATH_MAX];
	struct kv_store_info info;
	uint64_t live, bytes;
	int r, renamed;
	bool over;

	if (snprintf(from, sizeof(from), "%s/" COPY_NAME, path) >= PATH_MAX ||
	    snprintf(to, sizeof(to), "%s/data.mdb", path) >= PATH_MAX)
		return -ENAMETOOLONG;
	unlink(from); /* a crash may have left one */
	r = live_bytes(*index, &live);
	if (r < 0)
		return r;
	bytes = kv_index_bytes(*index);
	/* Larger than its map: the cap was lowered, and has no room for it. */
	over = bytes > map_bytes;
	if (over ? live >= bytes : bytes < SMALL || live * 2 > bytes)
		return 0;
	r = copy_to(*index, from);
	if (r < 0) {
		unlink(from);
		return r;
	}

	kv_index_close(kv_steal(*index));
	renamed = take_name(path, from, to);
	if (renamed < 0)
		unlink(from);
	r = kv_index_open(path, map_bytes, false, NULL, &info, index);
	if (r < 0)
		return r;
	return renamed < 0 ? renamed : 1;
}
