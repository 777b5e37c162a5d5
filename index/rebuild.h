/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rebuild.h - an index made anew from what lies beside it: the segment files'
 * trailers and prologues, STORE/spaces and STORE/store.
 *
 * Whatever was durable is back: keys, parents, positions, times of sealing,
 * spaces with their owners and layouts.  Pins, uses, times set later and
 * snapshots were in the index alone, and are gone.
 */
#ifndef KV_INDEX_REBUILD_H
#define KV_INDEX_REBUILD_H

#include "index/index.h"

#define KV_DAMAGED_NAME "index.damaged"

struct kv_rebuild {
	int store_fd;	  /* in: STORE */
	const char *path; /* in: the same */
	uint64_t cap;	  /* in: if STORE/store does not tell it */
	bool keep; /* in: the old one as KV_DAMAGED_NAME, if it is small */
	/* in, may be NULL: records of pinned blocks, which stay pinned if they
	 * have the same generation still; reordered */
	struct kv_slot_record *pins;
	size_t n_pins;
	/* in, may be NULL: called now and then, from the caller's thread */
	void (*progress)(void *arg, uint64_t done, uint64_t of);
	void *arg;

	struct kv_store_info info; /* out, and all that follows */
	uint64_t files, blocks, spaces;
	uint64_t pinned;     /* of @pins, those that were found */
	uint64_t odd_files;  /* without a trailer of this store */
	uint64_t strays;     /* prologues of unknown spaces, or impossible */
	uint64_t duplicates; /* older ones of a key */
	uint64_t unreadable; /* slots */
	uint64_t damaged;    /* blocks that were read and have other bytes */
};

/* Is there anything to make one from: STORE/store or segment files? */
bool kv_rebuild_possible(int store_fd);

/*
 * Make STORE/index/data.mdb anew and put it in its place.  The new one is on
 * disk before it takes the name, so that a crash leaves one that is damaged,
 * absent or whole.  Only with STORE locked. -ENOTSUP: another format, nothing
 * was touched.  -ENODATA: nothing to make it from.  -ENOSPC, -EIO, -ENOMEM.
 */
int kv_rebuild(struct kv_rebuild *rebuild);

#endif
