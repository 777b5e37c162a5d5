/* SPDX-License-Identifier: Apache-2.0 */
/*
 * saver.c - saves and removes blocks by libkvfs until it is told to stop, and
 * writes down what was acknowledged.
 *
 *   saver SOCKET JOURNAL WRITER SEED
 *
 * OWNS      the journal's words of its writer.
 *
 * INVARIANTS
 *   (1) A word is widened before the call that may change the block, and
 *       narrowed only after the daemon has answered that it is durable.
 *   (2) A block is saved only when its last removal was answered: that it is
 *       still present is a fault.
 *
 * LOCKING   none: one thread.
 */
#include "tests/crash/client.h"
#include "tests/crash/journal.h"

#define BATCH 8

static struct journal *journal;
static unsigned writer;
static uint64_t seed;

/* Removed, but not yet known to be durably so. */
static bool gone[JOURNAL_ITEMS];
/* Sealed, but not yet known to be durable. */
static bool sealed[JOURNAL_ITEMS];

struct batch {
	unsigned index[BATCH];
	uint64_t ids[BATCH], gens[BATCH];
	size_t n;
};

static void batch_add(struct batch *b, unsigned index)
{
	b->index[b->n] = index;
	b->ids[b->n++] = journal_id(writer, index);
}

/* Blocks that are known to be absent, or known to be present. */
static void pick(struct batch *b, bool present)
{
	unsigned at = (unsigned)client_random(&seed, JOURNAL_ITEMS);

	b->n = 0;
	for (unsigned i = 0; i < JOURNAL_ITEMS && b->n < BATCH; i++) {
		unsigned index = (at + i) % JOURNAL_ITEMS;
		struct journal_entry e = journal_get(journal, writer, index);
		bool absent = journal_nothing(e) || gone[index];

		if (present ? e.must || sealed[index] : absent)
			batch_add(b, index);
	}
}

/* Everything sealed and removed so far is durable. */
static void flush(struct client *c)
{
	if (client_flush(c) != 0)
		return;
	for (unsigned i = 0; i < JOURNAL_ITEMS; i++) {
		if (sealed[i])
			journal_save_acknowledged(journal, writer, i);
		if (gone[i])
			journal_remove_acknowledged(journal, writer, i);
		sealed[i] = gone[i] = false;
	}
}

static void wait_durable(struct batch *b, kvfs_xfer *xfer)
{
	if (kvfs_xfer_wait(xfer, KVFS_DURABLE, 20 * SECOND) != (long)b->n)
		return;
	for (size_t i = 0; i < b->n; i++) {
		if (kvfs_xfer_status(xfer, i) != 0 || !sealed[b->index[i]])
			continue;
		journal_save_acknowledged(journal, writer, b->index[i]);
		sealed[b->index[i]] = false;
	}
}

static void evict(struct client *c, struct batch *b)
{
	int statuses[BATCH];
	kvfs_key keys[BATCH];
	bool known[BATCH];

	for (size_t i = 0; i < b->n; i++) {
		known[i] = sealed[b->index[i]] ||
			   journal_get(journal, writer, b->index[i]).must;
		journal_remove_begun(journal, writer, b->index[i]);
		sealed[b->index[i]] = false;
		keys[i] = content_key(b->ids[i]);
		statuses[i] = -EINPROGRESS;
	}
	if (kvfs_evict(c->space, keys, b->n, statuses) < 0)
		return;
	for (size_t i = 0; i < b->n; i++) {
		bool absent = statuses[i] == -ENOENT &&
			      kvfs_connected(c->session) == 1;

		gone[b->index[i]] = statuses[i] == 0 || absent;
		if (absent && known[i])
			journal_fault(journal, "lost before it was removed",
				      b->ids[i]);
	}
}

static void save(struct client *c)
{
	struct batch b;
	kvfs_xfer *xfer;

	pick(&b, false);
	if (b.n == 0)
		return;
	for (size_t i = 0; i < b.n; i++) {
		gone[b.index[i]] = false;
		b.gens[i] = journal_save_begun(journal, writer, b.index[i]);
	}
	client_must(client_save(c, b.ids, b.gens, b.n, &xfer), "save");
	kvfs_xfer_wait(xfer, KVFS_SEALED, 20 * SECOND);
	for (size_t i = 0; i < b.n; i++) {
		int status = kvfs_xfer_status(xfer, i);

		sealed[b.index[i]] = status == 0;
		atomic_fetch_add(&journal->sealed, status == 0);
		if (status == KVFS_PRESENT || status == -EINPROGRESS)
			journal_fault(journal, "present, or never sealed",
				      b.ids[i]);
	}
	switch (client_random(&seed, 4)) {
	case 0: /* while they are on their way to SSD */
		usleep((useconds_t)client_random(&seed, 10000));
		evict(c, &b);
		flush(c);
		break;
	case 1:
		flush(c);
		break;
	case 2:
		wait_durable(&b, xfer);
	}
	kvfs_xfer_free(xfer);
}

static void evict_some(struct client *c)
{
	struct batch b;

	pick(&b, true);
	b.n = (size_t)client_random(&seed, (long)b.n + 1);
	if (b.n == 0)
		return;
	evict(c, &b);
	if (client_random(&seed, 2) == 0)
		flush(c);
}

int main(int argc, char **argv)
{
	struct client c;

	if (argc != 5)
		return 2;
	client_until_term();
	journal = journal_open(argv[2]);
	writer = (unsigned)atoi(argv[3]);
	seed = strtoull(argv[4], NULL, 0) * JOURNAL_WRITERS + writer;
	client_open(&c, argv[1], journal_space[writer]);
	while (!client_stop) {
		if (client_random(&seed, 3) != 0)
			save(&c);
		else
			evict_some(&c);
		if (kvfs_connected(c.session) != 1)
			usleep(10000);
	}
	client_close(&c);
	return 0;
}
