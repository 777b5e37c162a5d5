/* SPDX-License-Identifier: Apache-2.0 */
/*
 * page_table.c - which page of a reserved pool holds which block.
 *
 * OWNS      the pages' records, the table of keys, the names of spaces.  Not
 *           the pages' bytes.
 *
 * STATES    of a page:
 *
 *                FREE -> TAKEN    kv_roster_take
 *               READY -> TAKEN    kv_roster_take (nobody uses it)
 *               TAKEN -> COMING   kv_roster_name
 *              COMING -> READY    kv_roster_ready
 *              COMING -> FREE     kv_roster_give (it did not come)
 *               TAKEN -> FREE     kv_roster_give
 *               READY -> FREE     kv_roster_put (its space was forgotten)
 *
 * INVARIANTS
 *   (1) A page has a key, and is in the table, if and only if it is COMING or
 *       READY; no two of them have the same key of the same space.
 *   (2) FREE pages are in free or were never used; READY ones without users are
 *       in cached, least recently used first.  No others are in either.
 *   (3) free + cached + taken <= pages; the rest is in use.
 *   (4) A space is in the list until it is forgotten or has no holder; each
 *       page with a key of it holds it.  A new one of the same name has none of
 *       its pages.
 *
 * LOCKING   session->lock.
 */
#include <xxhash.h>

#include "kernels/paged/page_table.h"

struct kv_roster_space {
	LIST_ENTRY(kv_roster_space) others;
	bool forgotten;
	size_t holders;
	char name[];
};

LIST_HEAD(bucket, kv_page);
TAILQ_HEAD(idle, kv_page);

struct kv_roster {
	uint64_t max, pages;
	uint64_t unused; /* from here to pages they are FREE, in no list */
	struct kv_page *page;
	struct bucket *table;
	uint64_t mask;
	struct idle free, cached;
	uint64_t n_free, n_cached, n_taken;  /* n_free: of the list */
	LIST_HEAD(, kv_roster_space) spaces; /* an engine has a few */
};

static void check(const struct kv_roster *roster, const struct kv_page *page)
{
	const bool keyed =
		page->state == KV_PAGE_COMING || page->state == KV_PAGE_READY;

	assert(keyed == (page->space != NULL));
	assert(keyed || page->refs == 0);
	assert(roster->n_free + roster->n_cached + roster->n_taken <=
	       roster->unused);
	assert(roster->unused <= roster->pages);
}

void kv_roster_free(struct kv_roster *roster)
{
	struct kv_roster_space *space;
	uint64_t i;

	if (roster == NULL)
		return;
	for (i = 0; i < roster->unused; i++)
		if (roster->page[i].space != NULL)
			kv_roster_space_put(roster, roster->page[i].space);
	while ((space = LIST_FIRST(&roster->spaces)) != NULL) {
		LIST_REMOVE(space, others);
		free(space);
	}
	free(roster->page);
	free(roster->table);
	free(roster);
}

static void freep(struct kv_roster **roster)
{
	kv_roster_free(*roster);
}

/* Memory that is not touched costs nothing: all is made for the largest size.
 */
int kv_roster_new(uint64_t max, struct kv_roster **ret_roster)
{
	_cleanup_(freep) struct kv_roster *roster = calloc(1, sizeof(*roster));
	uint64_t buckets = 1;

	if (roster == NULL || max > UINT32_MAX)
		return -ENOMEM;
	while (buckets < max)
		buckets *= 2;
	roster->max = max;
	roster->mask = buckets - 1;
	roster->page = calloc(max, sizeof(*roster->page));
	roster->table = calloc(buckets, sizeof(*roster->table));
	if (roster->page == NULL || roster->table == NULL)
		return -ENOMEM;
	TAILQ_INIT(&roster->free);
	TAILQ_INIT(&roster->cached);
	LIST_INIT(&roster->spaces);
	*ret_roster = kv_steal(roster);
	return 0;
}

void kv_roster_grow(struct kv_roster *roster, uint64_t pages)
{
	assert(pages >= roster->pages && pages <= roster->max);
	roster->pages = pages;
}

/* ---- spaces ---- */

static struct kv_roster_space *find_space(struct kv_roster *roster,
					  const char *name)
{
	struct kv_roster_space *space;

	LIST_FOREACH(space, &roster->spaces, others)
		if (strcmp(space->name, name) == 0)
			return space;
	return NULL;
}

struct kv_roster_space *kv_roster_space_get(struct kv_roster *roster,
					    const char *name)
{
	struct kv_roster_space *space = find_space(roster, name);
	const size_t len = strlen(name) + 1;

	if (space == NULL) {
		space = calloc(1, sizeof(*space) + len);
		if (space == NULL)
			return NULL;
		memcpy(space->name, name, len);
		LIST_INSERT_HEAD(&roster->spaces, space, others);
	}
	space->holders++;
	return space;
}

void kv_roster_space_put(struct kv_roster *roster,
			 struct kv_roster_space *space)
{
	(void)roster;
	assert(space->holders > 0);
	if (--space->holders > 0)
		return;
	if (!space->forgotten)
		LIST_REMOVE(space, others);
	free(space);
}

void kv_roster_forget(struct kv_roster *roster, const char *name)
{
	struct kv_roster_space *space = find_space(roster, name);

	if (space == NULL)
		return;
	LIST_REMOVE(space, others);
	space->forgotten = true;
}

/* ---- keys ---- */

static struct bucket *bucket_of(const struct kv_roster *roster,
				const struct kv_roster_space *space,
				const kvfs_key *key)
{
	uint64_t hash = XXH3_64bits_withSeed(key->bytes, sizeof(key->bytes),
					     (uintptr_t)space ^ key->len);

	return &roster->table[hash & roster->mask];
}

struct kv_page *kv_roster_find(struct kv_roster *roster,
			       const struct kv_roster_space *space,
			       const kvfs_key *key)
{
	struct kv_page *page;

	LIST_FOREACH(page, bucket_of(roster, space, key), bucket)
		if (page->space == space && page->key.len == key->len &&
		    memcmp(page->key.bytes, key->bytes, key->len) == 0)
			return page;
	return NULL;
}

static void unname(struct kv_roster *roster, struct kv_page *page)
{
	LIST_REMOVE(page, bucket);
	kv_roster_space_put(roster, kv_steal(page->space));
}

void kv_roster_name(struct kv_roster *roster, struct kv_page *page,
		    struct kv_roster_space *space, const kvfs_key *key)
{
	assert(page->state == KV_PAGE_TAKEN);
	assert(kv_roster_find(roster, space, key) == NULL);
	roster->n_taken--;
	page->state = KV_PAGE_COMING;
	page->space = space;
	space->holders++;
	memset(&page->key, 0, sizeof(page->key));
	memcpy(page->key.bytes, key->bytes, key->len);
	page->key.len = key->len;
	LIST_INSERT_HEAD(bucket_of(roster, space, &page->key), page, bucket);
	check(roster, page);
}

/* ---- pages ---- */

static void to_free(struct kv_roster *roster, struct kv_page *page)
{
	assert(page->refs == 0);
	if (page->space != NULL)
		unname(roster, page);
	page->state = KV_PAGE_FREE;
	TAILQ_INSERT_HEAD(&roster->free, page, idle);
	roster->n_free++;
	check(roster, page);
}

static void from_cached(struct kv_roster *roster, struct kv_page *page)
{
	TAILQ_REMOVE(&roster->cached, page, idle);
	roster->n_cached--;
}

/* READY, and nobody uses it. */
static void to_rest(struct kv_roster *roster, struct kv_page *page)
{
	if (page->space->forgotten) {
		to_free(roster, page);
		return;
	}
	TAILQ_INSERT_TAIL(&roster->cached, page, idle);
	roster->n_cached++;
	check(roster, page);
}

void kv_roster_touch(struct kv_roster *roster, struct kv_page *page)
{
	if (page->state != KV_PAGE_READY || page->refs > 0)
		return;
	from_cached(roster, page);
	to_rest(roster, page);
}

struct kv_page *kv_roster_take(struct kv_roster *roster)
{
	struct kv_page *page = TAILQ_FIRST(&roster->free);

	if (page != NULL) {
		TAILQ_REMOVE(&roster->free, page, idle);
		roster->n_free--;
	} else if (roster->unused < roster->pages) {
		page = &roster->page[roster->unused++];
	} else {
		page = TAILQ_FIRST(&roster->cached);
		if (page == NULL)
			return NULL;
		from_cached(roster, page);
		unname(roster, page);
	}
	page->state = KV_PAGE_TAKEN;
	roster->n_taken++;
	check(roster, page);
	return page;
}

void kv_roster_give(struct kv_roster *roster, struct kv_page *page)
{
	assert(page->state == KV_PAGE_TAKEN || page->state == KV_PAGE_COMING);
	if (page->state == KV_PAGE_TAKEN)
		roster->n_taken--;
	to_free(roster, page);
}

void kv_roster_ready(struct kv_roster *roster, struct kv_page *page)
{
	assert(page->state == KV_PAGE_COMING);
	page->state = KV_PAGE_READY;
	if (page->refs == 0)
		to_rest(roster, page);
}

void kv_roster_get(struct kv_roster *roster, struct kv_page *page)
{
	if (page->state == KV_PAGE_READY && page->refs == 0)
		from_cached(roster, page);
	page->refs++;
	check(roster, page);
}

void kv_roster_put(struct kv_roster *roster, struct kv_page *page)
{
	assert(page->refs > 0);
	if (--page->refs == 0 && page->state == KV_PAGE_READY)
		to_rest(roster, page);
}

struct kv_roster_counts kv_roster_count(const struct kv_roster *roster)
{
	struct kv_roster_counts counts = {
		.pages = roster->pages,
		.free = roster->n_free + roster->pages - roster->unused,
		.cached = roster->n_cached,
		.taken = roster->n_taken,
	};

	counts.mapped =
		counts.pages - counts.free - counts.cached - counts.taken;
	return counts;
}

uint64_t kv_roster_index(const struct kv_roster *roster,
			 const struct kv_page *page)
{
	return (uint64_t)(page - roster->page);
}
