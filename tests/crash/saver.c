/* SPDX-License-Identifier: Apache-2.0 */
/*
 * saver.c - save and remove blocks by libkvfs until SIGTERM, and record acknowledgements.
 * After each new start of the daemon, first compare the blocks with the record.
 *
 *   saver SOCKET JOURNAL WRITER SEED [DISK]
 *
 * DISK: the directory of a disk.c, whose log also gets the journal's words.
 *
 * OWNS      the journal's words of its writer.
 *
 * INVARIANTS
 *   (1) A word is widened before the call that may change the block, and narrowed only
 *       after the daemon has answered that the change is durable.
 *   (2) A block is saved only after its last removal was answered: if it is still
 *       present, that is a fault.
 *   (3) An answer counts only if no other daemon was started since the block was saved
 *       or removed: that daemon would not know of the change.
 *
 * LOCKING   none: one thread.
 */
#include "tests/crash/client.h"
#include "tests/crash/journal.h"

#define BATCH 8
/* number of batches of unchanged blocks to compare with each daemon */
#define LOOK_AGAIN 3

static struct journal *journal;
static unsigned writer;
static uint64_t seed;
static uint64_t mount; /* number of the daemon to which requests go now */
/* number of the last daemon to which blocks were saved */
static uint64_t worked;
/* true: other writers make the daemon evict blocks of this writer */
static bool churn;
static struct journal_era era;

/* marks blocks that changed since they were last compared */
static bool touched[JOURNAL_ITEMS];
/* marks blocks that were removed, but perhaps not durably */
static bool gone[JOURNAL_ITEMS];
/* marks blocks that are sealed, but perhaps not durable */
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

/* Fill a batch with blocks that are known to be absent, or known to be present. */
static void pick(struct batch *b, bool present)
{
	unsigned at = (unsigned)client_random(&seed, JOURNAL_ITEMS);

	b->n = 0;
	for (unsigned i = 0; i < JOURNAL_ITEMS && b->n < BATCH; i++) {
		unsigned index = (at + i) % JOURNAL_ITEMS;
		struct journal_entry e = journal_get(journal, writer, index);
		bool absent = churn || journal_nothing(e) || gone[index];

		if (present ? e.must || sealed[index] : absent)
			batch_add(b, index);
	}
}

/* Flush the space: all blocks sealed and removals made so far become
 * durable. */
static void flush(struct client *c)
{
	if (client_flush(c) != 0 || !journal_same(journal, mount))
		return;
	for (unsigned i = 0; i < JOURNAL_ITEMS; i++) {
		if (sealed[i])
			journal_save_acknowledged(journal, writer, i);
		if (gone[i])
			journal_remove_acknowledged(journal, writer, i);
		sealed[i] = gone[i] = false;
	}
	journal_flushed(journal, writer);
}

static void wait_durable(struct batch *b, kvfs_xfer *xfer)
{
	if (kvfs_xfer_wait(xfer, KVFS_DURABLE, 20 * SECOND) != (long)b->n ||
	    !journal_same(journal, mount))
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
		/* A block that was sealed but never synced may be gone, because
		 * it found no room on the SSD. */
		known[i] = journal_get(journal, writer, b->index[i]).must;
		journal_remove_begun(journal, writer, b->index[i]);
		sealed[b->index[i]] = false;
		touched[b->index[i]] = true;
		keys[i] = content_key(b->ids[i]);
		statuses[i] = -EINPROGRESS;
	}
	if (kvfs_evict(c->space, keys, b->n, statuses) < 0)
		return;
	for (size_t i = 0; i < b->n; i++) {
		bool absent = statuses[i] == -ENOENT &&
			      kvfs_connected(c->session) == 1 &&
			      journal_same(journal, mount);

		gone[b->index[i]] = statuses[i] == 0 || absent;
		if (absent && known[i] && !churn)
			journal_missed(journal, "missed before it was removed",
				       b->ids[i]);
	}
}

static bool all_gone(const struct batch *b)
{
	bool all = true;

	for (size_t i = 0; i < b->n; i++)
		all &= gone[b->index[i]];
	return all;
}

static void look_at_statuses(struct batch *b, kvfs_xfer *xfer)
{
	for (size_t i = 0; i < b->n; i++) {
		int status = kvfs_xfer_status(xfer, i);

		sealed[b->index[i]] = status == 0;
		atomic_fetch_add(&journal->sealed, status == 0);
		if ((status == KVFS_PRESENT && journal_same(journal, mount)) ||
		    status == -EINPROGRESS)
			journal_fault(journal, "present, or never sealed",
				      b->ids[i]);
	}
}

static void save(struct client *c)
{
	struct batch b;
	kvfs_xfer *xfer;

	pick(&b, false);
	if (churn)
		evict(c, &b);
	if (b.n == 0 || (churn && !all_gone(&b)))
		return;
	for (size_t i = 0; i < b.n; i++) {
		gone[b.index[i]] = false;
		touched[b.index[i]] = true;
		b.gens[i] = journal_save_begun(journal, writer, b.index[i]);
	}
	client_must(client_save(c, b.ids, b.gens, b.n, &xfer), "save");
	kvfs_xfer_wait(xfer, KVFS_SEALED, 20 * SECOND);
	look_at_statuses(&b, xfer);
	switch (client_random(&seed, 4)) {
	case 0: /* evict the blocks while they are being written to SSD */
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

/* Make a snapshot of some blocks, or drop it; the flush makes that durable. */
static void snapshot(struct client *c)
{
	bool drop = journal->snapshot == SNAPSHOT_MUST;
	kvfs_key keys[BATCH];
	struct batch b;
	int r;

	pick(&b, true);
	for (size_t i = 0; i < b.n; i++)
		keys[i] = content_key(b.ids[i]);
	if (!drop && b.n == 0)
		return;
	journal->snapshot = SNAPSHOT_MAYBE;
	r = drop ? kvfs_snapshot_drop(c->space, "kept")
		 : kvfs_snapshot(c->space, "kept", keys, NULL, b.n, NULL);
	if (r == 0 && client_flush(c) == 0 && journal_same(journal, mount))
		journal->snapshot = drop ? SNAPSHOT_NEVER : SNAPSHOT_MUST;
}

/* ---- compare the daemon's blocks with the record ---- */

static void compare_snapshot(struct client *c)
{
	long n = kvfs_snapshot_keys(c->space, "kept", NULL, NULL, 0);

	if ((n < 0 && n != -ENOENT) || kvfs_connected(c->session) != 1 ||
	    !journal_same(journal, mount))
		return;
	if (n > 0 && journal->snapshot == SNAPSHOT_NEVER)
		journal_fault(journal, "a snapshot returned", 0);
	if (n <= 0 && journal->snapshot == SNAPSHOT_MUST)
		journal_fault(journal, "a snapshot is lost", 0);
	journal->snapshot = n > 0 ? SNAPSHOT_MUST : SNAPSHOT_NEVER;
}

/* Return the generation of a block, 0 if absent, or -errno; -EAGAIN: unknown. */
static int64_t generation(kvfs_lease *lease, unsigned i, uint64_t id)
{
	int status = kvfs_lease_status(lease, i);
	uint64_t length = 0, gen;
	const void *file = kvfs_lease_file(lease, i, &length);

	if (status == 0 && file != NULL)
		return content_check_file(file, length, id, &gen) < 0
			       ? -EILSEQ
			       : (int64_t)gen;
	return status == -ENOENT ? 0 : status == -EBADMSG ? status : -EAGAIN;
}

/* Read the blocks of @b.  Return false if the daemon is dead, or cannot answer
 * now. */
static bool compare(struct client *c, const struct batch *b)
{
	kvfs_lease *lease;
	bool all = true;

	if (client_acquire(c, b->ids, b->n, &lease) < 0)
		return false;
	kvfs_lease_wait(lease, KVFS_FOREVER);
	for (unsigned i = 0; i < b->n; i++) {
		int64_t gen = generation(lease, i, b->ids[i]);

		if (gen == -EAGAIN || kvfs_connected(c->session) != 1 ||
		    !journal_same(journal, mount)) {
			all = false;
			continue;
		}
		journal_judge(journal,
			      journal_get(journal, writer, b->index[i]), gen,
			      b->ids[i]);
		if (worked == mount)
			/* blocks that were saved to this daemon need not be
			 * durable yet */
			continue;
		journal_settle(journal, writer, b->index[i], gen);
		touched[b->index[i]] = false;
	}
	kvfs_release(lease);
	return all;
}

/* Check, without reading it, that every block that must be present is. */
static void probe(struct client *c)
{
	uint8_t states[JOURNAL_ITEMS];
	kvfs_key keys[JOURNAL_ITEMS];
	kvfs_query query = {c->space, keys, JOURNAL_ITEMS};

	for (unsigned i = 0; i < JOURNAL_ITEMS; i++)
		keys[i] = content_key(journal_id(writer, i));
	if (kvfs_probe(&query, 1, states) < 0 ||
	    kvfs_connected(c->session) != 1 || !journal_same(journal, mount))
		return;
	for (unsigned i = 0; i < JOURNAL_ITEMS; i++) {
		struct journal_entry e = journal_get(journal, writer, i);
		bool there = states[i] != KVFS_ABSENT;

		touched[i] |= there ? journal_nothing(e) : e.must;
	}
}

static bool compare_some(struct client *c)
{
	unsigned at = (unsigned)client_random(&seed, JOURNAL_ITEMS);
	struct batch b = {.n = 0};

	while (b.n < BATCH)
		batch_add(&b, at++ % JOURNAL_ITEMS);
	return compare(c, &b);
}

/* Compare all blocks that changed or look wrong, and a few others. */
static bool settle(struct client *c)
{
	struct batch b = {.n = 0};
	bool all = true;

	probe(c);
	if (writer == 0)
		compare_snapshot(c);
	for (unsigned i = 0; i < JOURNAL_ITEMS && all; i++) {
		if (touched[i])
			batch_add(&b, i);
		if (b.n == BATCH || (b.n && i == JOURNAL_ITEMS - 1)) {
			all = compare(c, &b);
			b.n = 0;
		}
	}
	for (unsigned n = 0; n < LOOK_AGAIN && all; n++)
		all = compare_some(c);
	return all;
}

/* Begin with a new daemon: blocks not acknowledged as durable by the old daemon
 * may be present or absent. */
static void begin(void)
{
	if (journal_begin(journal, writer, &era)) {
		memset(touched, 1, sizeof(touched));
		if (writer == 0)
			journal->snapshot = SNAPSHOT_MAYBE;
	}
	memset(gone, 0, sizeof(gone));
	memset(sealed, 0, sizeof(sealed));
}

static void work(struct client *c)
{
	/* In some rounds no block is saved: the round only reads, removes and
	 * flushes. */
	bool settled, saves = client_random(&seed, 3) != 0;

	begin();
	settled = journal->mounts == 0 || settle(c);
	if (settled)
		atomic_store(&journal->settled[writer], mount);
	worked = settled ? mount : worked;
	while (settled && !client_stop && journal_same(journal, mount) &&
	       kvfs_connected(c->session) == 1) {
		if (writer == 0 && client_random(&seed, 8) == 0)
			snapshot(c);
		else if (saves && client_random(&seed, 3) != 0)
			save(c);
		else if (saves || client_random(&seed, 8) == 0)
			evict_some(c);
		else
			compare_some(c), usleep(2000);
	}
}

int main(int argc, char **argv)
{
	struct client c;

	if (argc < 5)
		return 2;
	client_until_term();
	journal_mirror = argv[5]; /* NULL: none */
	journal = journal_open(argv[2]);
	writer = (unsigned)atoi(argv[3]);
	seed = strtoull(argv[4], NULL, 0) * JOURNAL_WRITERS + writer;
	churn = writer == JOURNAL_CHURN;
	memset(touched, 1, sizeof(touched));
	atomic_fetch_or(&journal->active, 1u << writer);
	client_open(&c, argv[1], journal_space[writer]);
	while (!client_stop) {
		mount = journal->ready;
		if (kvfs_connected(c.session) == 1 &&
		    (journal->mounts == 0 ||
		     (mount != worked && journal_same(journal, mount))))
			work(&c);
		else
			usleep(1000);
	}
	client_close(&c);
	return 0;
}
