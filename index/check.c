/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check.c - check the index's file in a child process.
 *
 * LMDB 0.9 trusts the pages that it reads: a damaged page ends the process by
 * an assertion or a bad pointer, and a damaged free list makes later writes
 * destroy pages in use.  So a child reads the whole file through LMDB, and the
 * parent lets LMDB open the file only if the child found it sound.
 *
 * The child takes the address and number of each leaf from LMDB's cursors.
 * LMDB shows no branch pages: they are the pages that are left once leaves,
 * long values and free pages are marked.
 *
 * OWNS      the child, from its fork to its end.
 *
 * INVARIANTS
 *   (1) The child holds no descriptor above its pipe and ends with its parent.
 *   (2) A child that crashes, that ends without a result or that does not end
 *       in time has met a damaged file.
 *
 * LOCKING   none: the child uses only memory of its own and of the C library,
 *           whose locks fork(2) leaves usable.
 */
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "index/env.h"

#define HEADER 16u  /* bytes of a page before its list of nodes */
#define NODE 8u	    /* bytes of a node before its key */
#define KEY_MAX 511 /* most bytes of a key in LMDB */
#define BRANCH 1u   /* types of a page */
#define LEAF 2u
#define OVERFLOW 4u
#define BIG_DATA 1u /* flags of a node: how its value is stored */
#define SUB_DATA 2u
#define FREE_FLAGS 44 /* offset of the free list's flags in a meta page */
#define PIPE 3	      /* the child's descriptor for its result */
#define LIMIT_MIN 30u /* least time limit of the child, seconds */
#define LIMIT_RATE 10000000u /* the limit grows by a second for so many bytes */
/* the file may exceed twice its claimed pages by this many bytes: an
 * uncommitted transaction leaves them */
#define BEYOND (UINT64_C(1) << 30)

struct result {
	int r;
	char why[KV_WHY_MAX];
};

struct check {
	MDB_env *env;
	MDB_txn *txn;
	uint64_t file_bytes;
	uint8_t *map;
	uint32_t page; /* bytes of a page */
	/* number of pages that the meta page claims; the file may be shorter */
	uint64_t n_pages;
	uint64_t *used; /* one bit for each page; set: the page was found */
	/* pages of each kind: number found, minus LMDB's number */
	int64_t branches, overflows;
	struct result *result;
};

__attribute__((format(printf, 2, 3))) static int bad(struct check *c,
						     const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(c->result->why, KV_WHY_MAX, format, args);
	va_end(args);
	return -EBADMSG;
}

static int lmdb_failed(struct check *c, const char *name, int rc)
{
	return rc > 0 ? -rc : bad(c, "%s: %s", name, mdb_strerror(rc));
}

static uint16_t u16(const uint8_t *p)
{
	uint16_t n;

	memcpy(&n, p, sizeof(n));
	return n;
}

static uint64_t u64(const void *p)
{
	uint64_t n;

	memcpy(&n, p, sizeof(n));
	return n;
}

/* Mark @n pages from @number on as used.  -EBADMSG: one of them was marked
 * already. */
static int claim(struct check *c, const char *by, uint64_t number, uint64_t n)
{
	if (number < 2 || number >= c->n_pages || n > c->n_pages - number)
		return bad(c, "%s: page %llu is outside", by,
			   (unsigned long long)number);
	for (uint64_t i = number; i < number + n; i++) {
		if (c->used[i / 64] & 1ull << i % 64)
			return bad(c, "%s: page %llu is used twice", by,
				   (unsigned long long)i);
		c->used[i / 64] |= 1ull << i % 64;
	}
	return 0;
}

/* Return whether page @number has the flags @flags, and its nodes fill the page
 * from its upper bound to its end. */
static bool page_is_whole(const struct check *c, uint64_t number,
			  unsigned flags, unsigned node_flags)
{
	const uint8_t *page = c->map + number * c->page;
	unsigned lower, upper, used = 0;

	if ((number + 1) * c->page > c->file_bytes || u64(page) != number ||
	    u16(page + 10) != flags)
		return false;
	lower = u16(page + 12);
	upper = u16(page + 14);
	if (lower <= HEADER || lower % 2 || lower > upper || upper > c->page)
		return false;
	for (unsigned at = HEADER; at < lower; at += 2) {
		const unsigned offset = u16(page + at);
		const uint8_t *node = page + offset;
		uint64_t bytes = 0, key;

		if (offset < upper || offset % 2 || offset + NODE > c->page)
			return false;
		key = u16(node + 6);
		if (flags == LEAF) {
			bytes = u16(node) | (uint64_t)u16(node + 2) << 16;
			if (u16(node + 4) & BIG_DATA)
				bytes = sizeof(uint64_t);
			if (u16(node + 4) & ~node_flags)
				return false;
		}
		bytes = kv_round_up(NODE + key + bytes, 2);
		if (key > KEY_MAX || offset + bytes > c->page)
			return false;
		used += (unsigned)bytes;
	}
	return used == c->page - upper;
}

/* Mark the overflow pages that hold a long value as used. */
static int claim_value(struct check *c, const char *name, const MDB_val *value)
{
	const uint64_t at = (uint64_t)((uint8_t *)value->mv_data - c->map);
	const uint64_t number = at / c->page;
	const uint64_t end = at + value->mv_size;
	const uint8_t *page = c->map + number * c->page;
	uint32_t n;

	if (at % c->page != HEADER || end > c->file_bytes)
		return bad(c, "%s: a value is cut off", name);
	memcpy(&n, page + 12, sizeof(n));
	if (u64(page) != number || u16(page + 10) != OVERFLOW ||
	    end > (number + n) * c->page)
		return bad(c, "%s: page %llu is no value's", name,
			   (unsigned long long)number);
	c->overflows += n;
	return claim(c, name, number, n);
}

/* Mark the pages that a record of the free list names: the record is a count,
 * then page numbers, descending. */
static int claim_free(struct check *c, const MDB_val *key, const MDB_val *value)
{
	const uint8_t *list = value->mv_data;
	uint64_t number, before = UINT64_MAX;
	size_t n = value->mv_size / sizeof(number);
	int r = 0;

	if (n == 0 || value->mv_size % sizeof(number) || u64(list) >= n ||
	    u64(key->mv_data) > mdb_txn_id(c->txn))
		return bad(c, "free: a damaged list");
	n = u64(list);
	for (size_t i = 1; r == 0 && i <= n; i++, before = number) {
		number = u64(list + i * sizeof(number));
		if (number >= before)
			return bad(c, "free: out of order");
		r = claim(c, "free", number, 1);
	}
	return r;
}

/* Check that a search through the branch pages finds the record at @key. */
static int search(struct check *c, const char *name, MDB_cursor *cursor,
		  MDB_val key, const MDB_val *value)
{
	MDB_val found;

	return mdb_cursor_get(cursor, &key, &found, MDB_SET) == 0 &&
			       found.mv_data == value->mv_data
		       ? 0
		       : bad(c, "%s: keys out of order", name);
}

/* Check the order of the keys, each leaf and value, and the counts of a
 * database: database 0 is LMDB's free list, database 1 lists the named ones. */
static int check_database(struct check *c, MDB_dbi dbi, const char *name)
{
	_cleanup_(kv_cursor_closep) MDB_cursor *cursor = NULL, *finder = NULL;
	MDB_val key, value, last_key = {0, NULL}, last_value = {0, NULL};
	uint64_t entries = 0, leaves = 0, number, leaf = 0;
	unsigned flags = MDB_INTEGERKEY;
	MDB_stat stat;
	int r, rc;
	char sub_name[32];
	MDB_dbi sub;

	if (dbi > 0 && (mdb_dbi_flags(c->txn, dbi, &flags) != 0 ||
			flags & (dbi == 1 ? ~0u : ~(unsigned)MDB_INTEGERKEY)))
		return bad(c, "%s: odd flags", name);
	rc = mdb_stat(c->txn, dbi, &stat);
	if (rc == 0)
		rc = mdb_cursor_open(c->txn, dbi, &cursor);
	if (rc == 0)
		rc = mdb_cursor_open(c->txn, dbi, &finder);
	if (rc != 0)
		return lmdb_failed(c, name, rc);
	c->branches -= (int64_t)stat.ms_branch_pages;
	c->overflows -= (int64_t)stat.ms_overflow_pages;

	while ((rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT)) == 0) {
		r = 0;
		number = (uint64_t)((uint8_t *)key.mv_data - c->map) / c->page;
		if (flags ? key.mv_size != 8 : key.mv_size == 0)
			return bad(c, "%s: a damaged node", name);
		if (number != leaf) {
			leaves++;
			r = claim(c, name, number, 1);
			if (r == 0 &&
			    !page_is_whole(c, number, LEAF,
					   dbi == 1 ? SUB_DATA : BIG_DATA))
				r = bad(c, "%s: page %llu is damaged", name,
					(unsigned long long)number);
			/* LMDB first tries the leaf of its last search: change
			 * leaves, so that it reads the branch pages. */
			if (r == 0)
				r = search(c, name, finder, key, &value);
			if (r == 0 && leaf)
				r = search(c, name, finder, last_key,
					   &last_value);
			leaf = number;
		}
		if (r == 0 && entries++ &&
		    mdb_cmp(c->txn, dbi, &last_key, &key) >= 0)
			r = bad(c, "%s: keys out of order", name);
		if (r == 0 && ((uint8_t *)value.mv_data - c->map) / c->page !=
				      (ptrdiff_t)number)
			r = claim_value(c, name, &value);
		if (r == 0 && dbi == 0)
			r = claim_free(c, &key, &value);
		if (r == 0 && dbi == 1) {
			snprintf(sub_name, sizeof(sub_name), "%.*s",
				 (int)KV_MIN(key.mv_size, 31u),
				 (const char *)key.mv_data);
			rc = strspn(sub_name, "abcdefghijklmnopqrstuvwxyz") ==
					     key.mv_size
				     ? mdb_dbi_open(c->txn, sub_name, 0, &sub)
				     : MDB_NOTFOUND;
			r = rc == 0 ? check_database(c, sub, sub_name)
				    : bad(c, "main: not a database");
		}
		if (r < 0)
			return r;
		last_key = key;
		last_value = value;
	}
	if (rc != MDB_NOTFOUND)
		return lmdb_failed(c, name, rc);
	if (entries != stat.ms_entries || leaves != stat.ms_leaf_pages ||
	    (stat.ms_depth > 1) != (stat.ms_branch_pages > 0) ||
	    (stat.ms_depth > 0) != (entries > 0))
		return bad(c, "%s: its counts are wrong", name);
	return 0;
}

static int check_all(struct check *c, const char *path, uint64_t map_bytes)
{
	char name[PATH_MAX];
	MDB_envinfo info;
	struct stat st;
	MDB_stat stat;
	size_t bytes;
	MDB_dbi dbi;
	int r, rc;

	snprintf(name, sizeof(name), "%s/data.mdb", path);
	if (lstat(name, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode))
		return bad(c, "not a file");
	if (st.st_size == 0)
		return -ENOENT;
	c->file_bytes = (uint64_t)st.st_size;
	r = kv_env_open(path, map_bytes, true, &c->env);
	if (r < 0)
		return r == -EIO || r == -EACCES
			       ? r
			       : bad(c, "not LMDB's: %s", strerror(-r));
	mdb_env_info(c->env, &info);
	mdb_env_stat(c->env, &stat);
	c->page = stat.ms_psize;
	c->n_pages = info.me_last_pgno + 1;
	if (info.me_last_pgno >= (map_bytes + c->file_bytes) / c->page)
		return bad(c, "it claims %llu pages",
			   (unsigned long long)info.me_last_pgno);
	/* A hole at the file's end can be of any size: do not read it. */
	if (c->file_bytes > 2 * c->n_pages * c->page + BEYOND)
		return bad(c, "the file is much longer than its pages");
	c->used = calloc(c->n_pages / 64 + 1, sizeof(*c->used));
	if (!c->used)
		return -ENOMEM;
	kv_env_fetch(c->env);
	r = kv_env_find_map(c->env, &c->map, &bytes);
	rc = mdb_txn_begin(c->env, NULL, MDB_RDONLY, &c->txn);
	if (rc == 0)
		rc = mdb_dbi_open(c->txn, NULL, 0, &dbi);
	if (r < 0 || rc != 0)
		return r < 0 ? r : lmdb_failed(c, "main", rc);
	if (mdb_txn_id(c->txn) > INT64_MAX ||
	    u16(c->map + (mdb_txn_id(c->txn) & 1) * c->page + FREE_FLAGS) !=
		    MDB_INTEGERKEY)
		return bad(c, "a damaged meta page");
	r = check_database(c, dbi, "main");
	if (r == 0)
		r = check_database(c, 0, "free");
	if (r < 0)
		return r;
	for (uint64_t i = 2; i < c->n_pages; i++)
		if (!(c->used[i / 64] & 1ull << i % 64))
			c->branches += page_is_whole(c, i, BRANCH, 0);
	if (c->branches < 0 || c->overflows != 0)
		return bad(c, "its pages are fewer than it claims");
	return 0;
}

/* In the child: close other descriptors, check the file, report the result. */
static _Noreturn void run(const char *path, uint64_t map_bytes, int pipe)
{
	const struct rlimit no_core = {0, 0};
	struct result result = {0};
	struct check check = {.result = &result};

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (dup2(pipe, PIPE) < 0)
		_exit(1);
	close_range(PIPE + 1, ~0u, 0);
	close(STDERR_FILENO); /* drop what LMDB prints of assertions */
	setrlimit(RLIMIT_CORE, &no_core);
	for (int i = 1; i < NSIG; i++)
		signal(i, SIG_DFL);
	result.r = check_all(&check, path, map_bytes);
	if (result.r < 0 && !result.why[0])
		snprintf(result.why, KV_WHY_MAX, "%s", strerror(-result.r));
	(void)!write(PIPE, &result, sizeof(result));
	_exit(result.r < 0);
}

int kv_index_check(const char *path, uint64_t map_bytes, char why[KV_WHY_MAX])
{
	struct pollfd poll_fd = {.events = POLLIN};
	char name[PATH_MAX];
	struct result result;
	uint64_t seconds = LIMIT_MIN;
	struct stat st;
	int pipes[2], status = 0;
	pid_t pid;
	ssize_t n = -1;

	snprintf(name, sizeof(name), "%s/data.mdb", path);
	if (stat(name, &st) == 0)
		seconds += (uint64_t)st.st_blocks * 512 / LIMIT_RATE;
	why[0] = 0;
	if (pipe2(pipes, O_CLOEXEC) < 0)
		return -errno;
	pid = fork();
	if (pid == 0)
		run(path, map_bytes, pipes[1]);
	close(pipes[1]);
	if (pid < 0) {
		close(pipes[0]);
		return -errno;
	}
	/* Wait in steps of a second, so that time in which this process was
	 * stopped is not counted. */
	poll_fd.fd = pipes[0];
	for (; seconds && poll(&poll_fd, 1, 1000) <= 0; seconds--)
		;
	if (seconds)
		n = read(pipes[0], &result, sizeof(result));
	else
		kill(pid, SIGKILL);
	close(pipes[0]);
	/* A child whose read(2) hangs in the kernel ends later or never: leave
	 * it behind. */
	for (int i = 0; i < 1000 && waitpid(pid, &status, WNOHANG) == 0; i++)
		usleep(1000);
	if (n == (ssize_t)sizeof(result)) {
		memcpy(why, result.why, KV_WHY_MAX);
		return result.r;
	}
	if (!seconds)
		snprintf(why, KV_WHY_MAX, "reading it takes too long");
	else
		snprintf(why, KV_WHY_MAX, "reading it ends with signal %d",
			 WTERMSIG(status));
	return -EBADMSG;
}
