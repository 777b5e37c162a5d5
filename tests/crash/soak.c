/* SPDX-License-Identifier: Apache-2.0 */
/*
 * soak.c - one of several programs that make all calls of a client, on the same blocks, in
 * random order, until SIGTERM.
 *
 *   soak SOCKET MOUNT SEED
 *
 * All writers of a block write the same bytes, so every block that is found must have
 * exactly these; and leased or mapped bytes must not change until they are released, even
 * if another program removes or evicts the block.
 *
 * OWNS      its clients, and the leases it holds for a while.
 *
 * LOCKING   none: one thread.
 */
#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include "tests/crash/client.h"

#define SPACES 3
#define BATCH 8 /* saves use pages 0 to 7, loads pages 8 to 15 */
#define ACQUIRED 24
#define HELD 4
#define GENERATION 1

struct held {
	kvfs_lease *lease;
	uint64_t ids[ACQUIRED];
	size_t n;
};

static const char letters[SPACES] = {'a', 'b', 'd'};
static const long counts[SPACES] = {1200, 1200, 160};

static struct client clients[SPACES];
static struct held held[HELD];
static const char *socket_path, *mount;
static uint64_t seed, checked;
static uint64_t files_read, files_refused; /* refused: ENFILE */
static uint8_t bytes[CONTENT_MAX];

static void broken(const char *what, uint64_t id, long got)
{
	printf("FAILED: %s, block %llx: %ld\n", what, (unsigned long long)id,
	       got);
	exit(1);
}

static void check_file(const void *file, uint64_t length, uint64_t id)
{
	uint64_t gen;

	if (content_check_file(file, length, id, &gen) < 0 || gen != GENERATION)
		broken("other bytes", id, 0);
	checked++;
}

/* Pick a run of blocks with neighbouring numbers, as in a chain. */
static size_t pick(unsigned space, uint64_t *ids, size_t max)
{
	long at = client_random(&seed, counts[space]);
	size_t n = 1 + (size_t)client_random(&seed, (long)max);

	for (size_t i = 0; i < n; i++)
		ids[i] = content_id(letters[space], 0,
				    (unsigned)((at + (long)i) % counts[space]));
	return n;
}

static void pick_keys(unsigned space, kvfs_key keys[BATCH], size_t *ret_n)
{
	uint64_t ids[BATCH];

	*ret_n = pick(space, ids, BATCH);
	for (size_t i = 0; i < *ret_n; i++)
		keys[i] = content_key(ids[i]);
}

static void do_save(unsigned space)
{
	static const uint64_t gens[BATCH] = {1, 1, 1, 1, 1, 1, 1, 1};
	enum kvfs_stage stage = (enum kvfs_stage)(1 + client_random(&seed, 3));
	uint64_t ids[BATCH];
	kvfs_xfer *xfer;
	size_t n = pick(space, ids, BATCH);

	client_must(client_save(&clients[space], ids, gens, n, &xfer), "save");
	if (client_random(&seed, 10) == 0)
		kvfs_xfer_cancel(xfer);
	if (kvfs_xfer_wait(xfer, stage, 30 * SECOND) == -ETIMEDOUT)
		broken("a save hangs", ids[0], stage);
	for (size_t i = 0; i < n; i++) {
		int status = kvfs_xfer_status(xfer, i);

		if (status < 0 && status != -ENOSPC && status != -ECANCELED &&
		    status != -ESTALE && status != -EINPROGRESS &&
		    status != -ENOENT)
			broken("save", ids[i], status);
	}
	/* A cancelled transfer may still be copying. */
	kvfs_xfer_wait(xfer, KVFS_COPIED, 30 * SECOND);
	kvfs_xfer_free(xfer);
}

static void check_lease(const struct held *h)
{
	uint64_t length;

	for (size_t i = 0; i < h->n; i++) {
		const void *file = kvfs_lease_file(h->lease, i, &length);

		if (file != NULL)
			check_file(file, length, h->ids[i]);
	}
}

static void check_statuses(const struct held *h)
{
	for (size_t i = 0; i < h->n; i++) {
		int status = kvfs_lease_status(h->lease, i);

		if (status != 0 && status != -ENOENT && status != -ETIMEDOUT &&
		    status != -ENOSPC && status != -ECANCELED)
			broken("acquire", h->ids[i], status);
	}
}

static void give_back(struct held *h)
{
	if (h->lease == NULL)
		return;
	check_lease(h);
	kvfs_release(kv_steal(h->lease));
}

/* Acquire a lease, keep it while other calls run, and reread its blocks before
 * the release. */
static void do_acquire(unsigned space)
{
	struct held *h = &held[client_random(&seed, HELD)];

	give_back(h);
	h->n = pick(space, h->ids, ACQUIRED);
	client_must(client_acquire(&clients[space], h->ids, h->n, &h->lease),
		    "acquire");
	if (client_random(&seed, 10) == 0)
		kvfs_lease_cancel(h->lease);
	if (client_random(&seed, 20) == 0) {
		/* release the lease before it has settled */
		kvfs_release(kv_steal(h->lease));
		return;
	}
	if (kvfs_lease_wait(h->lease, 30 * SECOND) == -ETIMEDOUT)
		broken("an acquire hangs", h->ids[0], 0);
	check_statuses(h);
	check_lease(h);
}

static void do_load(unsigned space)
{
	struct client *c = &clients[space];
	int64_t pages[BATCH];
	uint64_t ids[BATCH], gen;
	kvfs_lease *lease;
	kvfs_xfer *xfer;
	size_t n = pick(space, ids, BATCH);

	for (size_t i = 0; i < n; i++)
		pages[i] = (int64_t)(BATCH + i);
	client_must(client_acquire(c, ids, n, &lease), "acquire");
	client_must(kvfs_load(c->pool, lease, n, pages, NULL, &xfer), "load");
	kvfs_release(lease);
	if (kvfs_xfer_wait(xfer, KVFS_COPIED, 30 * SECOND) == -ETIMEDOUT)
		broken("a load hangs", ids[0], 0);
	for (size_t i = 0; i < n; i++)
		if (kvfs_xfer_status(xfer, i) == 0 &&
		    (content_check_tensors(client_page(c, BATCH + i),
					   c->payload, ids[i], &gen) < 0 ||
		     gen != GENERATION))
			broken("loaded other bytes", ids[i], 0);
	checked += n;
	kvfs_xfer_free(xfer);
}

static void do_housekeeping(unsigned space)
{
	struct client *c = &clients[space];
	kvfs_key keys[BATCH];
	uint8_t states[BATCH];
	char *text = NULL;
	size_t n;
	kvfs_query query;

	pick_keys(space, keys, &n);
	query = (kvfs_query){c->space, keys, n};
	switch (client_random(&seed, 8)) {
	case 0:
	case 1:
		kvfs_evict(c->space, keys, n, NULL);
		break;
	case 2:
		kvfs_pin(c->space, keys, 0, n, NULL);
		break;
	case 3:
		kvfs_unpin(c->space, keys, 0, n, NULL);
		break;
	case 4:
		kvfs_probe(&query, 1, states);
		kvfs_match(&query, 1);
		break;
	case 5:
		client_must(client_flush(c), "flush");
		break;
	case 6:
		client_must(kvfs_stats(c->session, &text), "stats");
		free(text);
		break;
	case 7:
		kvfs_process(c->session);
		if (client_random(&seed, 50) == 0)
			kvfs_space_clear(c->space);
	}
}

/* Return true after SIGTERM, so that the caller stops waiting. */
static bool interrupted(void)
{
	return errno == EINTR && client_stop;
}

static void read_by_mmap(int fd, uint64_t id)
{
	struct stat st;
	void *at;

	if (fstat(fd, &st) < 0 || st.st_size == 0)
		return;
	at = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED)
		return;
	check_file(at, (uint64_t)st.st_size, id);
	munmap(at, (size_t)st.st_size);
}

static void read_by_pread(int fd, uint64_t id)
{
	ssize_t n, total = 0;

	do {
		n = pread(fd, bytes + total, 200000, total);
		total += KV_MAX(n, 0);
	} while (n > 0);
	if (n < 0 && interrupted())
		return;
	if (n < 0)
		broken("read", id, -errno);
	check_file(bytes, (uint64_t)total, id);
}

static void do_read(unsigned space)
{
	char path[512], value[64];
	uint64_t id;
	int fd;

	pick(space, &id, 1);
	content_path(mount, id, path);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0) {
		/* Open blocks that are not on SSD are limited: kvfs-limits(7). */
		files_refused += errno == ENFILE;
		if (errno != ENOENT && errno != ESTALE && errno != ENFILE &&
		    !interrupted())
			broken("open", id, -errno);
		return;
	}
	files_read++;
	if (client_random(&seed, 2) == 0)
		read_by_mmap(fd, id);
	else
		read_by_pread(fd, id);
	(void)fgetxattr(fd, "user.kvfs.tier", value, sizeof(value));
	close(fd);
}

static void do_write(unsigned space)
{
	char path[512];
	uint64_t id, n;
	bool ok;
	int fd;

	pick(space, &id, 1);
	content_path(mount, id, path);
	n = content_file(bytes, id, GENERATION);
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	if (fd < 0) {
		if (errno != EEXIST && errno != ENOENT && errno != ENOSPC &&
		    errno != ESTALE && !interrupted())
			broken("create", id, -errno);
		return;
	}
	ok = write(fd, bytes, n) == (ssize_t)n;
	if (!ok && errno != ENOSPC && !interrupted())
		broken("write", id, -errno);
	if (client_random(&seed, 4) == 0 && ok && fsync(fd) < 0 &&
	    errno != ENOENT && errno != ENOSPC && errno != ESTALE &&
	    !interrupted())
		broken("fsync", id, -errno);
	if (close(fd) < 0 && ok && errno != ENOSPC && errno != ESTALE &&
	    !interrupted())
		broken("close", id, -errno);
}

static void do_names(unsigned space)
{
	char path[512];
	struct dirent *entry;
	uint64_t id;
	DIR *dir;

	pick(space, &id, 1);
	content_path(mount, id, path);
	if (client_random(&seed, 2) == 0) {
		unlink(path);
		return;
	}
	*strrchr(path, '/') = '\0';
	dir = opendir(path);
	if (dir == NULL)
		return;
	while ((entry = readdir(dir)) != NULL)
		if (entry->d_name[0] != '.' && strlen(entry->d_name) != 32)
			broken("a strange name", id, 0);
	closedir(dir);
}

static void open_clients(void)
{
	for (unsigned i = 0; i < SPACES; i++)
		client_open(&clients[i], socket_path, letters[i]);
}

static void close_clients(void)
{
	for (unsigned i = 0; i < HELD; i++)
		give_back(&held[i]);
	for (unsigned i = 0; i < SPACES; i++)
		client_close(&clients[i]);
}

static void turn(void)
{
	unsigned space = (unsigned)client_random(&seed, SPACES);

	switch (client_random(&seed, 12)) {
	case 0:
	case 1:
	case 2:
		do_save(space);
		break;
	case 3:
	case 4:
	case 5:
		do_acquire(space);
		break;
	case 6:
		do_load(space);
		break;
	case 7:
	case 8:
		do_housekeeping(space);
		break;
	case 9:
		do_read(space);
		break;
	case 10:
		do_write(space);
		break;
	default:
		do_names(space);
	}
}

int main(int argc, char **argv)
{
	uint64_t turns = 0;

	if (argc != 4)
		return 2;
	client_until_term();
	socket_path = argv[1];
	mount = argv[2];
	seed = strtoull(argv[3], NULL, 0) * 7919;
	open_clients();
	for (; !client_stop; turns++) {
		if (turns % 500 == 499) {
			close_clients();
			open_clients();
		}
		turn();
	}
	close_clients();
	if (files_refused > files_read + 10)
		broken("most opens are refused", 0, (long)files_refused);
	printf("%llu %llu\n", (unsigned long long)turns,
	       (unsigned long long)checked);
	return 0;
}
