/* SPDX-License-Identifier: Apache-2.0 */
/*
 * snap.c - snapshots from a shell script.
 *
 *   snap MOUNT SPACE make NAME KEY...   of these blocks, at positions 0, 1, ...
 *   snap MOUNT SPACE drop NAME
 *   snap MOUNT SPACE list               print a name a line
 *   snap MOUNT SPACE keys NAME          print a position and a key a line
 *   snap MOUNT SPACE flush              wait until all blocks are durable
 *   snap MOUNT SPACE fill NAME FILE BYTES    save FILE in blocks of BYTES bytes
 *                                       of a tensor "kv", 16 tokens each, and
 *                                       make a snapshot of them
 *
 * Exits 0, or prints an error and exits 1.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>

#include "kernels/kvfs.h"
#include "common/kv.h"

#define KEYS 4096

static kvfs_key keys[KEYS];
static uint32_t positions[KEYS];

static int make(kvfs_space *space, const char *name, char **texts, int n)
{
	size_t missing = 0;
	int r;

	for (int i = 0; i < n && i < KEYS; i++) {
		r = kvfs_key_parse(texts[i], &keys[i]);
		if (r < 0)
			return r;
	}
	r = kvfs_snapshot(space, name, keys, NULL, (size_t)n, &missing);
	if (r < 0)
		printf("key %zu: ", missing);
	return r;
}

static int list(kvfs_space *space)
{
	_cleanup_(kv_freep) char *names = NULL;
	long n = kvfs_snapshot_list(space, &names);
	const char *name = names;

	for (long i = 0; i < n; i++) {
		puts(name);
		name += strlen(name) + 1;
	}
	return n < 0 ? (int)n : 0;
}

static int show_keys(kvfs_space *space, const char *name)
{
	long n = kvfs_snapshot_keys(space, name, keys, positions, KEYS);
	char hex[65];

	for (long i = 0; i < n && i < KEYS; i++) {
		kvfs_key_name(&keys[i], hex);
		printf("%08" PRIu32 " %s\n", positions[i], hex);
	}
	return n < 0 ? (int)n : 0;
}

static int flush_all(kvfs_space *space)
{
	kvfs_xfer *xfer;
	int r = kvfs_flush(space, KVFS_DURABLE, NULL, &xfer);

	if (r < 0)
		return r;
	kvfs_xfer_wait(xfer, KVFS_DURABLE, KVFS_FOREVER);
	r = kvfs_xfer_status(xfer, 0);
	kvfs_xfer_free(xfer);
	return r;
}

static int save(kvfs_pool *pool, kvfs_space *space, const char *name, size_t n)
{
	static kvfs_key all[KVFS_SNAPSHOT_MAX];
	static int64_t pages[KVFS_SNAPSHOT_MAX];
	const kvfs_opts opts = {.size = sizeof(opts), .flags = KVFS_MUST};
	kvfs_xfer *xfer;
	long good;
	int r;

	for (size_t i = 0; i < n; i++) {
		all[i].len = 16;
		memcpy(all[i].bytes, &i, sizeof(i));
		pages[i] = (int64_t)i;
	}
	r = kvfs_save(pool, space, all, NULL, n, pages, &opts, &xfer);
	if (r < 0)
		return r;
	good = kvfs_xfer_wait(xfer, KVFS_DURABLE, KVFS_FOREVER);
	kvfs_xfer_free(xfer);
	return good < (long)n ? -EIO
			      : kvfs_snapshot(space, name, all, NULL, n, NULL);
}

static int fill(kvfs_session *session, const char *space_name, char **argv)
{
	const uint64_t bytes = strtoull(argv[2], NULL, 10);
	kvfs_view view = {.tensor = "kv", .count = 1};
	kvfs_pool_desc desc = {.size = sizeof(desc),
			       .device = "host",
			       .views = &view,
			       .n_views = 1,
			       .pages_per_block = 1};
	int fd = open(argv[1], O_RDONLY | O_CLOEXEC);
	off_t length = lseek(fd, 0, SEEK_END);
	char layout[200];
	kvfs_pool *pool;
	int r;

	if (length < 0)
		return -errno;
	snprintf(layout, sizeof(layout),
		 "{\"tensors\":[{\"name\":\"kv\",\"dtype\":\"U8\",\"shape\":["
		 "%" PRIu64 "]}],\"tokens\":16}",
		 bytes);
	r = kvfs_space_open(session, space_name, layout, KVFS_CREATE | 0700,
			    &desc.space);
	if (r < 0)
		return r;
	desc.pages = (uint64_t)length / bytes;
	view.bytes = view.block_stride = bytes;
	view.base = mmap(NULL, (size_t)length, PROT_READ, MAP_SHARED, fd, 0);
	r = kvfs_pool_register(session, &desc, &pool);
	if (r < 0)
		return r;
	r = save(pool, desc.space, argv[0], desc.pages);
	kvfs_pool_close(pool);
	kvfs_space_close(desc.space);
	return r;
}

static int act(kvfs_space *space, int argc, char **argv)
{
	if (argc >= 2 && strcmp(argv[0], "make") == 0)
		return make(space, argv[1], argv + 2, argc - 2);
	if (argc == 2 && strcmp(argv[0], "drop") == 0)
		return kvfs_snapshot_drop(space, argv[1]);
	if (argc == 2 && strcmp(argv[0], "keys") == 0)
		return show_keys(space, argv[1]);
	if (argc == 1 && strcmp(argv[0], "list") == 0)
		return list(space);
	if (argc == 1 && strcmp(argv[0], "flush") == 0)
		return flush_all(space);
	return -EINVAL;
}

int main(int argc, char **argv)
{
	kvfs_session *session;
	kvfs_space *space;
	int r;

	if (argc < 4)
		return 2;
	r = kvfs_open(argv[1], &session);
	if (r < 0)
		return 1;
	if (argc == 7 && strcmp(argv[3], "fill") == 0) {
		r = fill(session, argv[2], argv + 4);
		space = NULL;
	} else {
		r = kvfs_space_open(session, argv[2], NULL, 0, &space);
	}
	if (r == 0 && space) {
		r = act(space, argc - 3, argv + 3);
		kvfs_space_close(space);
	}
	kvfs_close(session);
	if (r < 0)
		printf("%s\n", strerror(-r));
	return r < 0;
}
