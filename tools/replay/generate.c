/* SPDX-License-Identifier: Apache-2.0 */
/*
 * generate.c - a trace of made-up conversations.
 *
 * OWNS      the trace, and while it is made the conversations under way.
 *
 * LOCKING   none: one thread.
 */
#include "tools/replay/generate.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define REQUESTS 12000u
#define SYSTEMS 24u
#define LONGEST 512u
#define TALKS 4096u
#define DOCUMENTS 64u

struct talk {
	double due;
	uint32_t n;
	uint32_t blocks[LONGEST];
};

struct maker {
	uint64_t seed;
	struct kv_trace *trace;
	size_t room;
	struct talk *talks; /* under way, in no order */
	uint32_t n_talks;
	uint32_t *systems[SYSTEMS], system_n[SYSTEMS];
	uint32_t *documents[DOCUMENTS], document_n[DOCUMENTS];
	double now;
};

static double chance(struct maker *m)
{
	m->seed = m->seed * 6364136223846793005u + 1442695040888963407u;
	return (double)(m->seed >> 11) / 9007199254740992.0;
}

static uint32_t between(struct maker *m, uint32_t least, uint32_t most)
{
	return least + (uint32_t)(chance(m) * (most - least + 1));
}

/* Of @n, the first ones far more often. */
static uint32_t favourite(struct maker *m, uint32_t n)
{
	return (uint32_t)(pow(n + 1, chance(m)) - 1) % n;
}

static int put(struct maker *m, const uint32_t *blocks, uint32_t n)
{
	struct kv_trace *trace = m->trace;
	size_t at = trace->start[trace->n];

	if (at + n > m->room) {
		size_t room = (at + n) * 2;
		void *p = realloc(trace->blocks, room * sizeof(*blocks));

		if (!p)
			return -ENOMEM;
		trace->blocks = p;
		m->room = room;
	}
	memcpy(trace->blocks + at, blocks, n * sizeof(*blocks));
	trace->start[++trace->n] = at + n;
	return 0;
}

static uint32_t grow(struct maker *m, uint32_t *blocks, uint32_t n, uint32_t by)
{
	while (by-- > 0 && n < LONGEST)
		blocks[n++] = m->trace->unique++;
	return n;
}

static int make_shared(struct maker *m, uint32_t **texts, uint32_t *lengths,
		       uint32_t n, uint32_t most)
{
	for (uint32_t i = 0; i < n; i++) {
		free(texts[i]);
		texts[i] = malloc(LONGEST * sizeof(**texts));
		if (!texts[i])
			return -ENOMEM;
		lengths[i] = grow(m, texts[i], 0, between(m, 2, most));
	}
	return 0;
}

/* A turn of the talk; it may come again in half a minute to some minutes. */
static int turn(struct maker *m, struct talk *talk)
{
	int r = put(m, talk->blocks, talk->n);

	talk->n = grow(m, talk->blocks, talk->n, between(m, 1, 5));
	talk->due = m->now + 30 * exp(3 * chance(m));
	if (chance(m) > 0.7)
		*talk = m->talks[--m->n_talks];
	return r;
}

static int begin_talk(struct maker *m)
{
	uint32_t system = favourite(m, SYSTEMS);
	struct talk *talk;

	if (m->n_talks == TALKS)
		return 0;
	talk = &m->talks[m->n_talks++];
	talk->n = m->system_n[system];
	memcpy(talk->blocks, m->systems[system],
	       talk->n * sizeof(talk->blocks[0]));
	talk->n = grow(m, talk->blocks, talk->n, between(m, 2, 30));
	return turn(m, talk);
}

static int ask_document(struct maker *m)
{
	uint32_t i = favourite(m, DOCUMENTS), blocks[LONGEST], n;

	n = m->document_n[i];
	memcpy(blocks, m->documents[i], n * sizeof(blocks[0]));
	n = grow(m, blocks, n, between(m, 1, 3));
	return put(m, blocks, n);
}

static int once(struct maker *m)
{
	uint32_t blocks[LONGEST];

	return put(m, blocks, grow(m, blocks, 0, between(m, 40, 160)));
}

static int next_request(struct maker *m, bool later)
{
	double what = chance(m);

	for (uint32_t i = 0; i < m->n_talks; i++)
		if (m->talks[i].due <= m->now)
			return turn(m, &m->talks[i]);
	m->now += 0.7;
	if (what < (later ? 0.35 : 0.05))
		return ask_document(m);
	return what > 0.93 ? once(m) : begin_talk(m);
}

static int make(struct maker *m)
{
	int r = 0;

	for (uint32_t i = 0; r == 0 && i < REQUESTS; i++) {
		if (i % (REQUESTS / 2) == 0)
			r = make_shared(m, m->systems, m->system_n, SYSTEMS,
					12);
		if (r == 0 && i % (REQUESTS / 2) == 0)
			r = make_shared(m, m->documents, m->document_n,
					DOCUMENTS, 120);
		if (r == 0)
			r = next_request(m, i > REQUESTS / 2);
	}
	return r;
}

int kv_trace_generate(uint64_t seed, struct kv_trace **ret_trace)
{
	struct maker m = {.seed = seed};
	int r = -ENOMEM;

	m.trace = calloc(1, sizeof(*m.trace));
	m.talks = malloc(TALKS * sizeof(*m.talks));
	if (m.trace)
		m.trace->start = calloc(REQUESTS + 1, sizeof(*m.trace->start));
	if (m.trace && m.talks && m.trace->start)
		r = make(&m);
	free(m.talks);
	for (uint32_t i = 0; i < SYSTEMS; i++)
		free(m.systems[i]);
	for (uint32_t i = 0; i < DOCUMENTS; i++)
		free(m.documents[i]);
	if (r < 0) {
		kv_trace_free(m.trace);
		return r;
	}
	m.trace->block_size = 512;
	*ret_trace = m.trace;
	return 0;
}
