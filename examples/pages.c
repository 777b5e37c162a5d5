/* SPDX-License-Identifier: Apache-2.0 */
/* An engine without an allocator: it reserves pages, maps the blocks of a prompt
 * there, computes and keeps those that are missing, reads all where they lie, and
 * gives the pages back.  Prompts longer than the pages are cut:
 *   cc examples/pages.c -o pages $(pkg-config --cflags --libs kvfs)
 *   ./pages /kvfs "a prompt" "a prompt that begins like the first" */
#include <kvfs.h>
#include <err.h>
#include <stdio.h>
#include <string.h>
#define TOKENS 4 /* of a block; a token is a character here */
#define PAGES 8
#define LAYOUT                                                  \
	"{\"tensors\": [{\"name\": \"kv\", \"dtype\": \"F32\"," \
	" \"shape\": [1024]}], \"tokens\": 4}"

static long check(long r, const char *what)
{
	if (r < 0)
		errx(1, "%s: %s", what, strerror((int)-r));
	return r;
}

/* Compute a block into a page of the library, and save it. */
static void compute(kvfs_pool *pool, kvfs_space *space, const kvfs_key *key,
		    const uint32_t *tokens)
{
	kvfs_pages *page;
	kvfs_xfer *xfer;
	float *kv;

	check(kvfs_pages_take(pool, 1, &page), "no page");
	kv = kvfs_pages_addr(page, 0, "kv");
	for (int i = 0; i < 1024; i++)
		kv[i] = (float)tokens[i % TOKENS];
	check(kvfs_pages_seal(page, space, key, NULL, 1, NULL, &xfer), "seal");
	check(kvfs_xfer_wait(xfer, KVFS_SEALED, KVFS_FOREVER), "save");
	kvfs_xfer_free(xfer);
	kvfs_pages_free(page);
}

static void answer(kvfs_pool *pool, kvfs_space *space, const char *prompt)
{
	uint32_t tokens[PAGES * TOKENS] = {0}, n_tokens = 0;
	kvfs_key keys[PAGES];
	kvfs_mapping *map;
	double sum = 0;
	long n, found;

	for (; prompt[n_tokens] && n_tokens < PAGES * TOKENS; n_tokens++)
		tokens[n_tokens] = (unsigned char)prompt[n_tokens];
	n = check(kvfs_key_chain(space, NULL, tokens, n_tokens, NULL, 0, keys,
				 PAGES),
		  "keys");
	if (n == 0)
		return;
	check(kvfs_map(pool, space, keys, (size_t)n, NULL, &map), "map");
	check(kvfs_map_wait(map, KVFS_FOREVER), "map");
	for (found = 0; found < n && kvfs_map_status(map, (size_t)found) == 0;
	     found++)
		;
	check(kvfs_unmap(map, KVFS_NO_STREAM), "unmap");
	for (long i = found; i < n; i++)
		compute(pool, space, &keys[i], tokens + i * TOKENS);
	/* Blocks that have a page are not copied again. */
	check(kvfs_map(pool, space, keys, (size_t)n, NULL, &map), "map");
	check(kvfs_map_wait(map, KVFS_FOREVER), "map");
	for (long i = 0; i < n; i++) {
		const float *kv = kvfs_map_addr(map, (size_t)i, "kv");

		for (int k = 0; kv && k < 1024; k++)
			sum += kv[k];
	}
	printf("%ld blocks found, %ld computed, sum %.0f\n", found, n - found,
	       sum);
	check(kvfs_unmap(map, KVFS_NO_STREAM), "unmap");
}

int main(int argc, char **argv)
{
	kvfs_session *session;
	kvfs_space *space;
	kvfs_pool *pool;

	if (argc < 3 || kvfs_open(argv[1], &session) < 0)
		errx(1, "usage: pages MOUNT PROMPT...");
	check(kvfs_space_open(session, "pages", LAYOUT, KVFS_CREATE | 0700,
			      &space),
	      "space");
	check(kvfs_pool_reserve(session, "host", space, 4, PAGES, &pool),
	      "reserve");
	for (int i = 2; i < argc; i++)
		answer(pool, space, argv[i]);
	kvfs_pool_close(pool);
	kvfs_space_close(space);
	kvfs_close(session);
	return 0;
}
