/* SPDX-License-Identifier: Apache-2.0 */
/*
 * journal.h - what must be in the store, what may be, and what must not: one
 * word a block in a file outside the store, which every program of the test
 * maps, and which therefore outlives any of them.
 *
 * A word says: "generations min to gen may be found, and if it is `must`, one
 * of them has to be".  The step before each call that changes a block widens
 * it, the step after the call's acknowledgement narrows it:
 *
 *            save begun   gen + 1, not must
 *   save acknowledged     min = gen, must
 *          remove begun   not must
 *   remove acknowledged   min = gen + 1: nothing may be found
 */
#ifndef KV_TESTS_JOURNAL_H
#define KV_TESTS_JOURNAL_H

#include <fcntl.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "tests/crash/content.h"

#define JOURNAL_WRITERS 5
#define JOURNAL_ITEMS 96

struct journal {
	_Atomic uint64_t acknowledged, removed, sealed, read, faults;
	_Atomic uint64_t word[JOURNAL_WRITERS][JOURNAL_ITEMS];
};

struct journal_entry {
	uint64_t min, gen;
	bool must;
};

/* The space of each writer's blocks; the last two write by the mount. */
static const char journal_space[JOURNAL_WRITERS] = {'a', 'a', 'b', 'b', 'c'};
#define JOURNAL_SAVERS 3

static inline struct journal *journal_open(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	void *at;

	if (fd < 0 || ftruncate(fd, sizeof(struct journal)) < 0)
		abort();
	at = mmap(NULL, sizeof(struct journal), PROT_READ | PROT_WRITE,
		  MAP_SHARED, fd, 0);
	close(fd);
	if (at == MAP_FAILED)
		abort();
	return at;
}

static inline uint64_t journal_id(unsigned writer, unsigned index)
{
	return content_id(journal_space[writer], writer, index);
}

/* All zeros: nothing may be found, the first generation will be 1. */
static inline struct journal_entry journal_get(const struct journal *j,
					       unsigned writer, unsigned index)
{
	uint64_t word = atomic_load(&j->word[writer][index]);
	struct journal_entry e = {.min = (word >> 1 & 0x7fffffff) + 1,
				  .gen = word >> 32,
				  .must = word & 1};

	return e;
}

static inline void journal_put(struct journal *j, unsigned writer,
			       unsigned index, struct journal_entry e)
{
	atomic_store(&j->word[writer][index],
		     e.gen << 32 | (e.min - 1) << 1 | e.must);
}

static inline bool journal_nothing(struct journal_entry e)
{
	return e.min > e.gen;
}

static inline uint64_t journal_save_begun(struct journal *j, unsigned writer,
					  unsigned index)
{
	struct journal_entry e = journal_get(j, writer, index);

	e.gen++;
	e.must = false;
	journal_put(j, writer, index, e);
	return e.gen;
}

static inline void journal_save_acknowledged(struct journal *j, unsigned writer,
					     unsigned index)
{
	struct journal_entry e = journal_get(j, writer, index);

	e.min = e.gen;
	e.must = true;
	journal_put(j, writer, index, e);
	atomic_fetch_add(&j->acknowledged, 1);
}

static inline void journal_remove_begun(struct journal *j, unsigned writer,
					unsigned index)
{
	struct journal_entry e = journal_get(j, writer, index);

	e.must = false;
	journal_put(j, writer, index, e);
}

static inline void journal_remove_acknowledged(struct journal *j,
					       unsigned writer, unsigned index)
{
	struct journal_entry e = journal_get(j, writer, index);

	e.min = e.gen + 1;
	journal_put(j, writer, index, e);
	atomic_fetch_add(&j->removed, 1);
}

static inline void journal_fault(struct journal *j, const char *what,
				 uint64_t id)
{
	atomic_fetch_add(&j->faults, 1);
	printf("FAULT: %s, block %llx\n", what, (unsigned long long)id);
}

#endif
