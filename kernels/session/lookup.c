/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lookup.c - what is there: probe and match.
 *
 * OWNS      nothing.
 *
 * INVARIANTS
 *   (1) States come back in the order of the keys asked, and a key whose state
 *       could not be learnt is absent.
 *
 * LOCKING   none of its own; see ask.c and space.c.
 */
#include "kernels/session/ask.h"
#include "kernels/session/lookup.h"
#include "kernels/session/session.h"
#include "kernels/session/space.h"

bool kv_wire_keys_are_valid(const kvfs_key *keys, size_t n)
{
	if (!keys || n > KV_QUERY_KEYS_MAX)
		return n == 0;
	for (size_t i = 0; i < n; i++)
		if (keys[i].len != 16 && keys[i].len != 32)
			return false;
	return true;
}

void kv_wire_keys(const kvfs_key *keys, size_t n, struct wire_key *ret_keys)
{
	memset(ret_keys, 0, n * sizeof(*ret_keys));
	for (size_t i = 0; i < n; i++) {
		memcpy(ret_keys[i].key, keys[i].bytes, keys[i].len);
		ret_keys[i].len = keys[i].len;
	}
}

long kv_queries_check(const kvfs_query *queries, size_t n_queries,
		      kvfs_session **ret_session)
{
	kvfs_session *session = NULL;
	size_t total = 0;
	int r;

	if (!queries && n_queries > 0)
		return -EINVAL;
	for (size_t i = 0; i < n_queries; i++) {
		const kvfs_query *q = &queries[i];

		r = kv_session_check(q->space ? q->space->session : NULL);
		if (r < 0)
			return r;
		if (session && session != q->space->session)
			return -EINVAL;
		session = q->space->session;
		if (q->n > KV_QUERY_KEYS_MAX - total ||
		    !kv_wire_keys_are_valid(q->keys, q->n))
			return -EINVAL;
		total += q->n;
	}
	*ret_session = session;
	return (long)total;
}

static long probe_batch(kvfs_session *session, uint32_t id,
			const kvfs_key *keys, size_t n, uint8_t *ret_states)
{
	struct wire_key items[WIRE_BATCH];
	struct kv_question question = {
		.header = {.type = WIRE_PROBE,
			   .count = (uint32_t)n,
			   .space = id},
		.items = items,
		.bytes = n * sizeof(items[0]),
		.reply = ret_states,
		.room = n,
	};
	long got;

	kv_wire_keys(keys, n, items);
	got = kv_ask(session, &question);
	if (got >= 0 && (size_t)got != n)
		got = -EPROTO;
	if (got < 0)
		memset(ret_states, KVFS_ABSENT, n);
	for (size_t i = 0; i < n; i++)
		if (ret_states[i] > KVFS_DRAM)
			ret_states[i] = KVFS_ABSENT;
	return got;
}

static void probe_query(const kvfs_query *query, uint8_t *ret_states)
{
	uint64_t generation;
	size_t n;
	uint32_t id;
	long r;

	memset(ret_states, KVFS_ABSENT, query->n);
	r = kv_lib_space_id(query->space, &id, &generation);
	for (size_t i = 0; i < query->n && r >= 0; i += n) {
		n = KV_MIN(query->n - i, (size_t)WIRE_BATCH);
		r = probe_batch(query->space->session, id, query->keys + i, n,
				ret_states + i);
	}
}

_Static_assert((int)KVFS_ABSENT == WIRE_ABSENT && (int)KVFS_DRAM == WIRE_DRAM &&
		       sizeof(struct wire_state) == 1,
	       "states are handed on as they come");

long kvfs_probe(const kvfs_query *queries, size_t n_queries,
		uint8_t *ret_states)
{
	kvfs_session *session;
	long total, usable = 0, at = 0;

	total = kv_queries_check(queries, n_queries, &session);
	if (total < 0)
		return total;
	if (!ret_states && total > 0)
		return -EINVAL;
	for (size_t i = 0; i < n_queries; i++) {
		probe_query(&queries[i], ret_states + at);
		at += (long)queries[i].n;
	}
	for (at = 0; at < total; at++)
		usable += ret_states[at] >= KVFS_SSD;
	return usable;
}

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
		probe_query(&queries[i], states + at);
		apply_rule(kv_lib_space_layout(queries[i].space), states + at,
			   p, usable);
		at += queries[i].n;
	}
	while (p > 0 && !usable[p])
		p--;
	return (long)p;
}
