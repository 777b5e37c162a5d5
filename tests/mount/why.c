/* SPDX-License-Identifier: Apache-2.0 */
/*
 * why.c - saves, look-ups and causes of misses, from a shell script.
 *
 *   why MOUNT SPACE save FIRST N [orphan]   save N blocks of 256 KiB in a space with a
 *                                           layout; orphan: their parents are absent
 *   why MOUNT SPACE acquire FIRST N         lease N blocks for a moment
 *   why MOUNT SPACE match FIRST N
 *   why MOUNT SPACE tokens FIRST N          save the blocks of a prompt of N tokens, from
 *                                           FIRST on, in blocks of 16
 *   why MOUNT SPACE cause FIRST N           a line for each block: cause, idle seconds
 *   why MOUNT SPACE misses                  a line for each look-up, oldest first: the
 *                                           key's number, its place, keys, cause
 *
 * The first four print a number: blocks saved, leased, matched.  Numbers of keys are those
 * of key() in lib.  Exits 1 after an error.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "common/kv.h"
#include "kernels/kvfs.h"

#define BYTES (256u << 10)
#define MOST 4096u
#define LAYOUT                                                                 \
	"{\"tensors\":[{\"name\":\"k\",\"dtype\":\"U8\",\"shape\":[262144]}]," \
	"\"tokens\":16}"

static const char *const names[] = {
	[KVFS_CAUSE_NONE] = "none",
	[KVFS_CAUSE_UNSEEN] = "unseen",
	[KVFS_CAUSE_EVICTED_DRAM] = "evicted-dram",
	[KVFS_CAUSE_EVICTED_SSD] = "evicted-ssd",
	[KVFS_CAUSE_REMOVED] = "removed",
	[KVFS_CAUSE_EXPIRED] = "expired",
	[KVFS_CAUSE_QUOTA] = "quota",
	[KVFS_CAUSE_RATE] = "rate",
	[KVFS_CAUSE_ROOM] = "room",
	[KVFS_CAUSE_PARENT] = "parent",
	[KVFS_CAUSE_BUDGET] = "budget",
	[KVFS_CAUSE_DAMAGED] = "damaged",
	[KVFS_CAUSE_OFFLINE] = "offline",
};

static uint8_t page[BYTES];
static kvfs_key keys[MOST];
static kvfs_miss misses[1u << 16];

static kvfs_key key_of(unsigned n)
{
	kvfs_key key;
	char name[33];

	snprintf(name, sizeof(name), "%02x%030x", n % 256, n);
	if (kvfs_key_parse(name, &key) < 0)
		exit(1);
	return key;
}

static long save(kvfs_session *session, kvfs_space *space, unsigned n,
		 bool orphan)
{
	kvfs_view view = {"k", page, BYTES, BYTES, 1, 0};
	const kvfs_pool_desc desc = {.size = sizeof(desc),
				     .device = "host",
				     .space = space,
				     .views = &view,
				     .n_views = 1,
				     .pages = 1,
				     .pages_per_block = 1};
	static int64_t numbers[MOST];
	static kvfs_meta meta[MOST];
	kvfs_pool *pool;
	kvfs_xfer *xfer;
	long r = kvfs_pool_register(session, &desc, &pool);

	for (unsigned i = 0; i < n && orphan; i++)
		meta[i] = (kvfs_meta){.parent = key_of(77777), .position = 1};
	if (r == 0)
		r = kvfs_save(pool, space, keys, meta, n, numbers, NULL, &xfer);
	if (r < 0)
		return r;
	r = kvfs_xfer_wait(xfer, KVFS_SEALED, KVFS_FOREVER);
	kvfs_xfer_free(xfer);
	kvfs_pool_close(pool);
	return r;
}

/* Make the keys of the blocks of a prompt, and return their number. */
static long chain(kvfs_space *space, unsigned first, unsigned n)
{
	static uint32_t tokens[MOST];

	for (unsigned i = 0; i < n; i++)
		tokens[i] = first + i;
	return kvfs_key_chain(space, NULL, tokens, n, NULL, 0, keys, MOST);
}

static long acquire(const kvfs_query *query)
{
	kvfs_lease *lease;
	long n = kvfs_acquire(query, 1, NULL, &lease);

	if (n < 0)
		return n;
	n = kvfs_lease_wait(lease, KVFS_FOREVER);
	kvfs_release(lease);
	return n;
}

static long print_causes(kvfs_space *space, unsigned n)
{
	const int64_t now = (int64_t)time(NULL);
	long absent = 0, r = kvfs_why(space, keys, n, misses);

	for (unsigned i = 0; i < n && r >= 0; i++) {
		absent += misses[i].cause != KVFS_CAUSE_NONE;
		printf("%s %u%s\n", names[misses[i].cause], misses[i].idle,
		       misses[i].since == 0	     ? ""
		       : misses[i].since > now	     ? " later"
		       : misses[i].since < now - 600 ? " before"
						     : " now");
	}
	return r < 0 || r == absent ? r : -EIO;
}

static int by_time(const void *a, const void *b)
{
	const kvfs_miss *x = a, *y = b;

	return (x->asked_ns > y->asked_ns) - (x->asked_ns < y->asked_ns);
}

static long print_misses(kvfs_space *space)
{
	uint64_t cursor = 0;
	size_t n = 0;
	char name[65];
	long r;

	while ((r = kvfs_misses(space, &cursor, misses + n,
				KV_ARRAY_LEN(misses) - n)) > 0)
		n += (size_t)r;
	qsort(misses, n, sizeof(misses[0]), by_time);
	for (size_t i = 0; i < n; i++) {
		kvfs_key_name(&misses[i].key, name);
		printf("%lu %u/%u %s\n", strtoul(name + 2, NULL, 16),
		       misses[i].place, misses[i].n, names[misses[i].cause]);
	}
	return r;
}

int main(int argc, char **argv)
{
	const unsigned first = argc > 4 ? (unsigned)atoi(argv[4]) : 0;
	const unsigned n = argc > 5 ? (unsigned)atoi(argv[5]) : 0;
	kvfs_query query = {.keys = keys, .n = n};
	kvfs_session *session;
	const char *verb = argc > 3 ? argv[3] : "";
	long r;

	for (unsigned i = 0; i < n && i < MOST; i++)
		keys[i] = key_of(first + i);
	r = argc < 4 || n > MOST ? -EINVAL : kvfs_open(argv[1], &session);
	if (r == 0)
		r = kvfs_space_open(session, argv[2],
				    strcmp(verb, "save") == 0 ||
						    strcmp(verb, "tokens") == 0
					    ? LAYOUT
					    : NULL,
				    KVFS_CREATE | 0755, &query.space);
	if (r < 0) {
		fprintf(stderr, "why: %s\n", strerror((int)-r));
		return 1;
	}
	if (strcmp(verb, "cause") == 0)
		r = print_causes(query.space, n);
	else if (strcmp(verb, "misses") == 0)
		r = print_misses(query.space);
	else if (strcmp(verb, "tokens") == 0)
		r = save(session, query.space,
			 (unsigned)chain(query.space, first, n), false);
	else if (strcmp(verb, "save") == 0)
		r = save(session, query.space, n, argc > 6);
	else
		r = strcmp(verb, "match") == 0 ? kvfs_match(&query, 1)
					       : acquire(&query);
	if (r < 0)
		fprintf(stderr, "why: %s\n", strerror((int)-r));
	else if (strcmp(verb, "cause") != 0 && strcmp(verb, "misses") != 0)
		printf("%ld\n", r);
	kvfs_space_close(query.space);
	kvfs_close(session);
	return r < 0;
}
