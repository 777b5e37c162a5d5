/* SPDX-License-Identifier: Apache-2.0 */
/*
 * match.c - how much of a prompt is there for all layer groups of a model.
 *
 * OWNS      nothing.
 *
 * INVARIANTS
 *   (1) A length that is given is usable in every query's space by the rule of
 *       its layout, and none that is longer is.
 *   (2) It is a number of whole blocks of every space: what is in a block with
 *       fewer tokens is never counted.
 *
 * LOCKING   none of its own; see ask.c and space.c.
 */
#include "kernels/session/query.h"
#include "kernels/session/session.h"
#include "kernels/session/space.h"

/*
 * For each p, whether a space can go on after p blocks: clear in @ret_usable,
 * which has p = 0 .. n, those that it cannot.
 */
static void apply_rule(const struct kv_layout *layout, const uint8_t *states,
		       size_t n, bool *ret_usable)
{
	enum kv_reuse reuse = layout ? layout->reuse : KV_REUSE_PREFIX;
	size_t need, run = 0;

	for (size_t p = 1; p <= n; p++) {
		run = states[p - 1] >= KVFS_SSD ? run + 1 : 0;
		need = p;
		if (reuse == KV_REUSE_WINDOW)
			need = KV_MIN(p, (size_t)layout->window);
		else if (reuse == KV_REUSE_LAST)
			need = 1;
		if (run < need)
			ret_usable[p] = false;
	}
}

long kvfs_match(const kvfs_query *queries, size_t n_queries)
{
	_cleanup_(kv_freep) uint8_t *states = NULL;
	_cleanup_(kv_freep) bool *usable = NULL;
	kvfs_session *session;
	size_t at = 0, p;
	long total;

	total = kv_queries_check(queries, n_queries, &session);
	if (total <= 0)
		return total;
	p = queries[0].n;
	for (size_t i = 1; i < n_queries; i++)
		p = KV_MIN(p, queries[i].n);
	states = malloc((size_t)total + 1);
	usable = malloc(p + 1);
	if (!states || !usable)
		return -ENOMEM;
	memset(usable, true, p + 1);
	for (size_t i = 0; i < n_queries; i++) {
		kv_query_probe(&queries[i], states + at);
		apply_rule(kv_lib_space_layout(queries[i].space), states + at,
			   p, usable);
		at += queries[i].n;
	}
	while (p > 0 && !usable[p])
		p--;
	return (long)p;
}

/* ---- in tokens ---- */

/* A query as it is matched: where its blocks are in the prompt. */
struct group {
	const kvfs_query *query;
	const struct kv_layout *layout;
	uint64_t before; /* blocks that the caller has itself */
	uint64_t n;	 /* whole blocks behind them */
	uint32_t *runs;	 /* of each: how many end there that are present, in a
			    row; all since the start: UINT32_MAX */
};

/* -EINVAL: no tokens in a block, or a start within one. */
static int measure(const kvfs_query *query, struct group *ret_group)
{
	const struct kv_layout *layout = kv_lib_space_layout(query->space);
	uint64_t tokens, end;

	if (!layout || layout->tokens == 0 ||
	    query->start % layout->tokens != 0)
		return -EINVAL;
	if (__builtin_mul_overflow((uint64_t)query->n, layout->tokens,
				   &tokens) ||
	    __builtin_add_overflow(query->start, tokens, &end) ||
	    end > INT64_MAX)
		return -EINVAL;
	if (query->tokens != 0)
		end = KV_MIN(end, KV_MAX(query->tokens, query->start));
	*ret_group = (struct group){
		.query = query,
		.layout = layout,
		.before = query->start / layout->tokens,
		.n = (end - query->start) / layout->tokens,
	};
	return 0;
}

static uint64_t end_of(const struct group *group)
{
	return (group->before + group->n) * group->layout->tokens;
}

/* Of @a and @b, which are not 0; UINT64_MAX: too large to matter. */
static uint64_t common_multiple(uint64_t a, uint64_t b)
{
	uint64_t x = a, y = b, rest, multiple;

	while (y != 0) {
		rest = x % y;
		x = y;
		y = rest;
	}
	return __builtin_mul_overflow(a / x, b, &multiple) ? UINT64_MAX
							   : multiple;
}

/* Ask for what the group has up to @end tokens. */
static int look_up(struct group *group, uint64_t end)
{
	_cleanup_(kv_freep) uint8_t *states = NULL;
	kvfs_query asked = *group->query;
	uint32_t run = UINT32_MAX;

	group->n =
		KV_MIN(group->n, end / group->layout->tokens -
					 KV_MIN(group->before,
						end / group->layout->tokens));
	asked.n = group->n;
	states = malloc(group->n + 1);
	group->runs = calloc(group->n + 1, sizeof(*group->runs));
	if (!states || !group->runs)
		return -ENOMEM;
	kv_query_probe(&asked, states);
	for (size_t i = 0; i < group->n; i++) {
		if (states[i] < KVFS_SSD)
			run = 0;
		else if (run != UINT32_MAX)
			run++;
		group->runs[i] = run;
	}
	return 0;
}

/* Whether it can go on after @tokens, a number of whole blocks of it. */
static bool can_go_on(const struct group *group, uint64_t tokens)
{
	const uint64_t blocks = tokens / group->layout->tokens;
	uint32_t run;

	if (blocks <= group->before)
		return true;
	run = group->runs[blocks - group->before - 1];
	if (run == UINT32_MAX)
		return true;
	if (group->layout->reuse == KV_REUSE_WINDOW)
		return run >= group->layout->window;
	return group->layout->reuse == KV_REUSE_LAST && run > 0;
}

static uint64_t longest(const struct group *groups, size_t n, uint64_t end,
			uint64_t step)
{
	size_t i;

	for (end -= end % step; end > 0; end -= step) {
		for (i = 0; i < n && can_go_on(&groups[i], end); i++)
			;
		if (i == n)
			break;
	}
	return end;
}

static long match_groups(const kvfs_query *queries, size_t n,
			 struct group *groups)
{
	uint64_t end = INT64_MAX, step = 1;
	int r;

	for (size_t i = 0; i < n; i++) {
		r = measure(&queries[i], &groups[i]);
		if (r < 0)
			return r;
		end = KV_MIN(end, end_of(&groups[i]));
		step = common_multiple(step, groups[i].layout->tokens);
	}
	if (step > end)
		return 0;
	for (size_t i = 0; i < n; i++) {
		r = look_up(&groups[i], end);
		if (r < 0)
			return r;
	}
	return (long)longest(groups, n, end, step);
}

long kvfs_match_tokens(const kvfs_query *queries, size_t n_queries)
{
	kvfs_session *session;
	struct group *groups;
	long r = kv_queries_check(queries, n_queries, &session);

	if (r < 0 || n_queries == 0)
		return r;
	groups = calloc(n_queries, sizeof(*groups));
	if (!groups)
		return -ENOMEM;
	r = match_groups(queries, n_queries, groups);
	for (size_t i = 0; i < n_queries; i++)
		free(groups[i].runs);
	free(groups);
	return r;
}
