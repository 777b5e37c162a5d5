/* SPDX-License-Identifier: Apache-2.0 */
/*
 * page_table.h - which page of a reserved pool holds which block.
 *
 * It knows nothing of bytes: who moves them tells it.  All calls with
 * session->lock held, none of them costs more in a larger pool.
 */
#ifndef KV_ROSTER_H
#define KV_ROSTER_H

#include <sys/queue.h>

#include "kernels/kvfs.h"
#include "common/kv.h"

struct kv_bring; /* page_fill.h */
struct kv_use;	 /* map.h */

enum kv_page_state {
	KV_PAGE_FREE,
	KV_PAGE_TAKEN,	/* somebody's, without a key */
	KV_PAGE_COMING, /* has a key, its bytes are on their way */
	KV_PAGE_READY,
};

/* A space whose blocks have pages here, or whose name somebody works with. */
struct kv_roster_space;

struct kv_page {
	enum kv_page_state state;
	unsigned refs;		       /* COMING, READY: who uses it */
	struct kv_roster_space *space; /* NULL: it has no key */
	kvfs_key key;		       /* COMING, READY */
	LIST_ENTRY(kv_page) bucket;    /* if it has a key */
	TAILQ_ENTRY(kv_page) idle;     /* if nobody has it */
	LIST_HEAD(, kv_use) waiting;   /* map.c: for its bytes */
	struct kv_bring *bring;	       /* page_fill.c: brings them; or NULL */
};

struct kv_roster;

/* For pages 0 .. @max - 1, none of which is there yet.  -ENOMEM. */
int kv_roster_new(uint64_t max, struct kv_roster **ret_roster);
void kv_roster_free(struct kv_roster *roster); /* takes NULL */

/* Pages up to @pages - 1 are there. */
void kv_roster_grow(struct kv_roster *roster, uint64_t pages);

/* The space of that name, held; -ENOMEM gives NULL. */
struct kv_roster_space *kv_roster_space_get(struct kv_roster *roster,
					    const char *name);
void kv_roster_space_put(struct kv_roster *roster,
			 struct kv_roster_space *space);
/* No page is found by a key of this space any more, until it gets a new one;
 * what is in use stays with its users. */
void kv_roster_forget(struct kv_roster *roster, const char *name);

/* The page of a block, or NULL. */
struct kv_page *kv_roster_find(struct kv_roster *roster,
			       const struct kv_roster_space *space,
			       const kvfs_key *key);

/* A page with a key that nobody uses shall be given up later than others. */
void kv_roster_touch(struct kv_roster *roster, struct kv_page *page);

/* A page for something new, TAKEN: a free one, or the one that nobody has used
 * for longest; NULL if all are in use. */
struct kv_page *kv_roster_take(struct kv_roster *roster);
/* TAKEN, or COMING and without users, to FREE. */
void kv_roster_give(struct kv_roster *roster, struct kv_page *page);
/* TAKEN to COMING, under a key that no page has. */
void kv_roster_name(struct kv_roster *roster, struct kv_page *page,
		    struct kv_roster_space *space, const kvfs_key *key);
/* COMING to READY; FREE if nobody uses it and its space was forgotten. */
void kv_roster_ready(struct kv_roster *roster, struct kv_page *page);

/* Use a page that is COMING or READY, and no longer. */
void kv_roster_get(struct kv_roster *roster, struct kv_page *page);
void kv_roster_put(struct kv_roster *roster, struct kv_page *page);

struct kv_roster_counts {
	uint64_t pages, free;
	uint64_t cached; /* READY, and nobody uses them */
	uint64_t taken;
	uint64_t mapped; /* all others */
};
struct kv_roster_counts kv_roster_count(const struct kv_roster *roster);

uint64_t kv_roster_index(const struct kv_roster *roster,
			 const struct kv_page *page);

#endif
