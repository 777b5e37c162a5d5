/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reader.c - hold leases of blocks and reread their bytes in place until SIGTERM, with or
 * without a daemon.  The reader leases from each new daemon, and only then releases its
 * old leases.
 *
 *   reader SOCKET JOURNAL SEED
 *
 * OWNS      its session, which it never opens again.
 *
 * INVARIANTS
 *   (1) A leased block has the bytes of one generation until it is released, even after
 *       its removal, and after its daemon's death.
 *   (2) The journal allowed that generation at some moment between the request and the
 *       answer.
 *
 * LOCKING   none: one thread.
 */
#include "tests/crash/client.h"
#include "tests/crash/journal.h"

#define HELD 4
#define BATCH 12
#define SPACES 4

struct held {
	kvfs_lease *lease; /* NULL: no blocks are leased yet */
	uint64_t mount;	   /* number of the daemon that granted the lease */
	unsigned n;
	struct {
		const void *file;
		uint64_t length, id, gen;
	} block[BATCH];
};

static struct journal *journal;
static kvfs_session *session;
static kvfs_space *spaces[SPACES];
static const char letters[SPACES] = {'e', 'b', 'd', 'c'};
static uint64_t seed;
static uint64_t answered; /* number of the last daemon that answered */

static kvfs_space *space_of(unsigned writer)
{
	for (unsigned i = 0; i < SPACES; i++)
		if (letters[i] == journal_space[writer])
			return spaces[i];
	return NULL;
}

static bool same_entry(struct journal_entry a, struct journal_entry b)
{
	return a.min == b.min && a.gen == b.gen && a.must == b.must;
}

/* Return true if the answer to a request came from daemon @mount, and @writer
 * has compared its blocks with that daemon's. */
static bool certain(unsigned writer, uint64_t mount)
{
	return kvfs_connected(session) == 1 && journal_same(journal, mount) &&
	       journal->settled[writer] == mount;
}

/* Check the bytes of a newly leased block, and note their generation. */
static void meet(struct held *held, uint64_t id, const void *file,
		 uint64_t length)
{
	unsigned i = held->n;

	held->block[i].file = file;
	held->block[i].length = length;
	held->block[i].id = id;
	if (content_check_file(file, length, id, &held->block[i].gen) < 0)
		journal_fault(journal, "other bytes", id);
	else
		held->n++;
}

static void check_entry(const struct held *held, unsigned writer,
			unsigned index, struct journal_entry before, int status)
{
	struct journal_entry after = journal_get(journal, writer, index);
	uint64_t id = journal_id(writer, index), gen;

	if (status == -EBADMSG)
		journal_fault(journal, "damaged", id);
	if (!certain(writer, held->mount))
		return;
	if (status == -ENOENT && before.must && same_entry(before, after))
		journal_missed(journal, "missed while the daemon runs", id);
	if (status != 0 || held->n == 0)
		return;
	gen = held->block[held->n - 1].gen;
	if (gen < before.min || gen > after.gen)
		journal_fault(journal, "a generation that was removed", id);
}

static void connected_again(uint64_t mount)
{
	if (mount == answered || !journal_same(journal, mount) ||
	    kvfs_connected(session) != 1)
		return;
	if (answered != 0)
		journal_took(&journal->reconnect,
			     kv_now_ns() - journal->ready_ns);
	answered = mount;
}

/* Lease some blocks of @writer.  Return false if no daemon answers. */
static bool lease(struct held *held, unsigned writer)
{
	unsigned at = (unsigned)client_random(&seed, JOURNAL_ITEMS);
	kvfs_query query = {space_of(writer), (kvfs_key[BATCH]){}, BATCH};
	kvfs_key *keys = (kvfs_key *)query.keys;
	struct journal_entry before[BATCH];
	bool any = false;

	memset(held, 0, sizeof(*held));
	held->mount = journal->ready;
	for (unsigned i = 0; i < BATCH; i++) {
		unsigned index = (at + i) % JOURNAL_ITEMS;

		keys[i] = content_key(journal_id(writer, index));
		before[i] = journal_get(journal, writer, index);
	}
	if (kvfs_acquire(&query, 1, KVFS_OPTS(.deadline = 5 * SECOND),
			 &held->lease) < 0)
		return false;
	kvfs_lease_wait(held->lease, KVFS_FOREVER);
	for (unsigned i = 0; i < BATCH; i++) {
		unsigned index = (at + i) % JOURNAL_ITEMS;
		int status = kvfs_lease_status(held->lease, i);
		uint64_t length = 0;
		const void *file = kvfs_lease_file(held->lease, i, &length);

		if (file != NULL)
			meet(held, journal_id(writer, index), file, length);
		if (status != 0 || file != NULL)
			check_entry(held, writer, index, before[i], status);
		any |= status == 0 || status == -ENOENT;
	}
	if (any)
		connected_again(held->mount);
	return any;
}

static void reread(const struct held *held)
{
	uint64_t gen;

	for (unsigned i = 0; i < held->n; i++)
		if (content_check_file(held->block[i].file,
				       held->block[i].length, held->block[i].id,
				       &gen) < 0 ||
		    gen != held->block[i].gen)
			journal_fault(journal, "leased bytes changed",
				      held->block[i].id);
	atomic_fetch_add(&journal->pointers, held->n);
}

/* Replace a lease; the old lease is kept until there is a new one. */
static void replace(struct held *held)
{
	struct held next;
	/* Lease from the last writer only with a mounted daemon, which has more
	 * DRAM for that writer's blocks of many sizes. */
	bool mounted = journal->mounted == journal->mounts;
	unsigned writer = (unsigned)client_random(
		&seed, JOURNAL_WRITERS - (mounted ? 0 : 1));

	if (lease(&next, writer)) {
		kvfs_release(held->lease);
		*held = next;
	} else if (next.lease != NULL) {
		kvfs_release(next.lease);
	}
}

static void open_space(unsigned i)
{
	const char name[2] = {letters[i], '\0'};
	char layout[256];
	int r;

	content_layout_text(content_payload(content_id(letters[i], 0, 0), 0),
			    layout);
	do
		r = kvfs_space_open(session, name,
				    letters[i] == 'c' ? NULL : layout,
				    KVFS_CREATE | 0777, &spaces[i]);
	while (r == -ENOTCONN && !client_stop && usleep(1000) == 0);
	client_must(r, "space");
}

static void open_all(const char *path)
{
	client_must(kvfs_open(path, &session), "session");
	for (unsigned i = 0; i < SPACES; i++)
		open_space(i);
}

int main(int argc, char **argv)
{
	struct held held[HELD] = {{0}};

	if (argc != 4)
		return 2;
	client_until_term();
	journal = journal_open(argv[2]);
	seed = strtoull(argv[3], NULL, 0) * 1000003;
	while (!client_stop && journal->ready == 0)
		usleep(1000);
	open_all(argv[1]);
	while (!client_stop) {
		for (unsigned i = 0; i < HELD; i++) {
			reread(&held[i]);
			if (held[i].mount != journal->ready ||
			    client_random(&seed, 8) == 0)
				replace(&held[i]);
			usleep(2000);
		}
	}
	for (unsigned i = 0; i < HELD; i++)
		kvfs_release(held[i].lease);
	for (unsigned i = 0; i < SPACES; i++)
		kvfs_space_close(spaces[i]);
	kvfs_close(session);
	return 0;
}
