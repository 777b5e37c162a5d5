/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blocks.c - save and check blocks of space a, for the scripts in this folder.
 *
 *   blocks save SOCKET FIRST N       save, and wait until sealed
 *   blocks durable SOCKET FIRST N    save, and wait until durable
 *   blocks pin SOCKET FIRST N        pin, so that eviction spares the blocks
 *   blocks flush SOCKET              wait until the space is durable
 *   blocks check SOCKET FIRST N      acquire and compare
 *   blocks file FIRST PATH           write the block's file
 *
 * Prints counts by outcome, and how long the slowest call took.  Exits 1 if a block has
 * wrong bytes.
 *
 * OWNS      nothing.
 *
 * LOCKING   none: one thread.
 */
#include "tests/crash/client.h"

#define BATCH 8u

static unsigned done, absent, refused;
static int error; /* error of the last call that failed */
static uint64_t slowest;

static void count(int status)
{
	if (status >= 0) {
		done++;
	} else if (status == -ENOENT) {
		absent++;
	} else {
		refused++;
		error = status;
	}
}

static void save(struct client *c, unsigned first, unsigned n,
		 enum kvfs_stage stage)
{
	static const uint64_t gens[BATCH] = {1, 1, 1, 1, 1, 1, 1, 1};
	uint64_t ids[BATCH];
	kvfs_xfer *xfer;

	for (unsigned i = 0; i < n; i++)
		ids[i] = content_id('a', 0, first + i);
	client_must(client_save(c, ids, gens, n, &xfer), "save");
	if (kvfs_xfer_wait(xfer, stage, 30 * SECOND) == -ETIMEDOUT)
		client_must(-ETIMEDOUT, "save");
	for (unsigned i = 0; i < n; i++)
		count(kvfs_xfer_status(xfer, i));
	kvfs_xfer_free(xfer);
}

static void check(struct client *c, unsigned first, unsigned n)
{
	uint64_t ids[BATCH], length, gen;
	kvfs_lease *lease;

	for (unsigned i = 0; i < n; i++)
		ids[i] = content_id('a', 0, first + i);
	client_must(client_acquire(c, ids, n, &lease), "acquire");
	kvfs_lease_wait(lease, KVFS_FOREVER);
	for (unsigned i = 0; i < n; i++) {
		const void *file = kvfs_lease_file(lease, i, &length);

		count(kvfs_lease_status(lease, i));
		if (file != NULL &&
		    (content_check_file(file, length, ids[i], &gen) < 0 ||
		     gen != 1))
			exit(1);
	}
	kvfs_release(lease);
}

static void pin(struct client *c, unsigned first, unsigned n)
{
	kvfs_key keys[BATCH];
	int statuses[BATCH];

	for (unsigned i = 0; i < n; i++)
		keys[i] = content_key(content_id('a', 0, first + i));
	client_must((int)KV_MIN(kvfs_pin(c->space, keys, 0, n, statuses), 0),
		    "pin");
	for (unsigned i = 0; i < n; i++)
		count(statuses[i]);
}

static void run(struct client *c, const char *verb, unsigned first, unsigned n)
{
	uint64_t begun = kv_now_ns();

	if (strcmp(verb, "check") == 0)
		check(c, first, n);
	else if (strcmp(verb, "pin") == 0)
		pin(c, first, n);
	else if (strcmp(verb, "flush") == 0)
		count(client_flush(c));
	else
		save(c, first, n,
		     strcmp(verb, "save") == 0 ? KVFS_SEALED : KVFS_DURABLE);
	slowest = KV_MAX(slowest, kv_now_ns() - begun);
}

static int write_file(unsigned index, const char *path)
{
	static uint8_t bytes[CONTENT_MAX];
	uint64_t n = content_file(bytes, content_id('a', 0, index), 1);
	FILE *f = fopen(path, "w");

	return f == NULL || fwrite(bytes, 1, n, f) != n || fclose(f) != 0;
}

int main(int argc, char **argv)
{
	unsigned first, n;
	struct client c;

	if (argc < 3)
		return 2;
	if (strcmp(argv[1], "file") == 0)
		return write_file((unsigned)atoi(argv[2]), argv[3]);
	first = argc > 3 ? (unsigned)atoi(argv[3]) : 0;
	n = argc > 4 ? (unsigned)atoi(argv[4]) : 1;
	client_open(&c, argv[2], 'a');
	for (unsigned i = 0; i < n; i += BATCH)
		run(&c, argv[1], first + i, KV_MIN(n - i, BATCH));
	client_close(&c);
	printf("done %u absent %u refused %u slowest %llu ms %s\n", done,
	       absent, refused, (unsigned long long)slowest / 1000000,
	       error < 0 ? strerror(-error) : "");
	return 0;
}
