/* SPDX-License-Identifier: Apache-2.0 */
/*
 * page_table.c - which page of a paged pool holds which block.
 *
 * OWNS      the pages' records, the hash table of keys, the names of spaces.  Not
 *           the pages' bytes.
 *
 * STATES    of a page:
 *
 *                FREE -> TAKEN    kv_page_table_take
 *               READY -> TAKEN    kv_page_table_take (without users)
 *               TAKEN -> COMING   kv_page_table_name
 *              COMING -> READY    kv_page_table_ready
 *              COMING -> FREE     kv_page_table_give (the load failed)
 *               TAKEN -> FREE     kv_page_table_give
 *               READY -> FREE     kv_page_table_put (its space was forgotten)
 *
 * INVARIANTS
 *   (1) A page has a key, and is in the hash table, if and only if it is COMING
 *       or READY; no two pages have the same key of the same space.
 *   (2) FREE pages are in free; READY pages without users are in cached, least
 *       recently used first.  No other page is in a list.
 *   (3) free + cached + taken <= pages; the rest is in use.
 *   (4) A space is in the list until it is forgotten or has no holder; each
 *       page with a key holds its space.  A new space of the same name has none
 *       of the old one's pages.
 *
 * LOCKING   session->lock.
 */
#include <xxhash.h>

#include "kernels/paged/paged_pool.h"

struct kv_page_table_space {
	LIST_ENTRY(kv_page_table_space) others;
	bool forgotten;
	size_t holders;
	char name[];
};

LIST_HEAD(bucket, kv_page);
TAILQ_HEAD(idle, kv_page);

struct kv_page_table {
	uint64_t max, pages;
	struct kv_page *page;
	struct bucket *table;
	uint64_t mask;
	struct idle free, cached;
	uint64_t n_free, n_cached, n_taken; /* pages */
	/* spaces: an unsorted list, as an engine has few of them */
	LIST_HEAD(, kv_page_table_space) spaces;
};

static void check(const struct kv_page_table *page_table,
		  const struct kv_page *page)
{
	const bool keyed =
		page->state == KV_PAGE_COMING || page->state == KV_PAGE_READY;

	assert(keyed == !!page->space);
	assert(keyed || page->refs == 0);
	assert(page_table->n_free + page_table->n_cached +
		       page_table->n_taken <=
	       page_table->pages);
}

void kv_page_table_free(struct kv_page_table *page_table)
{
	struct kv_page_table_space *space;

	if (!page_table)
		return;
	for (uint64_t i = 0; i < page_table->pages; i++)
		if (page_table->page[i].space)
			kv_page_table_space_put(page_table->page[i].space);
	while ((space = LIST_FIRST(&page_table->spaces))) {
		LIST_REMOVE(space, others);
		free(space);
	}
	free(page_table->page);
	free(page_table->table);
	free(page_table);
}

static void freep(struct kv_page_table **page_table)
{
	kv_page_table_free(*page_table);
}

/* Allocate for the most pages: memory that is not touched costs nothing. */
int kv_page_table_new(uint64_t max, struct kv_page_table **ret_page_table)
{
	_cleanup_(freep) struct kv_page_table *page_table =
		calloc(1, sizeof(*page_table));
	uint64_t buckets = 1;

	if (!page_table || max > UINT32_MAX)
		return -ENOMEM;
	while (buckets < max)
		buckets *= 2;
	page_table->max = max;
	page_table->mask = buckets - 1;
	page_table->page = calloc(max, sizeof(*page_table->page));
	page_table->table = calloc(buckets, sizeof(*page_table->table));
	if (!page_table->page || !page_table->table)
		return -ENOMEM;
	TAILQ_INIT(&page_table->free);
	TAILQ_INIT(&page_table->cached);
	*ret_page_table = kv_steal(page_table);
	return 0;
}

void kv_page_table_grow(struct kv_page_table *page_table, uint64_t pages)
{
	assert(pages >= page_table->pages && pages <= page_table->max);
	for (; page_table->pages < pages; page_table->pages++) {
		TAILQ_INSERT_TAIL(&page_table->free,
				  &page_table->page[page_table->pages], idle);
		page_table->n_free++;
	}
}

/* ---- spaces ---- */

static struct kv_page_table_space *find_space(struct kv_page_table *page_table,
					      const char *name)
{
	struct kv_page_table_space *space;

	LIST_FOREACH(space, &page_table->spaces, others)
		if (strcmp(space->name, name) == 0)
			return space;
	return NULL;
}

struct kv_page_table_space *
kv_page_table_space_get(struct kv_page_table *page_table, const char *name)
{
	struct kv_page_table_space *space = find_space(page_table, name);
	const size_t len = strlen(name) + 1;

	if (!space) {
		space = calloc(1, sizeof(*space) + len);
		if (!space)
			return NULL;
		memcpy(space->name, name, len);
		LIST_INSERT_HEAD(&page_table->spaces, space, others);
	}
	space->holders++;
	return space;
}

void kv_page_table_space_put(struct kv_page_table_space *space)
{
	assert(space->holders > 0);
	if (--space->holders > 0)
		return;
	if (!space->forgotten)
		LIST_REMOVE(space, others);
	free(space);
}

void kv_page_table_forget(struct kv_page_table *page_table, const char *name)
{
	struct kv_page_table_space *space = find_space(page_table, name);

	if (!space)
		return;
	LIST_REMOVE(space, others);
	space->forgotten = true;
}

/* ---- keys ---- */

static struct bucket *bucket_of(const struct kv_page_table *page_table,
				const struct kv_page_table_space *space,
				const kvfs_key *key)
{
	uint64_t hash = XXH3_64bits_withSeed(key->bytes, sizeof(key->bytes),
					     (uintptr_t)space ^ key->len);

	return &page_table->table[hash & page_table->mask];
}

struct kv_page *kv_page_table_find(struct kv_page_table *page_table,
				   const struct kv_page_table_space *space,
				   const kvfs_key *key)
{
	struct kv_page *page;

	LIST_FOREACH(page, bucket_of(page_table, space, key), bucket)
		if (page->space == space && page->key.len == key->len &&
		    memcmp(page->key.bytes, key->bytes, key->len) == 0)
			return page;
	return NULL;
}

static void unname(struct kv_page *page)
{
	LIST_REMOVE(page, bucket);
	kv_page_table_space_put(kv_steal(page->space));
}

void kv_page_table_name(struct kv_page_table *page_table, struct kv_page *page,
			struct kv_page_table_space *space, const kvfs_key *key)
{
	assert(page->state == KV_PAGE_TAKEN);
	assert(!kv_page_table_find(page_table, space, key));
	page_table->n_taken--;
	page->state = KV_PAGE_COMING;
	page->space = space;
	space->holders++;
	memset(&page->key, 0, sizeof(page->key));
	memcpy(page->key.bytes, key->bytes, key->len);
	page->key.len = key->len;
	LIST_INSERT_HEAD(bucket_of(page_table, space, &page->key), page,
			 bucket);
	check(page_table, page);
}

/* ---- pages ---- */

static void to_free(struct kv_page_table *page_table, struct kv_page *page)
{
	assert(page->refs == 0);
	if (page->space)
		unname(page);
	page->state = KV_PAGE_FREE;
	TAILQ_INSERT_HEAD(&page_table->free, page, idle);
	page_table->n_free++;
	check(page_table, page);
}

static void from_cached(struct kv_page_table *page_table, struct kv_page *page)
{
	TAILQ_REMOVE(&page_table->cached, page, idle);
	page_table->n_cached--;
}

/* Put a READY page that has lost its last user into @cached; free it if its
 * space was forgotten. */
static void to_rest(struct kv_page_table *page_table, struct kv_page *page)
{
	if (page->space->forgotten) {
		to_free(page_table, page);
		return;
	}
	TAILQ_INSERT_TAIL(&page_table->cached, page, idle);
	page_table->n_cached++;
	check(page_table, page);
}

void kv_page_table_touch(struct kv_page_table *page_table, struct kv_page *page)
{
	if (page->state != KV_PAGE_READY || page->refs > 0)
		return;
	from_cached(page_table, page);
	to_rest(page_table, page);
}

struct kv_page *kv_page_table_take(struct kv_page_table *page_table)
{
	struct kv_page *page = TAILQ_FIRST(&page_table->free);

	if (page) {
		TAILQ_REMOVE(&page_table->free, page, idle);
		page_table->n_free--;
	} else {
		page = TAILQ_FIRST(&page_table->cached);
		if (!page)
			return NULL;
		from_cached(page_table, page);
		unname(page);
	}
	page->state = KV_PAGE_TAKEN;
	page_table->n_taken++;
	check(page_table, page);
	return page;
}

void kv_page_table_give(struct kv_page_table *page_table, struct kv_page *page)
{
	assert(page->state == KV_PAGE_TAKEN || page->state == KV_PAGE_COMING);
	if (page->state == KV_PAGE_TAKEN)
		page_table->n_taken--;
	to_free(page_table, page);
}

void kv_page_table_ready(struct kv_page_table *page_table, struct kv_page *page)
{
	assert(page->state == KV_PAGE_COMING);
	page->state = KV_PAGE_READY;
	if (page->refs == 0)
		to_rest(page_table, page);
}

void kv_page_table_get(struct kv_page_table *page_table, struct kv_page *page)
{
	if (page->state == KV_PAGE_READY && page->refs == 0)
		from_cached(page_table, page);
	page->refs++;
	check(page_table, page);
}

void kv_page_table_put(struct kv_page_table *page_table, struct kv_page *page)
{
	assert(page->refs > 0);
	if (--page->refs == 0 && page->state == KV_PAGE_READY)
		to_rest(page_table, page);
}

struct kv_page_table_counts
kv_page_table_count(const struct kv_page_table *page_table)
{
	struct kv_page_table_counts counts = {
		.pages = page_table->pages,
		.free = page_table->n_free,
		.cached = page_table->n_cached,
		.taken = page_table->n_taken,
	};

	counts.mapped =
		counts.pages - counts.free - counts.cached - counts.taken;
	return counts;
}

uint64_t kv_page_table_index(const struct kv_page_table *page_table,
			     const struct kv_page *page)
{
	return (uint64_t)(page - page_table->page);
}
