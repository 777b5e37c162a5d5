/* SPDX-License-Identifier: Apache-2.0 */
/*
 * undo.c - remove blocks while they are being written to SSD.
 *
 *   undo SOCKET ROUND DELAY PID    save, wait DELAY microseconds, remove, sync,
 *                                  and at once kill the daemon PID
 *   undo SOCKET ROUND              exits 1 if one of the blocks is present
 *
 * OWNS      nothing.
 *
 * LOCKING   none: one thread.
 */
#include "tests/crash/client.h"

#define BLOCKS CLIENT_PAGES
#define WRITER 100

int main(int argc, char **argv)
{
	uint64_t ids[BLOCKS], gens[BLOCKS];
	uint8_t states[BLOCKS];
	kvfs_key keys[BLOCKS];
	kvfs_xfer *xfer;
	struct client c;
	long r;

	if (argc < 3)
		return 2;
	client_open(&c, argv[1], 'a');
	for (unsigned i = 0; i < BLOCKS; i++) {
		ids[i] = content_id('a', WRITER + (unsigned)atoi(argv[2]), i);
		gens[i] = 1;
		keys[i] = content_key(ids[i]);
	}
	if (argc == 3) {
		kvfs_query query = {c.space, keys, BLOCKS};

		r = kvfs_probe(&query, 1, states);
		printf("%ld blocks\n", r);
		client_close(&c);
		return r != 0;
	}
	client_must(client_save(&c, ids, gens, BLOCKS, &xfer), "save");
	r = kvfs_xfer_wait(xfer, KVFS_SEALED, 20 * SECOND);
	client_must(r == BLOCKS ? 0 : -EIO, "seal");
	usleep((useconds_t)atoi(argv[3]));
	r = kvfs_evict(c.space, keys, BLOCKS, NULL);
	client_must(r == BLOCKS ? 0 : -EIO, "evict");
	client_must(client_flush(&c), "flush");
	kill(atoi(argv[4]), SIGKILL);
	kvfs_xfer_free(xfer);
	client_close(&c);
	return 0;
}
