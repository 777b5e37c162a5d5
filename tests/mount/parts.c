/* SPDX-License-Identifier: Apache-2.0 */
/*
 * parts.c - a load that is queued while the daemon still reads its blocks from SSD: each
 * block is either copied in full with status 0, or its pages stay untouched.
 *
 *     parts saves MOUNT          save BLOCKS durable blocks
 *     parts loads MOUNT          all blocks are copied
 *     parts cancels MOUNT        cancel the load when its first block is copied
 *     parts gives_up MOUNT       cancel the lease when the first block is copied
 *     parts forks MOUNT          a child that exits meanwhile changes nothing
 *     parts dies MOUNT DAEMON    kill the daemon when the first block is copied
 *     parts closes MOUNT         close the pool when the first block is copied
 *
 * OWNS      its session, and the space "parts".
 *
 * LOCKING   none: one thread.
 */
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/kvfs.h"

#define BLOCK (1u << 20)
#define BLOCKS 128
#define UNTOUCHED 251 /* no block is filled with this */
#define LAYOUT                                                                 \
	"{\"tensors\":[{\"name\":\"k\",\"dtype\":\"U8\",\"shape\":[1048576]}]" \
	"}"

static uint8_t pages[BLOCKS][BLOCK];
static kvfs_session *session;
static kvfs_space *space;
static kvfs_pool *pool;
static kvfs_key keys[BLOCKS];
static int64_t numbers[BLOCKS];

static void must(bool condition, const char *what)
{
	if (condition)
		return;
	fprintf(stderr, "parts: %s\n", what);
	exit(1);
}

static bool is_filled(int i, int with)
{
	return pages[i][0] == with &&
	       memcmp(pages[i], pages[i] + 1, BLOCK - 1) == 0;
}

static void enter(const char *mount)
{
	kvfs_view view = {"k", pages, BLOCK, BLOCK, 1, 0};
	kvfs_pool_desc desc = {.size = sizeof(desc),
			       .device = "host",
			       .views = &view,
			       .n_views = 1,
			       .pages = BLOCKS,
			       .pages_per_block = 1};

	for (int i = 0; i < BLOCKS; i++) {
		keys[i] = (kvfs_key){.bytes = {(uint8_t)i}, .len = 16};
		numbers[i] = i;
	}
	must(kvfs_open(mount, &session) == 0, "open");
	must(kvfs_space_open(session, "parts", LAYOUT, KVFS_CREATE, &space) ==
		     0,
	     "space");
	desc.space = space;
	must(kvfs_pool_register(session, &desc, &pool) == 0, "pool");
}

static void saves(void)
{
	kvfs_xfer *save;

	for (int i = 0; i < BLOCKS; i++)
		memset(pages[i], i, BLOCK);
	must(kvfs_save(pool, space, keys, NULL, BLOCKS, numbers, NULL, &save) ==
		     0,
	     "save");
	must(kvfs_xfer_wait(save, KVFS_DURABLE, KVFS_FOREVER) == BLOCKS,
	     "durable");
	kvfs_xfer_free(save);
}

static void meanwhile(const char *what, const char *daemon, kvfs_lease *lease,
		      kvfs_xfer *load)
{
	pid_t child;

	if (strcmp(what, "forks") == 0) {
		child = fork();
		if (child == 0)
			exit(0);
		must(waitpid(child, NULL, 0) == child, "child");
	}
	while (kvfs_xfer_status(load, 0) == -EINPROGRESS)
		usleep(100);
	if (strcmp(what, "cancels") == 0)
		kvfs_xfer_cancel(load);
	else if (strcmp(what, "gives_up") == 0)
		kvfs_lease_cancel(lease);
	else if (strcmp(what, "dies") == 0)
		kill(atoi(daemon), SIGKILL);
	else if (strcmp(what, "closes") == 0)
		kvfs_pool_close(pool);
}

static void loads(const char *what, const char *daemon)
{
	const bool all = strcmp(what, "loads") == 0 ||
			 strcmp(what, "forks") == 0 ||
			 strcmp(what, "closes") == 0;
	const kvfs_query query = {space, keys, BLOCKS};
	kvfs_lease *lease;
	kvfs_xfer *load;
	int copied = 0;

	memset(pages, UNTOUCHED, sizeof(pages));
	must(kvfs_acquire(&query, 1, NULL, &lease) == 0, "acquire");
	must(kvfs_load(pool, lease, BLOCKS, numbers, NULL, &load) == 0, "load");
	meanwhile(what, daemon, lease, load);
	must(kvfs_xfer_wait(load, KVFS_COPIED, KVFS_FOREVER) >= 0, "wait");
	must(kvfs_lease_wait(lease, KVFS_FOREVER) >= 0, "wait for the lease");
	for (int i = 0; i < BLOCKS; i++) {
		bool good = kvfs_xfer_status(load, (size_t)i) == 0;

		must(is_filled(i, good ? i : UNTOUCHED), "wrong bytes");
		must(!good || kvfs_lease_status(lease, (size_t)i) == 0,
		     "a copied block without a lease");
		copied += good;
	}
	printf("%s: %d of %d blocks\n", what, copied, BLOCKS);
	must(copied > 0 && (!all || copied == BLOCKS), "blocks are missing");
	kvfs_xfer_free(load);
	kvfs_release(lease);
}

int main(int argc, char **argv)
{
	if (argc < 4)
		return 2;
	enter(argv[2]);
	if (strcmp(argv[1], "saves") == 0)
		saves();
	else
		loads(argv[1], argv[3]);
	if (strcmp(argv[1], "closes") != 0)
		kvfs_pool_close(pool);
	kvfs_space_close(space);
	kvfs_close(session);
	return 0;
}
