/* SPDX-License-Identifier: Apache-2.0 */
/*
 * points.h - choose the next kill point, from the results of each point so far.
 *
 * The daemon's table has their names and how often each was passed; killer.c adds the
 * numbers that decide: a point is armed at a hit number that was reached before, and
 * points that killed and were tried least come first.
 */
#ifndef KV_TESTS_CRASH_POINTS_H
#define KV_TESTS_CRASH_POINTS_H

#include <stdio.h>
#include <sys/stat.h>

#include "tests/crash/client.h"
#include "tests/crash/point_table.h"

struct points {
	/* table in memory shared with the daemon */
	struct kv_point_table *table;
	/* for each point: most hits in one daemon's life */
	uint64_t most[KV_POINTS_MAX];
	uint64_t kills[KV_POINTS_MAX], armed[KV_POINTS_MAX];
};

/* Properties that a round must have for the daemon to pass a kill point. */
static const struct {
	const char *prefix;
	bool fresh, shrink, clean, lose, mounted;
} points_need[] = {
	{"create.", .fresh = true},
	{"mount.half", .fresh = true},
	{"space.", .fresh = true},
	{"beside.", .fresh = true},
	{"shrink.", .shrink = true},
	{"compact.", .shrink = true},
	{"unmount.", .clean = true},
	{"checkpoint.", .clean = true},
	{"update.", .clean = true},
	{"rebuild.", .lose = true},
	/* Only the mounted rounds have the blocks of many sizes that make files
	 * change their slot size. */
	{"file.reclass", .mounted = true},
	{"file.cleared", .mounted = true},
	{"file.trailer", .mounted = true},
	{"file.recorded", .mounted = true},
};

static inline void points_open(struct points *p, const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

	memset(p, 0, sizeof(*p));
	if (fd < 0 || ftruncate(fd, sizeof(*p->table)) < 0)
		abort();
	p->table = mmap(NULL, sizeof(*p->table), PROT_READ | PROT_WRITE,
			MAP_SHARED, fd, 0);
	close(fd);
	if (p->table == MAP_FAILED)
		abort();
}

/* Count the kill points that a daemon passed in its life. */
static inline void points_learn(struct points *p)
{
	for (uint32_t i = 0; i < p->table->n; i++) {
		uint64_t hits = atomic_exchange(&p->table->entry[i].hits, 0);

		p->most[i] = KV_MAX(p->most[i], hits);
	}
}

/* Return the number of the kill point to arm, or -1 if no point is known
 * yet. */
static inline int points_choose(struct points *p, uint64_t *seed)
{
	uint32_t n = p->table->n, best = 0;
	bool rare = client_random(seed, 2) == 0;

	if (n == 0)
		return -1;
	best = (uint32_t)client_random(seed, n);
	for (uint32_t i = 0; rare && i < n; i++) {
		uint32_t at = (best + i) % n;

		if (2 * p->kills[at] + p->armed[at] <
		    2 * p->kills[best] + p->armed[best])
			best = at;
	}
	p->armed[best]++;
	return (int)best;
}

static inline uint64_t points_hit(const struct points *p, int point,
				  uint64_t *seed)
{
	/* Use at most half of the highest number of hits: most lives are
	 * shorter than the longest. */
	uint64_t most = KV_MIN((p->most[point] + 1) / 2, 100u);

	return most < 2 || client_random(seed, 3) == 0
		       ? 1
		       : 1 + (uint64_t)client_random(seed, (long)most);
}

static inline const char *points_name(const struct points *p, int point)
{
	return p->table->entry[point].name;
}

/* Print the table; return how many kill points never killed, and append their
 * names. */
static inline unsigned points_print(const struct points *p, char *ret_names,
				    size_t room)
{
	unsigned never = 0;
	size_t n = 0;

	for (uint32_t i = 0; i < p->table->n; i++) {
		const char *name = p->table->entry[i].name;

		printf("  %-24s passed at most %llu times in a life, killed "
		       "%llu of %llu\n",
		       name, (unsigned long long)p->most[i],
		       (unsigned long long)p->kills[i],
		       (unsigned long long)p->armed[i]);
		if (p->kills[i] > 0)
			continue;
		never++;
		if (n < room)
			n += (size_t)snprintf(ret_names + n, room - n, " %s",
					      name);
	}
	return never;
}

#endif
