/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chain.c - save a chain and exit: no client waits until its blocks are durable.
 *
 *   chain SOCKET ROUND save    save in one call with the second half first, or in two
 *                              calls; ROUND decides
 *   chain SOCKET ROUND         exits 1 unless every block of the chain is present
 *
 * OWNS      nothing.
 *
 * LOCKING   none: one thread.
 */
#include "tests/crash/client.h"

#define BLOCKS CLIENT_PAGES
#define HALF (BLOCKS / 2)
#define WRITER 120

static uint64_t ids[BLOCKS];
static kvfs_key keys[BLOCKS];

static void save(struct client *c, size_t first, size_t n)
{
	kvfs_meta meta[BLOCKS] = {0};
	int64_t pages[BLOCKS];
	kvfs_xfer *xfer;

	for (size_t i = 0; i < n; i++) {
		pages[i] = (int64_t)(first + i);
		meta[i].position = (uint32_t)(first + i);
		meta[i].tokens = CONTENT_TOKENS;
		meta[i].parent.len = KVFS_CHAIN;
		content_fill(client_page(c, first + i), ids[first + i], 1);
	}
	if (first > 0)
		meta[0].parent = keys[first - 1];
	client_must(kvfs_save(c->pool, c->space, keys + first, meta, n, pages,
			      NULL, &xfer),
		    "save");
	if (kvfs_xfer_wait(xfer, KVFS_SEALED, 20 * SECOND) != (long)n)
		client_must(-EIO, "seal");
	kvfs_xfer_free(xfer);
}

int main(int argc, char **argv)
{
	kvfs_query query = {.keys = keys, .n = BLOCKS};
	uint8_t states[BLOCKS];
	unsigned number;
	struct client c;
	long r = BLOCKS;

	if (argc < 3)
		return 2;
	client_open(&c, argv[1], 'a');
	number = (unsigned)atoi(argv[2]);
	for (unsigned i = 0; i < BLOCKS; i++) {
		ids[i] = content_id('a', WRITER + number, i);
		keys[i] = content_key(ids[i]);
	}
	query.space = c.space;
	if (argc == 3) {
		r = kvfs_probe(&query, 1, states);
		printf("%ld blocks\n", r);
	} else if (number % 3 == 0) {
		save(&c, 0, BLOCKS);
	} else {
		save(&c, number % 3 == 1 ? HALF : 0, HALF);
		save(&c, number % 3 == 1 ? 0 : HALF, HALF);
	}
	client_close(&c);
	return r != BLOCKS;
}
