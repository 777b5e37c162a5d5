/* SPDX-License-Identifier: Apache-2.0 */
/* paged_pool.h - a pool of kvfs_pool_reserve, whose pages the library owns. */
#ifndef KV_KERNELS_PAGED_PAGED_POOL_H
#define KV_KERNELS_PAGED_PAGED_POOL_H

#include <sys/queue.h>

#include "kernels/transfer/xfer.h"

/*
 * ---- which page holds which block ----
 *
 * The page table does not copy bytes; its callers do.  All functions are called
 * with session->lock held, and all but _grow cost the same for any number of
 * pages.
 */

struct kv_page_fill; /* map.c */
struct kv_use;	     /* map.c */

enum kv_page_state {
	KV_PAGE_FREE,
	KV_PAGE_TAKEN,	/* a caller writes to the page, which has no key */
	KV_PAGE_COMING, /* the page has a key; its bytes are being loaded */
	KV_PAGE_READY,
};

/* A space, by name, that has blocks in pages, or a caller that holds it. */
struct kv_page_table_space;

struct kv_page {
	enum kv_page_state state;
	unsigned refs;			   /* users of a COMING or READY page */
	struct kv_page_table_space *space; /* space of @key; NULL: no key */
	kvfs_key key;			   /* key of a COMING or READY page */
	/* entry in the hash table, if the page has a key */
	LIST_ENTRY(kv_page) bucket;
	TAILQ_ENTRY(kv_page) idle; /* entry in a list of pages without users */
	/* blocks of maps (map.c) that wait for the bytes */
	LIST_HEAD(, kv_use) waiting;
	/* load that brings the bytes (map.c); NULL: none */
	struct kv_page_fill *fill;
};

struct kv_page_table;

/* Make a table for at most @max pages, none of which exists yet.  -ENOMEM. */
int kv_page_table_new(uint64_t max, struct kv_page_table **ret_page_table);
void kv_page_table_free(struct kv_page_table *page_table); /* takes NULL */

/* Let the pages up to number @pages - 1 exist from now on. */
void kv_page_table_grow(struct kv_page_table *page_table, uint64_t pages);

/* Return the space @name with a reference; NULL: no memory. */
struct kv_page_table_space *
kv_page_table_space_get(struct kv_page_table *page_table, const char *name);
void kv_page_table_space_put(struct kv_page_table_space *space);
/* Forget the keys of the space @name in all pages.  Used pages stay in use. */
void kv_page_table_forget(struct kv_page_table *page_table, const char *name);

/* Return the page of a block, or NULL. */
struct kv_page *kv_page_table_find(struct kv_page_table *page_table,
				   const struct kv_page_table_space *space,
				   const kvfs_key *key);

/* Make a cached page the most recently used one. */
void kv_page_table_touch(struct kv_page_table *page_table,
			 struct kv_page *page);

/* Take a free page or, if there is none, the least recently used page without
 * users.  NULL: all pages are in use. */
struct kv_page *kv_page_table_take(struct kv_page_table *page_table);
/* Make a TAKEN page, or a COMING page without users, FREE. */
void kv_page_table_give(struct kv_page_table *page_table, struct kv_page *page);
/* Make a TAKEN page COMING, under a key that no other page of the space has. */
void kv_page_table_name(struct kv_page_table *page_table, struct kv_page *page,
			struct kv_page_table_space *space, const kvfs_key *key);
/* Make a COMING page READY; or FREE, if unused and of a forgotten space. */
void kv_page_table_ready(struct kv_page_table *page_table,
			 struct kv_page *page);

/* Begin and end the use of a COMING or READY page. */
void kv_page_table_get(struct kv_page_table *page_table, struct kv_page *page);
void kv_page_table_put(struct kv_page_table *page_table, struct kv_page *page);

struct kv_page_table_counts {
	uint64_t pages, free;
	uint64_t cached; /* READY pages without users */
	uint64_t taken;
	uint64_t mapped; /* pages with users: neither free, cached nor taken */
};
struct kv_page_table_counts
kv_page_table_count(const struct kv_page_table *page_table);

uint64_t kv_page_table_index(const struct kv_page_table *page_table,
			     const struct kv_page *page);

/* ---- pools ---- */

TAILQ_HEAD(kv_page_fills, kv_page_fill);

struct kv_paged_pool {
	/* fixed */
	struct kvfs_pool *pool; /* each page is for one block */
	void *memory;
	uint8_t *base;
	uint64_t page_bytes, max_pages;

	/* lock */
	struct kv_page_table *page_table;
	bool growing;
	struct kv_page_fills fills; /* fills that wait to begin */
	unsigned filling;	    /* begun fills */
	bool dram_is_short; /* DRAM has no room: run one fill at a time */
	LIST_HEAD(, kvfs_mapping) maps;
	LIST_HEAD(, kvfs_pages) sets;
};

/* Check that @pool is a pool of kvfs_pool_reserve.  -EINVAL, -EBADF. */
int kv_paged_pool_check(const struct kvfs_pool *pool);

/*
 * Check the arguments of a map or a seal.
 * -EINVAL: the layouts of @space and @pool differ, or @opts sets layers, a first
 *          block, or flags other than @flags
 * errors of kv_stream_sync_resolve
 */
int kv_paged_pool_check_call(const struct kvfs_pool *pool,
			     struct kvfs_space *space, const kvfs_opts *opts,
			     unsigned flags);

/* Grow the pool until @n pages are free, or the pool has max_pages.  Releases
 * the lock while the device allocates memory. */
void kv_paged_pool_room_locked(struct kv_paged_pool *paged, uint64_t n);

/* Return the address of tensor @tensor in the page, or of the page if @tensor
 * is NULL.  NULL: there is no such tensor. */
void *kv_paged_pool_addr(const struct kv_paged_pool *paged,
			 const struct kv_page *page, const char *tensor);

/* Settle all blocks of maps that wait for a COMING page, whose bytes have been
 * loaded or (@status < 0) could not be.  (map.c) */
void kv_page_settle_locked(struct kv_paged_pool *paged, struct kv_page *page,
			   int status);
/* End all maps of a pool that is being closed.  (map.c) */
void kv_maps_end_locked(struct kv_paged_pool *paged);

#endif
