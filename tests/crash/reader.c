/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reader.c - reads blocks by libkvfs and by the mount until it is told to stop:
 * every byte must be that of a generation which the journal allows.
 *
 *   reader SOCKET MOUNT JOURNAL SEED
 *
 * OWNS      nothing.
 *
 * INVARIANTS
 *   (1) What is allowed is what the journal said at some moment of the read:
 *       from the lowest generation before it to the highest after it.
 *
 * LOCKING   none: one thread.
 */
#include "tests/crash/client.h"
#include "tests/crash/journal.h"

#define BATCH 16

static struct journal *journal;
static uint64_t seed;
static uint8_t bytes[CONTENT_MAX];

static bool same_entry(struct journal_entry a, struct journal_entry b)
{
	return a.min == b.min && a.gen == b.gen && a.must == b.must;
}

static void check(const void *file, uint64_t length, unsigned writer,
		  unsigned index, struct journal_entry before)
{
	uint64_t id = journal_id(writer, index), gen;
	struct journal_entry after;

	if (content_check_file(file, length, id, &gen) < 0) {
		journal_fault(journal, "other bytes", id);
		return;
	}
	after = journal_get(journal, writer, index);
	if (gen < before.min || gen > after.gen)
		journal_fault(journal, "a generation that was removed", id);
	atomic_fetch_add(&journal->read, 1);
}

/* It was there all the time, and was not found: again, to see whether it is
 * the daemon that has just died. */
static void check_miss(struct client *c, unsigned writer, unsigned index,
		       struct journal_entry before)
{
	uint64_t id = journal_id(writer, index);
	kvfs_lease *lease;
	int status;

	usleep(200000);
	if (client_acquire(c, &id, 1, &lease) < 0)
		return;
	kvfs_lease_wait(lease, KVFS_FOREVER);
	status = kvfs_lease_status(lease, 0);
	kvfs_release(lease);
	if (status == -ENOENT && kvfs_connected(c->session) == 1 &&
	    same_entry(before, journal_get(journal, writer, index)))
		journal_fault(journal, "lost while the daemon runs", id);
}

static void read_leased(struct client *c, unsigned writer)
{
	unsigned at = (unsigned)client_random(&seed, JOURNAL_ITEMS);
	struct journal_entry before[BATCH];
	uint64_t ids[BATCH], length;
	kvfs_lease *lease;

	for (unsigned i = 0; i < BATCH; i++) {
		ids[i] = journal_id(writer, (at + i) % JOURNAL_ITEMS);
		before[i] =
			journal_get(journal, writer, (at + i) % JOURNAL_ITEMS);
	}
	if (client_acquire(c, ids, BATCH, &lease) < 0)
		return;
	kvfs_lease_wait(lease, KVFS_FOREVER);
	for (unsigned i = 0; i < BATCH; i++) {
		unsigned index = (at + i) % JOURNAL_ITEMS;
		const void *file = kvfs_lease_file(lease, i, &length);

		if (file != NULL)
			check(file, length, writer, index, before[i]);
		else if (kvfs_lease_status(lease, i) == -EBADMSG)
			journal_fault(journal, "damaged", ids[i]);
		else if (kvfs_lease_status(lease, i) == -ENOENT &&
			 before[i].must &&
			 same_entry(before[i],
				    journal_get(journal, writer, index)))
			check_miss(c, writer, index, before[i]);
	}
	kvfs_release(lease);
}

static void read_file(const char *mount, unsigned writer)
{
	unsigned index = (unsigned)client_random(&seed, JOURNAL_ITEMS);
	struct journal_entry before = journal_get(journal, writer, index);
	ssize_t n, total = 0;
	char path[512];
	int fd;

	content_path(mount, journal_id(writer, index), path);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	do {
		n = pread(fd, bytes + total, sizeof(bytes) - (size_t)total,
			  total);
		total += KV_MAX(n, 0);
	} while (n > 0);
	close(fd);
	if (n == 0)
		check(bytes, (uint64_t)total, writer, index, before);
	else if (errno == EBADMSG)
		journal_fault(journal, "damaged", journal_id(writer, index));
}

int main(int argc, char **argv)
{
	struct client spaces[JOURNAL_WRITERS];

	if (argc != 5)
		return 2;
	client_until_term();
	journal = journal_open(argv[3]);
	seed = strtoull(argv[4], NULL, 0) * 1000003;
	for (unsigned i = 0; i < JOURNAL_WRITERS; i++)
		client_open(&spaces[i], argv[1], journal_space[i]);
	while (!client_stop) {
		unsigned writer =
			(unsigned)client_random(&seed, JOURNAL_WRITERS);

		if (client_random(&seed, 8) == 0)
			read_leased(&spaces[writer], writer);
		else
			read_file(argv[2], writer);
		if (kvfs_connected(spaces[writer].session) != 1)
			usleep(10000);
	}
	for (unsigned i = 0; i < JOURNAL_WRITERS; i++)
		client_close(&spaces[i]);
	return 0;
}
