/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flood - two tenants of one daemon, for flood.sh.
 *
 *   flood MOUNT SPACE save                 save the working set
 *   flood MOUNT SPACE replay [STEP]        use the working set repeatedly; before
 *       each use wait until STEP more blocks were sealed, by any client
 *   flood MOUNT SPACE flood                save new blocks until killed
 *
 * replay prints "HITS of ASKED": blocks in the prefix that could be leased.  Missing
 * blocks are saved again.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/kvfs.h"

#define CHAINS 24u
#define DEPTH 16u
#define ROUNDS 3u
#define BYTES 131072u
#define SECOND 1000000000ull
#define LAYOUT \
	"{\"tensors\":[{\"name\":\"k\",\"dtype\":\"U8\",\"shape\":[131072]}]}"

static kvfs_session *session;
static kvfs_space *space;
static kvfs_pool *pool;
static uint8_t memory[DEPTH * BYTES];
static const char *mount;

static void check(long r, const char *what)
{
	if (r >= 0)
		return;
	fprintf(stderr, "flood: %s: %s\n", what, strerror((int)-r));
	exit(1);
}

static void begin(const char *name)
{
	const kvfs_view view = {"k", memory, BYTES, BYTES, 1, 0};
	kvfs_pool_desc desc = {.size = sizeof(desc),
			       .device = "host",
			       .views = &view,
			       .n_views = 1,
			       .pages = DEPTH,
			       .pages_per_block = 1};

	check(kvfs_open(mount, &session), "open");
	check(kvfs_space_open(session, name, LAYOUT, KVFS_CREATE, &space),
	      "space");
	desc.space = space;
	check(kvfs_pool_register(session, &desc, &pool), "pool");
}

static void keys_of(uint32_t chain, kvfs_key keys[DEPTH])
{
	uint32_t name[4] = {0, chain, 0, 7};

	for (uint32_t i = 0; i < DEPTH; i++) {
		name[0] = chain * 31 + i;
		name[2] = i;
		check(kvfs_key_set(name, sizeof(name), &keys[i]), "key");
	}
}

/* Save blocks.  Return true if the daemon took every block. */
static int save(const kvfs_key keys[DEPTH])
{
	int64_t pages[DEPTH];
	kvfs_xfer *xfer;
	int all = 1;

	for (uint32_t i = 0; i < DEPTH; i++)
		pages[i] = i;
	check(kvfs_save(pool, space, keys, NULL, DEPTH, pages, NULL, &xfer),
	      "save");
	kvfs_xfer_wait(xfer, KVFS_SEALED, 60 * SECOND);
	for (uint32_t i = 0; i < DEPTH; i++)
		all = all && kvfs_xfer_status(xfer, i) >= 0;
	kvfs_xfer_free(xfer);
	return all;
}

static uint32_t use(const kvfs_key keys[DEPTH])
{
	const kvfs_query query = {space, keys, DEPTH};
	kvfs_lease *lease;
	uint32_t hits = 0;

	check(kvfs_acquire(&query, 1, KVFS_OPTS(.deadline = 60 * SECOND),
			   &lease),
	      "acquire");
	kvfs_lease_wait(lease, 60 * SECOND);
	while (hits < DEPTH && kvfs_lease_status(lease, hits) == 0)
		hits++;
	kvfs_release(lease);
	return hits;
}

/* Return how many blocks all clients have sealed so far. */
static unsigned long sealed(void)
{
	unsigned long n = 0;
	char path[256], line[256];
	FILE *f;

	snprintf(path, sizeof(path), "%s/.kvfs/metrics", mount);
	f = fopen(path, "re");
	check(f ? 0 : -5, "metrics");
	while (fgets(line, sizeof(line), f))
		if (sscanf(line, "kvfs_sealed_total %lu", &n) == 1)
			break;
	fclose(f);
	return n;
}

static void save_all(void)
{
	kvfs_key keys[DEPTH];
	kvfs_xfer *xfer;

	for (uint32_t i = 0; i < CHAINS; i++) {
		keys_of(i, keys);
		while (!save(keys))
			usleep(1000);
	}
	check(kvfs_flush(space, KVFS_DURABLE, NULL, &xfer), "flush");
	kvfs_xfer_wait(xfer, KVFS_DURABLE, 60 * SECOND);
	kvfs_xfer_free(xfer);
}

static void replay(unsigned long step)
{
	unsigned long hits = 0, until = sealed() + step;
	kvfs_key keys[DEPTH];

	for (uint32_t i = 0; i < CHAINS * ROUNDS; i++) {
		uint32_t got;

		for (int wait = 0; step && sealed() < until; wait++) {
			check(wait < 60000 ? 0 : -110, "no flood");
			usleep(1000);
		}
		until = sealed() + step;
		keys_of(i % CHAINS, keys);
		got = use(keys);
		if (got < DEPTH)
			save(keys);
		hits += got;
	}
	printf("%lu of %u\n", hits, CHAINS * ROUNDS * DEPTH);
}

static void flood(void)
{
	kvfs_key keys[DEPTH];

	for (uint32_t chain = 0;; chain++) {
		keys_of(chain, keys);
		if (!save(keys))
			usleep(1000);
	}
}

int main(int argc, char **argv)
{
	if (argc < 4)
		return 2;
	mount = argv[1];
	begin(argv[2]);
	if (strcmp(argv[3], "save") == 0)
		save_all();
	else if (strcmp(argv[3], "replay") == 0)
		replay(argc > 4 ? strtoul(argv[4], NULL, 10) : 0);
	else
		flood();
	kvfs_pool_close(pool);
	kvfs_space_close(space);
	kvfs_close(session);
	return 0;
}
