/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pages.c - check an LMDB file without LMDB.
 *
 * LMDB's data format 1, 64 bits, little-endian: of the meta pages 0 and 1 the
 * one with the higher transaction number counts.  This meta page has the roots
 * of the free list and of the main database, whose values are the roots of the
 * named databases.
 *
 * OWNS      nothing that outlives a call.
 *
 * INVARIANTS
 *   (1) No number read from the file is used as an offset or a length before it
 *       was compared with the bytes of the page or file.
 *   (2) A page is visited once: cycles end at the second visit.
 *
 * LOCKING   none: every function works on its arguments only.
 */
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>

#include "common/bytes.h"
#include "index/pages.h"

#define MAGIC 0xbeefc0deu
#define DATA_VERSION 1
#define HEADER 16u /* bytes before a page's list of nodes */
#define NODE 8u	   /* bytes before a node's key */
#define PAGE_MIN 512u
#define PAGE_MAX 32768u
#define DEPTH_MAX 24
#define KEY_MAX 511
#define NO_PAGE UINT64_MAX
#define BRANCH 1u
#define LEAF 2u
#define OVERFLOW 4u
#define META 8u
#define BIG_DATA 1u
#define SUB_DATA 2u
#define INTEGER_KEY 8u

struct db {
	uint32_t pad;
	uint16_t flags, depth;
	uint64_t branch, leaf, overflow, entries, root;
};

struct meta {
	uint32_t magic, version;
	uint64_t address, map_bytes;
	struct db dbs[2]; /* free pages, main */
	uint64_t last_page, txn;
};

_Static_assert(sizeof(struct db) == 48, "LMDB's");
_Static_assert(sizeof(struct meta) == 136, "LMDB's");

struct file {
	int fd;
	uint64_t bytes;
	uint32_t page; /* bytes of one */
	/* number that the meta page claims; the file may be shorter */
	uint64_t n_pages;
	uint64_t txn;
	uint64_t *used; /* one bit for each page */
	char *why;
};

struct span {
	const uint8_t *data;
	size_t bytes;
};

/* A database while it is checked. */
struct tree {
	struct file *file;
	const char *name;
	struct db db;
	struct db seen; /* counts so far */
	int (*value)(struct tree *tree, struct span key, struct span value,
		     unsigned flags);
};

__attribute__((format(printf, 2, 3))) static int bad(struct file *file,
						     const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(file->why, KV_WHY_MAX, format, args);
	va_end(args);
	return -EBADMSG;
}

static uint16_t u16(const uint8_t *p)
{
	uint16_t n;

	memcpy(&n, p, sizeof(n));
	return n;
}

static uint64_t u64(const uint8_t *p)
{
	uint64_t n;

	memcpy(&n, p, sizeof(n));
	return n;
}

static int read_at(struct file *file, uint64_t offset, void *data, size_t bytes)
{
	long n = kv_read_at(file->fd, offset, data, bytes);

	if (n < 0)
		return (int)n;
	return (size_t)n == bytes ? 0 : bad(file, "cut off");
}

/* Mark @n pages from @number on as used; -EBADMSG if one of them was used
 * already. */
static int claim(struct file *file, const char *by, uint64_t number, uint64_t n)
{
	if (number < 2 || number >= file->n_pages || n > file->n_pages - number)
		return bad(file, "%s: page %llu is outside", by,
			   (unsigned long long)number);
	for (uint64_t i = number; i < number + n; i++) {
		if (file->used[i / 64] & 1ull << i % 64)
			return bad(file, "%s: page %llu is used twice", by,
				   (unsigned long long)i);
		file->used[i / 64] |= 1ull << i % 64;
	}
	return 0;
}

static int read_page(struct file *file, const char *by, uint64_t number,
		     uint8_t *page)
{
	int r = claim(file, by, number, 1);

	if (r == 0 && (number + 1) * file->page > file->bytes)
		return bad(file, "%s: page %llu is cut off", by,
			   (unsigned long long)number);
	if (r == 0)
		r = read_at(file, number * file->page, page, file->page);
	if (r == 0 && u64(page) != number)
		return bad(file, "%s: page %llu is another", by,
			   (unsigned long long)number);
	return r;
}

static int compare(const struct tree *tree, struct span a, struct span b)
{
	int r;

	if (tree->db.flags & INTEGER_KEY) {
		uint64_t x = u64(a.data), y = u64(b.data);

		return x < y ? -1 : x > y;
	}
	r = memcmp(a.data, b.data, KV_MIN(a.bytes, b.bytes));
	return r ? r : a.bytes < b.bytes ? -1 : a.bytes > b.bytes;
}

/* Check a value that has pages of its own. */
static int big_value(struct tree *tree, struct span key, uint64_t number,
		     size_t bytes)
{
	struct file *file = tree->file;
	_cleanup_(kv_freep) uint8_t *data = NULL;
	uint64_t n = (HEADER + (uint64_t)bytes + file->page - 1) / file->page;
	uint32_t said;
	int r;

	if (number >= file->n_pages || n > file->n_pages - number ||
	    (number + n) * file->page > file->bytes)
		return bad(file, "%s: a value is cut off", tree->name);
	data = malloc(n * file->page);
	if (!data)
		return -ENOMEM;
	r = read_page(file, tree->name, number, data);
	if (r < 0)
		return r;
	memcpy(&said, data + 12, sizeof(said));
	if (u16(data + 10) != OVERFLOW || said < n)
		return bad(file, "%s: page %llu is no value's", tree->name,
			   (unsigned long long)number);
	r = said > 1 ? claim(file, tree->name, number + 1, said - 1) : 0;
	if (r == 0)
		r = read_at(file, (number + 1) * file->page, data + file->page,
			    (n - 1) * file->page);
	if (r < 0)
		return r;
	tree->seen.overflow += said;
	return tree->value(tree, key, (struct span){data + HEADER, bytes}, 0);
}

/* Mark a node's bytes, one bit for two bytes; return false if another node uses
 * some of them. */
static bool cover(uint64_t *covered, size_t from, size_t to)
{
	const size_t end = (to + 1) / 2;
	size_t i = from / 2, n;

	for (; i < end; i += n) {
		uint64_t bits;

		n = KV_MIN(end - i, 64 - i % 64);
		bits = (n == 64 ? 0 : 1ull << n) - 1;
		bits <<= i % 64;
		if (covered[i / 64] & bits)
			return false;
		covered[i / 64] |= bits;
	}
	return true;
}

struct node {
	struct span key;
	const uint8_t *data;
	uint64_t number; /* in a branch: number of the page below */
	size_t bytes;	 /* in a leaf: bytes of the value */
	unsigned flags;
};

static bool read_node(const struct tree *tree, const uint8_t *page, unsigned i,
		      uint64_t *covered, struct node *ret_node)
{
	const bool leaf = u16(page + 10) == LEAF;
	const size_t at = u16(page + HEADER + 2 * i), end = tree->file->page;
	const uint8_t *p = page + at;
	size_t key, held;

	if (at < u16(page + 14) || at % 2 || at + NODE > end)
		return false;
	key = u16(p + 6);
	ret_node->flags = leaf ? u16(p + 4) : 0;
	ret_node->bytes = u16(p) | (size_t)u16(p + 2) << 16;
	ret_node->number = ret_node->bytes | (uint64_t)u16(p + 4) << 32;
	held = !leaf ? 0 : ret_node->flags & BIG_DATA ? 8 : ret_node->bytes;
	if (key > KEY_MAX || held > end || at + NODE + key + held > end)
		return false;
	ret_node->key = (struct span){p + NODE, key};
	ret_node->data = p + NODE + key;
	/* LMDB ignores the first key of a branch. */
	if ((leaf || i > 0) && (tree->db.flags & INTEGER_KEY ? key != 8 : !key))
		return false;
	return cover(covered, at, at + NODE + key + held);
}

static int free_value(struct tree *tree, struct span key, struct span value,
		      unsigned flags);

static int visit_page(struct tree *tree, uint64_t number, unsigned depth,
		      struct span low, struct span high)
{
	_cleanup_(kv_freep) uint8_t *page = malloc(tree->file->page);
	uint64_t covered[PAGE_MAX / 128] = {0};
	const bool leaf = depth == tree->db.depth;
	struct node node, next = {{NULL, 0}, NULL, 0, 0, 0};
	uint16_t lower, upper;
	unsigned n;
	int r;

	if (!page)
		return -ENOMEM;
	r = read_page(tree->file, tree->name, number, page);
	if (r < 0)
		return r;
	lower = u16(page + 12);
	upper = u16(page + 14);
	if (u16(page + 10) != (leaf ? LEAF : BRANCH) || lower < HEADER ||
	    lower % 2 || lower > upper || upper > tree->file->page)
		return bad(tree->file, "%s: page %llu is damaged", tree->name,
			   (unsigned long long)number);
	n = (lower - HEADER) / 2;
	/* LMDB requires two children of each branch, except in the free list. */
	if (n < (leaf || tree->value == free_value ? 1u : 2u))
		return bad(tree->file, "%s: page %llu is too empty", tree->name,
			   (unsigned long long)number);
	tree->seen.leaf += leaf;
	tree->seen.branch += !leaf;
	if (n && !read_node(tree, page, 0, covered, &next))
		return bad(tree->file, "%s: a damaged node", tree->name);
	for (unsigned i = 0; r == 0 && i < n; i++) {
		struct span from, to;

		node = next;
		if (i + 1 < n && !read_node(tree, page, i + 1, covered, &next))
			return bad(tree->file, "%s: a damaged node",
				   tree->name);
		from = leaf || i ? node.key : low;
		to = i + 1 < n ? next.key : high;
		if ((low.data && from.data && compare(tree, from, low) < 0) ||
		    (to.data && from.data && compare(tree, from, to) >= 0))
			return bad(tree->file, "%s: keys out of order",
				   tree->name);
		tree->seen.entries += leaf;
		if (!leaf)
			r = visit_page(tree, node.number, depth + 1, from, to);
		else if (!(node.flags & BIG_DATA))
			r = tree->value(tree, node.key,
					(struct span){node.data, node.bytes},
					node.flags);
		else if (node.flags == BIG_DATA)
			r = big_value(tree, node.key, u64(node.data),
				      node.bytes);
		else
			r = bad(tree->file, "%s: odd flags", tree->name);
	}
	return r;
}

static int visit_tree(struct tree *tree)
{
	const struct db *db = &tree->db;
	const struct span none = {NULL, 0};
	int r;

	if (db->root == NO_PAGE)
		return db->entries || db->depth
			       ? bad(tree->file, "%s: no root", tree->name)
			       : 0;
	if (db->depth < 1 || db->depth > DEPTH_MAX)
		return bad(tree->file, "%s: %u levels", tree->name, db->depth);
	r = visit_page(tree, db->root, 1, none, none);
	if (r < 0)
		return r;
	if (tree->seen.entries != db->entries || tree->seen.leaf != db->leaf ||
	    tree->seen.branch != db->branch ||
	    tree->seen.overflow != db->overflow)
		return bad(tree->file, "%s: its counts are wrong", tree->name);
	return 0;
}

static int any_value(struct tree *tree, struct span key, struct span value,
		     unsigned flags)
{
	(void)key;
	(void)value;
	return flags ? bad(tree->file, "%s: odd flags", tree->name) : 0;
}

/* Check a record of the free list: a count, then page numbers, descending. */
static int free_value(struct tree *tree, struct span key, struct span value,
		      unsigned flags)
{
	struct file *file = tree->file;
	uint64_t n, before = UINT64_MAX;

	if (flags || value.bytes < 8 || value.bytes % 8 ||
	    u64(key.data) > file->txn ||
	    (n = u64(value.data)) > value.bytes / 8 - 1)
		return bad(file, "%s: a damaged list", tree->name);
	for (uint64_t i = 1; i <= n; i++) {
		uint64_t number = u64(value.data + i * 8);
		int r = number < before
				? claim(file, tree->name, number, 1)
				: bad(file, "%s: out of order", tree->name);

		if (r < 0)
			return r;
		before = number;
	}
	return 0;
}

static int main_value(struct tree *tree, struct span key, struct span value,
		      unsigned flags)
{
	char name[32];
	struct tree sub = {
		.file = tree->file, .name = name, .value = any_value};

	if (flags != SUB_DATA || value.bytes != sizeof(sub.db))
		return bad(tree->file, "main: not a database");
	snprintf(name, sizeof(name), "%.*s", (int)KV_MIN(key.bytes, 31u),
		 (const char *)key.data);
	for (char *c = name; *c; c++)
		if (*c < 'a' || *c > 'z')
			*c = '?';
	memcpy(&sub.db, value.data, sizeof(sub.db));
	if (sub.db.flags & ~INTEGER_KEY || sub.db.pad)
		return bad(tree->file, "%s: odd flags", name);
	return visit_tree(&sub);
}

static int read_meta(struct file *file, uint64_t number, struct meta *ret_meta)
{
	uint8_t page[HEADER + sizeof(*ret_meta)];
	int r;

	r = read_at(file, number * file->page, page, sizeof(page));
	if (r < 0)
		return r;
	memcpy(ret_meta, page + HEADER, sizeof(*ret_meta));
	if (!(u16(page + 10) & META) || ret_meta->magic != MAGIC ||
	    ret_meta->version != DATA_VERSION)
		return bad(file, "not LMDB's: meta page %u", (unsigned)number);
	return 0;
}

static int read_metas(struct file *file, uint64_t map_bytes,
		      struct meta *ret_meta)
{
	struct meta metas[2];
	const struct meta *meta;
	int r;

	r = read_meta(file, 0, &metas[0]);
	if (r < 0)
		return r;
	file->page = metas[0].dbs[0].pad;
	if (file->page < PAGE_MIN || file->page > PAGE_MAX ||
	    (file->page & (file->page - 1)))
		return bad(file, "pages of %u bytes", file->page);
	r = read_meta(file, 1, &metas[1]);
	if (r < 0)
		return r;
	meta = &metas[metas[0].txn < metas[1].txn];
	if (metas[1].dbs[0].pad != file->page ||
	    meta->dbs[0].flags != INTEGER_KEY || meta->dbs[1].flags ||
	    meta->txn >= UINT64_MAX / 2)
		return bad(file, "a damaged meta page");
	if (meta->last_page >= (map_bytes + file->bytes) / file->page)
		return bad(file, "it claims %llu pages",
			   (unsigned long long)meta->last_page);
	file->n_pages = meta->last_page + 1;
	file->txn = meta->txn;
	*ret_meta = *meta;
	return 0;
}

static int check_all(struct file *file, uint64_t map_bytes)
{
	struct meta meta;
	struct tree list = {.file = file, .name = "free", .value = free_value};
	struct tree all = {.file = file, .name = "main", .value = main_value};
	int r = read_metas(file, map_bytes, &meta);

	if (r < 0)
		return r;
	file->used = calloc(file->n_pages / 64 + 1, sizeof(*file->used));
	if (!file->used)
		return -ENOMEM;
	posix_fadvise(file->fd, 0, 0, POSIX_FADV_WILLNEED);
	list.db = meta.dbs[0];
	all.db = meta.dbs[1];
	r = visit_tree(&all);
	if (r == 0)
		r = visit_tree(&list);
	free(file->used);
	return r;
}

int kv_pages_check(const char *path, uint64_t map_bytes, char why[KV_WHY_MAX])
{
	_cleanup_(kv_closep) int fd = -1;
	struct file file = {.why = why};
	char name[PATH_MAX];
	struct stat st;
	int r;

	why[0] = 0;
	if (snprintf(name, sizeof(name), "%s/data.mdb", path) >= PATH_MAX)
		return -ENAMETOOLONG;
	fd = open(name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0 || fstat(fd, &st) < 0) {
		r = -errno;
		snprintf(why, KV_WHY_MAX, "%s", strerror(-r));
		return r == -ELOOP ? -EBADMSG : r;
	}
	file.fd = fd;
	file.bytes = (uint64_t)st.st_size;
	if (!S_ISREG(st.st_mode))
		return bad(&file, "not a file");
	if (file.bytes == 0)
		return -ENOENT;
	r = check_all(&file, map_bytes);
	if (r < 0 && !why[0])
		snprintf(why, KV_WHY_MAX, "%s", strerror(-r));
	return r;
}
