/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checker.c - compare a store that was just mounted with the journal.
 *
 *   checker SOCKET MOUNT JOURNAL     compare, then set the journal to the store's state
 *   checker - - JOURNAL              only print the totals
 *   checker - - JOURNAL plant        claim a generation that was never saved
 *
 * Prints how many blocks are present, and how many were acknowledged; and of these, how
 * many are lost, have wrong bytes, are reported damaged by the daemon, or are present
 * although removed.  Exits 1 if one of the last four numbers is not 0.
 *
 * OWNS      nothing.
 *
 * INVARIANTS
 *   (1) Every block is read in two ways, by libkvfs and by the mount, and both must
 *       give the same result.
 *
 * LOCKING   none: one thread.
 */
#include "tests/crash/client.h"
#include "tests/crash/journal.h"

#define BATCH 16
_Static_assert(JOURNAL_ITEMS % BATCH == 0, "whole batches");

static unsigned present, must;
static uint8_t bytes[CONTENT_MAX];

/* Read the file of block @id.  Return its length, 0 if absent, or -errno. */
static ssize_t read_file(const char *mount, uint64_t id)
{
	char path[512];
	ssize_t n, total = 0;
	int fd;

	content_path(mount, id, path);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT ? 0 : -errno;
	do {
		n = pread(fd, bytes + total, sizeof(bytes) - (size_t)total,
			  total);
		if (n < 0)
			total = -errno;
		else
			total += n;
	} while (n > 0);
	close(fd);
	return total;
}

/* Return the generation of a block, 0 if absent (@length 0), or -errno. */
static int64_t generation(const void *file, int64_t length, uint64_t id)
{
	uint64_t gen;

	if (length <= 0)
		return length;
	if (content_check_file(file, (uint64_t)length, id, &gen) < 0)
		return -EILSEQ;
	return (int64_t)gen;
}

static int64_t generation_leased(kvfs_lease *lease, unsigned i, uint64_t id)
{
	int status = kvfs_lease_status(lease, i);
	uint64_t length = 0;
	const void *file = kvfs_lease_file(lease, i, &length);

	if (status != 0)
		return status == -ENOENT ? 0 : status;
	return generation(file, (int64_t)length, id);
}

static void check_block(struct journal *j, const char *mount, unsigned writer,
			unsigned index, int64_t gen)
{
	uint64_t id = journal_id(writer, index);
	int64_t by_mount = generation(bytes, read_file(mount, id), id);
	struct journal_entry e = journal_get(j, writer, index);

	present += gen > 0;
	must += e.must;
	journal_judge(j, e, gen, id);
	if (by_mount != gen && gen >= 0) {
		atomic_fetch_add(&j->wrong, 1);
		printf("block %llx: %lld by the mount, %lld by libkvfs\n",
		       (unsigned long long)id, (long long)by_mount,
		       (long long)gen);
	}
	journal_settle(j, writer, index, gen);
}

static void lease_all(struct client *c, const uint64_t *ids, unsigned n,
		      int64_t *ret_gens)
{
	kvfs_lease *lease;

	client_must(client_acquire(c, ids, n, &lease), "acquire");
	kvfs_lease_wait(lease, KVFS_FOREVER);
	for (unsigned i = 0; i < n; i++)
		ret_gens[i] = generation_leased(lease, i, ids[i]);
	kvfs_release(lease);
}

static void check_writer(struct journal *j, const char *socket,
			 const char *mount, unsigned writer)
{
	uint64_t ids[BATCH];
	int64_t gens[BATCH];
	struct client c;

	client_open(&c, socket, journal_space[writer]);
	for (unsigned first = 0; first < JOURNAL_ITEMS; first += BATCH) {
		for (unsigned i = 0; i < BATCH; i++)
			ids[i] = journal_id(writer, first + i);
		lease_all(&c, ids, BATCH, gens);
		for (unsigned i = 0; i < BATCH; i++) {
			/* Try again: DRAM has no room for all blocks at
			 * once. */
			for (int try = 0; try < 500 && gens[i] == -ENOSPC;
			     try++)
				lease_all(&c, ids + i, 1, gens + i);
			check_block(j, mount, writer, first + i, gens[i]);
		}
	}
	client_close(&c);
}

static void plant(struct journal *j)
{
	for (unsigned n = 0; n < JOURNAL_WRITERS * JOURNAL_ITEMS; n++) {
		unsigned writer = n / JOURNAL_ITEMS, i = n % JOURNAL_ITEMS;
		struct journal_entry e = journal_get(j, writer, i);

		if (!e.must)
			continue;
		e.min = ++e.gen;
		journal_put(j, writer, i, e);
		return;
	}
}

int main(int argc, char **argv)
{
	struct journal *j;

	if (argc < 4)
		return 2;
	j = journal_open(argv[3]);
	if (argc == 5) {
		plant(j);
		return 0;
	}
	if (strcmp(argv[1], "-") == 0) {
		printf("sealed %llu acknowledged %llu removed %llu read %llu "
		       "faults %llu\n",
		       (unsigned long long)j->sealed,
		       (unsigned long long)j->acknowledged,
		       (unsigned long long)j->removed,
		       (unsigned long long)j->read,
		       (unsigned long long)j->faults);
		return j->faults != 0;
	}
	j->lost = j->wrong = j->damaged = j->returned = 0;
	for (unsigned i = 0; i < JOURNAL_WRITERS; i++)
		check_writer(j, argv[1], argv[2], i);
	printf("present %u acknowledged %u lost %u wrong %u damaged %u "
	       "returned %u\n",
	       present, must, (unsigned)j->lost, (unsigned)j->wrong,
	       (unsigned)j->damaged, (unsigned)j->returned);
	return j->lost + j->wrong + j->damaged + j->returned != 0;
}
