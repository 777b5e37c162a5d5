/* SPDX-License-Identifier: Apache-2.0 */
/*
 * journal.h - which blocks must be, may be, and must not be in the store: one word a block
 * in a file outside the store, which every program of the test maps, so that it outlives
 * each of them.
 *
 * A word says: generations `min` to `gen` may be found, and if `must` is set, one of them
 * must be found.  The step before each call that changes a block widens the word, and the
 * step after the call's acknowledgement narrows it:
 *
 *            save begun   gen + 1, not must
 *   save acknowledged     min = gen, must
 *          remove begun   not must
 *   remove acknowledged   min = gen + 1: no generation may be found
 */
#ifndef KV_TESTS_CRASH_JOURNAL_H
#define KV_TESTS_CRASH_JOURNAL_H

#include <fcntl.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include "tests/crash/content.h"

#define JOURNAL_WRITERS 6
#define JOURNAL_ITEMS 96
#define JOURNAL_TIMES (1u << 16)

/* Durations of an operation that is repeated. */
struct journal_times {
	_Atomic uint32_t n;
	_Atomic uint32_t us[JOURNAL_TIMES];
};

struct journal {
	_Atomic uint64_t acknowledged, removed, sealed, read, faults;
	_Atomic uint64_t word[JOURNAL_WRITERS][JOURNAL_ITEMS];

	/* Only killer.c sets the next 7 fields; without killer.c they stay 0.
	 * Daemons are numbered by their starts. */
	_Atomic uint64_t mounts; /* number of daemons that were started */
	/* number of the newest daemon that answers clients */
	_Atomic uint64_t ready;
	/* time at which that daemon began to answer, in ns */
	_Atomic uint64_t ready_ns;
	/* number of the newest daemon with a FUSE mount */
	_Atomic uint64_t mounted;
	_Atomic uint64_t stores; /* how often a new, empty store was made */
	/* number of events after which blocks may be lost */
	_Atomic uint64_t forgiven;
	_Atomic uint64_t rebuilt; /* how often the index was lost */
	/* state of saver.c's snapshot, an enum journal_snapshot */
	_Atomic uint64_t snapshot;
	/* 1: no flush was answered since the block was removed or a new daemon
	 * was asked for it, so a rebuild of the index may find another copy, up
	 * to the newest that was begun. */
	_Atomic uint8_t unsure[JOURNAL_WRITERS][JOURNAL_ITEMS];
	_Atomic uint64_t newest[JOURNAL_WRITERS][JOURNAL_ITEMS];
	_Atomic uint32_t active; /* one bit for each writer that takes part */
	/* number of the last daemon with which the writer compared its
	 * blocks */
	_Atomic uint64_t settled[JOURNAL_WRITERS];
	_Atomic uint64_t lost, wrong, damaged, returned, checked;
	_Atomic uint64_t refused; /* number of unexpected misses and errors */

	struct journal_times reconnect, recovery;
	_Atomic uint64_t pointers; /* how often leased blocks were reread */
	/* mappings, SIGBUS signals and ENOTCONN errors, counted by mapper.c */
	_Atomic uint64_t maps, sigbus, notconn;
};

/* The state of the one snapshot that saver.c makes and drops. */
enum journal_snapshot { SNAPSHOT_NEVER, SNAPSHOT_MAYBE, SNAPSHOT_MUST };

struct journal_entry {
	uint64_t min, gen;
	bool must;
};

/*
 * The space of each writer's blocks; the last two writers write by the mount.  Blocks in
 * `d` may be evicted at any time.
 */
static const char journal_space[JOURNAL_WRITERS] = {'e', 'e', 'b',
						    'd', 'b', 'c'};
#define JOURNAL_SAVERS 4
#define JOURNAL_CHURN 3

/* Make the spaces, with reserves so that no block of the checked spaces is
 * evicted. */
static inline bool journal_set_up(const char *mountpoint)
{
	static const char *const reserve[][2] = {
		{"e", "8M"}, {"b", "12M"}, {"c", "16M"}};
	char path[600];

	for (size_t i = 0; i < KV_ARRAY_LEN(reserve); i++) {
		snprintf(path, sizeof(path), "%s/%s", mountpoint,
			 reserve[i][0]);
		if (mkdir(path, 0777) < 0 && errno != EEXIST)
			return false;
		if (setxattr(path, "user.kvfs.reserve.ssd", reserve[i][1],
			     strlen(reserve[i][1]), 0) < 0)
			return false;
		/* In a shared space the daemon records removals also for the
		 * remote tier. */
		if (setxattr(path, "user.kvfs.share", "1", 1, 0) < 0)
			return false;
	}
	/* Blocks of the space `d`, which is not checked, may be evicted. */
	snprintf(path, sizeof(path), "%s/d", mountpoint);
	if ((mkdir(path, 0777) < 0 && errno != EEXIST) ||
	    setxattr(path, "user.kvfs.quota.ssd", "40M", 3, 0) < 0)
		return false;
	return true;
}

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

/* Return the decoded word of a block.  A word of zeros says that nothing may be
 * found, and the first generation will be 1. */
static inline struct journal_entry journal_get(const struct journal *j,
					       unsigned writer, unsigned index)
{
	uint64_t word = atomic_load(&j->word[writer][index]);
	struct journal_entry e = {.min = (word >> 1 & 0x7fffffff) + 1,
				  .gen = word >> 32,
				  .must = word & 1};

	return e;
}

/* The directory that disk.c serves if its log is to get every word as well;
 * NULL: none. */
static const char *journal_mirror;

static inline void journal_tell(unsigned writer, unsigned index, uint64_t word)
{
	char path[512];

	if (journal_mirror == NULL)
		return;
	snprintf(path, sizeof(path), "%s/word.%u.%u.%llx", journal_mirror,
		 writer, index, (unsigned long long)word);
	access(path, F_OK);
}

static inline void journal_put(struct journal *j, unsigned writer,
			       unsigned index, struct journal_entry e)
{
	uint64_t word = e.gen << 32 | (e.min - 1) << 1 | e.must;

	atomic_store(&j->word[writer][index], word);
	journal_tell(writer, index, word);
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
	j->newest[writer][index] = KV_MAX(j->newest[writer][index], e.gen);
	journal_put(j, writer, index, e);
	return e.gen;
}

static inline void journal_save_acknowledged(struct journal *j, unsigned writer,
					     unsigned index)
{
	struct journal_entry e = journal_get(j, writer, index);

	e.min = e.gen;
	e.must = writer != JOURNAL_CHURN;
	journal_put(j, writer, index, e);
	atomic_fetch_add(&j->acknowledged, e.must);
}

static inline void journal_remove_begun(struct journal *j, unsigned writer,
					unsigned index)
{
	struct journal_entry e = journal_get(j, writer, index);

	e.must = false;
	j->unsure[writer][index] = true;
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

static inline void journal_took(struct journal_times *times, uint64_t ns)
{
	uint32_t i = atomic_fetch_add(&times->n, 1);

	if (i < JOURNAL_TIMES)
		times->us[i] = (uint32_t)(ns / 1000);
}

/* Return true if the newest daemon is still number @mount; otherwise the answer
 * of daemon @mount does not count. */
static inline bool journal_same(const struct journal *j, uint64_t mount)
{
	return atomic_load(&j->mounts) == mount;
}

/* Compare the result of a look-up (a generation, 0 if absent, or -errno) with
 * the generations that the block's word allows. */
static inline void journal_judge(struct journal *j, struct journal_entry e,
				 int64_t gen, uint64_t id)
{
	const char *verdict = NULL;

	atomic_fetch_add(&j->checked, 1);
	if (gen == -EBADMSG) {
		atomic_fetch_add(&j->damaged, 1);
		verdict = "damaged, says the daemon";
	} else if (gen < 0) {
		atomic_fetch_add(&j->wrong, 1);
		verdict = strerror((int)-gen);
	} else if (gen == 0 && e.must) {
		atomic_fetch_add(&j->lost, 1);
		verdict = "lost";
	} else if (gen > 0 && (uint64_t)gen < e.min) {
		atomic_fetch_add(&j->returned, 1);
		verdict = "returned after its removal was acknowledged";
	} else if (gen > 0 && (uint64_t)gen > e.gen) {
		atomic_fetch_add(&j->wrong, 1);
		verdict = "of a generation that was never saved";
	}
	if (verdict != NULL)
		printf("block %llx: %s; found generation %lld, allowed %llu to "
		       "%llu%s; mount %llu\n",
		       (unsigned long long)id, verdict, (long long)gen,
		       (unsigned long long)e.min, (unsigned long long)e.gen,
		       e.must ? ", must be there" : "",
		       (unsigned long long)j->mounts);
}

/* Set the block's word to the result of a look-up. */
static inline void journal_settle(struct journal *j, unsigned writer,
				  unsigned index, int64_t gen)
{
	struct journal_entry e = journal_get(j, writer, index);

	/* The block was evicted, but its eviction may not be durable: a later
	 * look-up may find the block once more. */
	if (gen == 0 && writer == JOURNAL_CHURN)
		return;
	j->unsure[writer][index] = true;
	e.must = gen > 0 && writer != JOURNAL_CHURN;
	e.min = gen > 0 ? (uint64_t)gen : e.gen + 1;
	e.gen = gen > 0 ? (uint64_t)gen : e.gen;
	journal_put(j, writer, index, e);
}

/* Forget what the journal's words say of a writer's blocks, because the store
 * was replaced, or may have lost blocks. */
static inline void journal_forget(struct journal *j, unsigned writer,
				  bool everything)
{
	for (unsigned i = 0; i < JOURNAL_ITEMS; i++) {
		struct journal_entry e = journal_get(j, writer, i);

		e.must = false;
		if (everything)
			e.min = e.gen + 1;
		journal_put(j, writer, i, e);
	}
}

/* Note that a flush was answered: removed blocks stay absent. */
static inline void journal_flushed(struct journal *j, unsigned writer)
{
	for (unsigned i = 0; i < JOURNAL_ITEMS; i++)
		j->unsure[writer][i] = false;
}

static inline void journal_rebuilt(struct journal *j, unsigned writer)
{
	for (unsigned i = 0; i < JOURNAL_ITEMS; i++) {
		struct journal_entry e = journal_get(j, writer, i);

		if (j->unsure[writer][i]) {
			e.min = e.must ? e.min : 1;
			e.gen = j->newest[writer][i];
		}
		journal_put(j, writer, i, e);
	}
}

/* Counters that identify the store and the index to which a writer's words
 * apply. */
struct journal_era {
	uint64_t stores, forgiven, rebuilt;
};

/* Note that a writer goes on with the present daemon.  Return true if its words
 * no longer apply to the store. */
static inline bool journal_begin(struct journal *j, unsigned writer,
				 struct journal_era *era)
{
	struct journal_era now = {j->stores, j->forgiven, j->rebuilt};
	bool same = memcmp(&now, era, sizeof(now)) == 0;

	if (now.rebuilt != era->rebuilt)
		journal_rebuilt(j, writer);
	if (now.stores != era->stores || now.forgiven != era->forgiven)
		journal_forget(j, writer, now.stores != era->stores);
	*era = now;
	return !same;
}

static inline void journal_fault(struct journal *j, const char *what,
				 uint64_t id)
{
	atomic_fetch_add(&j->faults, 1);
	printf("FAULT: %s, block %llx, mount %llu\n", what,
	       (unsigned long long)id, (unsigned long long)j->mounts);
}

/* Count a miss that a program reports.  The next start, and the end of the
 * test, show whether the block is lost. */
static inline void journal_missed(struct journal *j, const char *what,
				  uint64_t id)
{
	atomic_fetch_add(&j->refused, 1);
	printf("block %llx: %s; mount %llu\n", (unsigned long long)id, what,
	       (unsigned long long)j->mounts);
}

#endif
