/* SPDX-License-Identifier: Apache-2.0 */
/*
 * page_table.h - which page of a paged pool holds which block.
 *
 * It knows nothing of bytes: who moves them tells it.  All calls with
 * session->lock held, none of them costs more in a larger pool.
 */
#ifndef KV_KERNELS_PAGED_PAGE_TABLE_H
#define KV_KERNELS_PAGED_PAGE_TABLE_H

#include <sys/queue.h>

#include "kernels/kvfs.h"
#include "common/kv.h"

struct kv_page_fill; /* page_fill.c */
struct kv_use;	     /* use.h */

enum kv_page_state {
	KV_PAGE_FREE,
	KV_PAGE_TAKEN,	/* somebody's, without a key */
	KV_PAGE_COMING, /* has a key, its bytes are on their way */
	KV_PAGE_READY,
};

/* A space whose blocks have pages here, or whose name somebody works with. */
struct kv_page_table_space;

struct kv_page {
	enum kv_page_state state;
	unsigned refs;			   /* COMING, READY: who uses it */
	struct kv_page_table_space *space; /* NULL: it has no key */
	kvfs_key key;			   /* COMING, READY */
	LIST_ENTRY(kv_page) bucket;	   /* if it has a key */
	TAILQ_ENTRY(kv_page) idle;	   /* if nobody has it */
	LIST_HEAD(, kv_use) waiting;	   /* use.c: for its bytes */
	struct kv_page_fill *fill;	   /* brings them; or NULL */
};

struct kv_page_table;

/* For pages 0 .. @max - 1, none of which is there yet.  -ENOMEM. */
int kv_page_table_new(uint64_t max, struct kv_page_table **ret_page_table);
void kv_page_table_free(struct kv_page_table *page_table); /* takes NULL */

/* Pages up to @pages - 1 are there. */
void kv_page_table_grow(struct kv_page_table *page_table, uint64_t pages);

/* The space of that name, held; -ENOMEM gives NULL. */
struct kv_page_table_space *
kv_page_table_space_get(struct kv_page_table *page_table, const char *name);
void kv_page_table_space_put(struct kv_page_table *page_table,
			     struct kv_page_table_space *space);
/* No page is found by a key of this space any more, until it gets a new one;
 * what is in use stays with its users. */
void kv_page_table_forget(struct kv_page_table *page_table, const char *name);

/* The page of a block, or NULL. */
struct kv_page *kv_page_table_find(struct kv_page_table *page_table,
				   const struct kv_page_table_space *space,
				   const kvfs_key *key);

/* A page with a key that nobody uses shall be given up later than others. */
void kv_page_table_touch(struct kv_page_table *page_table,
			 struct kv_page *page);

/* A page for something new, TAKEN: a free one, or the one that nobody has used
 * for longest; NULL if all are in use. */
struct kv_page *kv_page_table_take(struct kv_page_table *page_table);
/* TAKEN, or COMING and without users, to FREE. */
void kv_page_table_give(struct kv_page_table *page_table, struct kv_page *page);
/* TAKEN to COMING, under a key that no page has. */
void kv_page_table_name(struct kv_page_table *page_table, struct kv_page *page,
			struct kv_page_table_space *space, const kvfs_key *key);
/* COMING to READY; FREE if nobody uses it and its space was forgotten. */
void kv_page_table_ready(struct kv_page_table *page_table,
			 struct kv_page *page);

/* Use a page that is COMING or READY, and no longer. */
void kv_page_table_get(struct kv_page_table *page_table, struct kv_page *page);
void kv_page_table_put(struct kv_page_table *page_table, struct kv_page *page);

struct kv_page_table_counts {
	uint64_t pages, free;
	uint64_t cached; /* READY, and nobody uses them */
	uint64_t taken;
	uint64_t mapped; /* all others */
};
struct kv_page_table_counts
kv_page_table_count(const struct kv_page_table *page_table);

uint64_t kv_page_table_index(const struct kv_page_table *page_table,
			     const struct kv_page *page);

#endif
