/* SPDX-License-Identifier: Apache-2.0 */
/*
 * coverage.c - the set of byte ranges of a block that have arrived.
 *
 * OWNS      the array of ranges.
 *
 * INVARIANTS
 *   (1) Ranges are not empty, ascend, and do not touch: each gap is a hole.
 *
 * LOCKING   the owner's.
 */
#include "common/array.h"
#include "common/coverage.h"

void kv_coverage_fini(struct kv_coverage *coverage)
{
	free(coverage->ranges);
	*coverage = (struct kv_coverage){0};
}

/* Search from the end: writers usually append. */
int kv_coverage_add(struct kv_coverage *c, uint64_t start, uint64_t end)
{
	/* ranges first..last-1 are joined with the new range */
	size_t first = c->n, last;
	int r;

	if (start >= end)
		return 0;
	while (first > 0 && c->ranges[first - 1].end >= start)
		first--;
	for (last = first; last < c->n && c->ranges[last].start <= end; last++)
		;
	if (first == last) {
		if (c->n >= KV_COVERAGE_MAX)
			return -EFBIG;
		r = kv_array_reserve(&c->ranges, &c->room, c->n + 1);
		if (r < 0)
			return r;
		memmove(c->ranges + first + 1, c->ranges + first,
			(c->n - first) * sizeof(*c->ranges));
		c->ranges[first] = (struct kv_span){start, end};
		c->n++;
		return 0;
	}
	start = KV_MIN(start, c->ranges[first].start);
	end = KV_MAX(end, c->ranges[last - 1].end);
	c->ranges[first] = (struct kv_span){start, end};
	memmove(c->ranges + first + 1, c->ranges + last,
		(c->n - last) * sizeof(*c->ranges));
	c->n -= last - first - 1;
	return 0;
}

uint64_t kv_coverage_prefix(const struct kv_coverage *c)
{
	return c->n > 0 && c->ranges[0].start == 0 ? c->ranges[0].end : 0;
}

uint64_t kv_coverage_end(const struct kv_coverage *c)
{
	return c->n > 0 ? c->ranges[c->n - 1].end : 0;
}
