/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine.c - an engine that is killed, and an engine whose daemon is killed.
 *
 *   engine hold SOCKET ROUND      hold leases, with saves and look-ups under way, until
 *                                 killed; print a line when all have begun
 *   engine read SOCKET            reread leased blocks all the time, with or without a
 *                                 daemon; print a line after each new lease
 *
 * OWNS      its client.
 *
 * LOCKING   none: one thread.
 */
#include "tests/crash/client.h"

#define BLOCKS 64u /* number of blocks, which the test's script has saved */
#define LEASES 8
#define SAVED 8

static void ids_from(uint64_t *ids, unsigned writer, unsigned first, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		ids[i] = content_id('a', writer, first + i);
}

static kvfs_lease *lease_all(struct client *c, unsigned n)
{
	uint64_t ids[BLOCKS];
	kvfs_lease *lease;

	ids_from(ids, 0, 0, n);
	client_must(client_acquire(c, ids, n, &lease), "acquire");
	return lease;
}

static void hold(struct client *c, unsigned round)
{
	static const uint64_t gens[SAVED] = {1, 1, 1, 1, 1, 1, 1, 1};
	uint64_t ids[SAVED];
	kvfs_lease *lease;
	kvfs_xfer *xfer;
	long held = 0;

	for (unsigned i = 0; i < LEASES; i++)
		held += kvfs_lease_wait(lease_all(c, 16), KVFS_FOREVER);
	printf("holds %ld\n", held);
	for (unsigned n = 0; !client_stop; n += SAVED) {
		/* Look up blocks that no client saves, so that these look-ups
		 * never end. */
		ids_from(ids, 1 + round, n % 4096, SAVED);
		client_must(client_save(c, ids, gens, SAVED, &xfer), "save");
		kvfs_xfer_wait(xfer, KVFS_COPIED, KVFS_FOREVER);
		kvfs_xfer_free(xfer);
		/* The segments of the blocks stay mapped after the lease has
		 * ended. */
		client_must(client_acquire(c, ids, SAVED, &lease), "acquire");
		kvfs_lease_wait(lease, KVFS_FOREVER);
		kvfs_release(lease);
		usleep(5000);
		if (n % (8 * SAVED) == 0)
			(void)lease_all(c, 4);
	}
}

static void look(kvfs_lease *lease, const uint64_t *ids,
		 const void *const *files, uint64_t length)
{
	uint64_t gen;

	for (unsigned i = 0; i < BLOCKS; i++) {
		int status = kvfs_lease_status(lease, i);

		if (files[i] != NULL &&
		    (content_check_file(files[i], length, ids[i], &gen) < 0 ||
		     gen != 1 || (status != 0 && status != -ESTALE)))
			exit(1);
	}
}

/* Return the blocks' addresses in @files, and the number of blocks if all are
 * leased, else 0. */
static long pointers(kvfs_lease *lease, const void **files,
		     uint64_t *ret_length)
{
	long held = kvfs_lease_wait(lease, KVFS_FOREVER);

	for (unsigned i = 0; i < BLOCKS; i++)
		files[i] = kvfs_lease_file(lease, i, ret_length);
	return held == BLOCKS ? held : 0;
}

static void read_on(struct client *c)
{
	const void *files[BLOCKS];
	uint64_t ids[BLOCKS], length = 0, looks = 0;
	kvfs_lease *lease = lease_all(c, BLOCKS), *next;
	/* true: the daemon that granted the lease has ended */
	bool stale = false;

	ids_from(ids, 0, 0, BLOCKS);
	while (!client_stop && pointers(lease, files, &length) == 0) {
		kvfs_release(lease);
		usleep(2000);
		lease = lease_all(c, BLOCKS);
	}
	printf("leased\n");
	while (!client_stop) {
		const void *fresh[BLOCKS];

		look(lease, ids, files, length);
		looks++;
		stale |= kvfs_connected(c->session) != 1;
		if (!stale)
			continue;
		/* Hold the old lease and reread its blocks until there is a new
		 * lease. */
		next = lease_all(c, BLOCKS);
		if (pointers(next, fresh, &length) == 0) {
			kvfs_release(next);
			usleep(2000);
			continue;
		}
		kvfs_release(lease);
		lease = next;
		stale = false;
		memcpy(files, fresh, sizeof(files));
		printf("leased\n");
	}
	kvfs_release(lease);
	printf("looked %llu times\n", (unsigned long long)looks);
}

int main(int argc, char **argv)
{
	struct client c;

	if (argc < 3)
		return 2;
	client_until_term();
	client_open(&c, argv[2], 'a');
	if (strcmp(argv[1], "hold") == 0)
		hold(&c, argc > 3 ? (unsigned)atoi(argv[3]) : 0);
	else
		read_on(&c);
	client_close(&c);
	return 0;
}
