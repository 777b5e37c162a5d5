/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load.c - clients that repeat one operation, to find what it costs the daemon.
 *
 *     load MOUNT save                       make the space `load` with BLOCKS blocks
 *     load MOUNT probe|lease|chain|put CLIENTS SECONDS
 *             each of CLIENTS processes probes all keys, leases and releases one block
 *             or all blocks, or saves one block until sealed, again and again; print
 *             the number of operations and the seconds that they took
 *
 * OWNS      its processes, each with a session of its own.
 *
 * LOCKING   none: one thread a process; `all` is atomic.
 */
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "common/kv.h"
#include "common/thread.h"
#include "kernels/kvfs.h"

#define BLOCKS 127u
#define BYTES (128u << 10)
#define LAYOUT                                                                 \
	"{\"tensors\":[{\"name\":\"k\",\"dtype\":\"U8\",\"shape\":[131072]}]," \
	"\"keys\":\"engine\"}"

static struct {
	_Atomic uint64_t ready, done, failed;
	_Atomic bool go;
} * all;

static kvfs_session *session;
static kvfs_space *space;
static kvfs_key keys[BLOCKS];

static int connect_to(const char *mount)
{
	int r = kvfs_open(mount, &session);

	for (int i = 0; r == 0 && i < 300 && !kvfs_connected(session); i++)
		usleep(100000);
	for (uint32_t i = 0; i < BLOCKS; i++) {
		keys[i].len = 16;
		memcpy(keys[i].bytes, &i, sizeof(i));
	}
	return r < 0 ? r
		     : kvfs_space_open(session, "load", LAYOUT,
				       KVFS_CREATE | 0755, &space);
}

/* Save @n blocks until they are sealed. */
static int save(kvfs_pool *pool, const kvfs_key *names, size_t n)
{
	int64_t pages[BLOCKS] = {0};
	kvfs_meta meta[BLOCKS] = {0};
	kvfs_opts opts = KVFS_OPTS_INIT;
	kvfs_xfer *xfer;
	int r;

	opts.flags = KVFS_MUST;
	r = kvfs_save(pool, space, names, meta, n, pages, &opts, &xfer);
	if (r < 0)
		return r;
	r = kvfs_xfer_wait(xfer, KVFS_SEALED, KVFS_FOREVER);
	for (size_t i = 0; i < n && r >= 0; i++)
		r = kvfs_xfer_status(xfer, i);
	kvfs_xfer_free(xfer);
	return r;
}

static int lease(size_t n)
{
	const kvfs_query query = {.space = space, .keys = keys, .n = n};
	kvfs_opts opts = KVFS_OPTS_INIT;
	kvfs_lease *held;
	int r = kvfs_acquire(&query, 1, &opts, &held);

	if (r < 0)
		return r;
	kvfs_lease_wait(held, KVFS_FOREVER);
	r = kvfs_lease_data(held, 0, NULL) ? 0 : -ENOENT;
	kvfs_release(held);
	return r;
}

static int operate(const char *what, kvfs_pool *pool, kvfs_key *next)
{
	const kvfs_query query = {.space = space, .keys = keys, .n = BLOCKS};
	uint8_t states[BLOCKS];

	if (strcmp(what, "probe") == 0)
		return kvfs_probe(&query, 1, states) == BLOCKS ? 0 : -ENOENT;
	if (strcmp(what, "put") != 0)
		return lease(strcmp(what, "lease") == 0 ? 1 : BLOCKS);
	for (int i = 8; i < 16 && ++next->bytes[i] == 0; i++)
		continue;
	return save(pool, next, 1);
}

static int client(const char *mount, const char *what, uint64_t number,
		  uint64_t ns)
{
	static uint8_t memory[BYTES];
	kvfs_view view = {.tensor = "k",
			  .base = memory,
			  .block_stride = BYTES,
			  .bytes = BYTES,
			  .count = 1};
	kvfs_pool_desc desc = KVFS_POOL_DESC_INIT;
	kvfs_key next = {.len = 16};
	kvfs_pool *pool = NULL;
	uint64_t until, done = 0, failed = 0;
	int r = connect_to(mount);

	desc.device = "host";
	desc.space = space;
	desc.views = &view;
	desc.n_views = 1;
	desc.pages = desc.pages_per_block = 1;
	memset(memory, (int)number, sizeof(memory));
	number = number << 32 | (uint64_t)getpid();
	memcpy(next.bytes, &number, sizeof(number));
	if (r == 0)
		r = kvfs_pool_register(session, &desc, &pool);
	if (r == 0 && strcmp(what, "save") == 0)
		return save(pool, keys, BLOCKS);
	for (int i = 0; r == 0 && i < 16; i++)
		r = operate(what, pool, &next);
	if (r < 0)
		fprintf(stderr, "%s: %s\n", what, strerror(-r));
	all->ready++;
	while (!all->go)
		usleep(1000);
	until = kv_now_ns() + ns;
	while (r == 0 && kv_now_ns() < until)
		if (operate(what, pool, &next) < 0)
			failed++;
		else
			done++;
	all->done += done;
	all->failed += failed + (r < 0);
	return r;
}

int main(int argc, char **argv)
{
	const uint64_t clients = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
	const double seconds = argc > 4 ? strtod(argv[4], NULL) : 1;
	int status, bad = 0;
	char line[8];

	if (argc < 3)
		return 2;
	all = mmap(NULL, sizeof(*all), PROT_READ | PROT_WRITE,
		   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (all == MAP_FAILED)
		return 1;
	if (argc < 4)
		return client(argv[1], argv[2], 0, 0) < 0;
	for (uint64_t i = 0; i < clients; i++) {
		if (fork() == 0)
			_exit(client(argv[1], argv[2], i,
				     (uint64_t)(seconds * 1e9)) < 0);
	}
	while (all->ready < clients)
		usleep(10000);
	/* The script reads the daemon's counters first. */
	puts("ready");
	fflush(stdout);
	if (!fgets(line, sizeof(line), stdin))
		return 1;
	all->go = true;
	while (wait(&status) > 0)
		bad |= status;
	printf("%llu %g %llu\n", (unsigned long long)all->done, seconds,
	       (unsigned long long)all->failed);
	return bad != 0;
}
