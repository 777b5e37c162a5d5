/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sparse.c - a client that saves from memory that it has not allocated.
 *
 *     sparse staging SOCKET     from a sparse staging memory of 512 MiB
 *     sparse lent SOCKET        from lent memory that grows from nothing after
 *                               the daemon has checked it
 *     sparse probe SOCKET       save a block, and find it
 *
 * Prints how many MiB its files hold in the end: 0 if the daemon allocated no page of them.
 *
 * OWNS      its connections, and spaces sparse-UID.
 *
 * LOCKING   none: one thread.
 */
#include <sys/stat.h>

#include "tests/fs/peer.h"

#define LAYOUT                                                                 \
	"{\"tensors\":[{\"name\":\"k\",\"dtype\":\"U8\",\"shape\":[1048576]}]" \
	"}"
#define PAYLOAD (UINT64_C(1) << 20)
#define BYTES (UINT64_C(512) << 20)
#define POOLS 48
#define BATCH 16

static bool join(struct peer *p, const char *socket)
{
	char name[32];

	snprintf(name, sizeof(name), "sparse-%u", (unsigned)getuid());
	return peer_connect(p, socket) && peer_hello(p) == 0 &&
	       peer_space(p, name, LAYOUT, WIRE_SPACE_CREATE, 0700) == 0;
}

static uint64_t held(int fd)
{
	struct stat st;

	return fstat(fd, &st) == 0 ? (uint64_t)st.st_blocks * 512 : 0;
}

/* Save the whole file block by block: each save reads another MiB of it. */
static int save_staging(struct peer *p, uint64_t *ret_held)
{
	struct wire_staging staging = {BYTES};
	int fd = memfd_create("sparse", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	uint32_t key = (uint32_t)getpid() << 10;
	int r;

	if (fd < 0 || ftruncate(fd, (off_t)BYTES) < 0 ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) < 0)
		return -errno;
	r = peer_call(p,
		      &(struct wire_header){.type = WIRE_STAGING, .count = 1},
		      &staging, sizeof(staging), fd);
	for (uint64_t at = 0; r == 0 && at < BYTES; at += PAYLOAD, key++) {
		struct wire_save save = {.len = 32, .offset = at};
		struct wire_key wire;
		const struct wire_header header = {.type = WIRE_SAVE,
						   .count = 1};

		peer_keys(&wire, key, 1);
		memcpy(save.key, wire.key, 32);
		while ((r = peer_do(p, WIRE_RESERVE, key, 1)) == -EBUSY)
			usleep(1000); /* the daemon is still making memory */
		if (r == 0)
			r = peer_saved(p, peer_send(p, &header, &save,
						    sizeof(save), -1));
		r = r == -ENOSPC ? 0 : r;
	}
	*ret_held = held(fd);
	close(fd);
	return r;
}

/* Lend one pool: BATCH blocks are under way when its file grows. */
static int save_lent(struct peer *p, uint32_t id, int fd)
{
	struct {
		struct wire_pool pool;
		struct wire_stride stride;
	} lend = {{.id = id,
		   .pages_per_block = 1,
		   .pages = BATCH,
		   .bytes = BATCH * PAYLOAD},
		  {0, PAYLOAD, PAYLOAD, 1, 0}};
	struct {
		struct wire_save_pages what;
		struct wire_save save[BATCH];
		uint64_t page[BATCH];
	} m = {.what = {.pool = id, .n = BATCH}};
	const struct wire_header header = {.type = WIRE_SAVE_PAGES,
					   .count = sizeof(m.save) +
						    sizeof(m.page)};
	struct wire_key keys[BATCH];
	uint64_t tag;
	ssize_t n;
	int r;

	r = peer_call(p, &(struct wire_header){.type = WIRE_POOL, .count = 1},
		      &lend, sizeof(lend), fd);
	if (r < 0)
		return r;
	peer_keys(keys, ((uint32_t)getpid() << 10) + id * BATCH, BATCH);
	for (uint32_t i = 0; i < BATCH; i++) {
		memcpy(m.save[i].key, keys[i].key, 32);
		m.save[i].len = 32;
		m.page[i] = i;
	}
	*(uint32_t *)(void *)p->staging = WIRE_LENT;
	tag = peer_send(p, &header, &m, sizeof(m), -1);
	usleep(id % 2 ? 20 * id : 0);
	if (ftruncate(fd, (off_t)(BATCH * PAYLOAD)) < 0)
		return -errno;
	n = peer_reply(p, tag, PEER_WAIT_MS);
	return n < 0 ? (int)n : 0;
}

static int save_pools(struct peer *p, uint64_t *ret_held)
{
	int fds[POOLS], r = peer_staging(p, KV_PAGE);

	for (uint32_t i = 0; i < POOLS && r == 0; i++) {
		fds[i] = memfd_create("sparse", MFD_CLOEXEC);
		r = fds[i] < 0 ? -errno : save_lent(p, i, fds[i]);
		if (r == 0)
			*ret_held += held(fds[i]);
	}
	return r;
}

static int probe(struct peer *p)
{
	const uint32_t key = (uint32_t)getpid();
	int r = peer_staging(p, PAYLOAD);

	while (r == 0 && (r = peer_do(p, WIRE_RESERVE, key, 1)) == -EBUSY)
		usleep(1000);
	if (r == 0)
		r = peer_saved(p, peer_send_saves(p, key, 1));
	return r == 0 && peer_probe(p, key) != WIRE_DRAM ? -ENOENT : r;
}

int main(int argc, char **argv)
{
	static struct peer p;
	uint64_t bytes = 0;
	int r;

	if (argc != 3 || !join(&p, argv[2])) {
		fprintf(stderr, "sparse: cannot connect\n");
		return 2;
	}
	if (strcmp(argv[1], "staging") == 0)
		r = save_staging(&p, &bytes);
	else if (strcmp(argv[1], "lent") == 0)
		r = save_pools(&p, &bytes);
	else
		r = probe(&p);
	if (r < 0)
		fprintf(stderr, "sparse %s: %s\n", argv[1], strerror(-r));
	printf("%lu\n", (unsigned long)(bytes >> 20));
	return r < 0;
}
