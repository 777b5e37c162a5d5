/* SPDX-License-Identifier: Apache-2.0 */
/* Load a snapshot of blocks with one tensor "kv", a window of them at a time,
 * the head and the tail first, and write it to standard output:
 *   cc examples/restore.c -o restore $(pkg-config --cflags --libs kvfs)
 *   ./restore /kvfs SPACE SNAPSHOT >FILE */
#include <kvfs.h>
#include <err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define WINDOW 64 /* blocks loaded at a time: a few MiB */

static size_t check(long r, const char *what)
{
	if (r < 0)
		errx(1, "%s: %s", what, strerror((int)-r));
	return (size_t)r;
}

static void load(kvfs_pool *pool, kvfs_query window, size_t first)
{
	int64_t pages[WINDOW]; /* block i of the snapshot has page i */
	kvfs_lease *lease;
	kvfs_xfer *xfer;

	window.keys += first;
	window.n = window.n - first < WINDOW ? window.n - first : WINDOW;
	for (size_t i = 0; i < window.n; i++)
		pages[i] = (int64_t)(first + i);
	check(kvfs_acquire(&window, 1, NULL, &lease), "acquire");
	check(kvfs_load(pool, lease, window.n, pages, NULL, &xfer), "load");
	kvfs_release(lease);
	if (kvfs_xfer_wait(xfer, KVFS_COPIED, KVFS_FOREVER) < (long)window.n)
		errx(1, "some of %zu blocks are not there", window.n);
	kvfs_xfer_free(xfer);
	fprintf(stderr, "%zu blocks from %zu on\n", window.n, first);
}

int main(int argc, char **argv)
{
	static kvfs_key key[KVFS_SNAPSHOT_MAX];
	kvfs_view view = {.tensor = "kv", .count = 1};
	kvfs_pool_desc desc = {sizeof(desc), "host", NULL, &view, 1, 0, 1};
	kvfs_session *session;
	kvfs_pool *pool;

	if (argc != 4 || kvfs_open(argv[1], &session) < 0)
		errx(1, "usage: restore MOUNT SPACE SNAPSHOT");
	check(kvfs_space_open(session, argv[2], NULL, 0, &desc.space), "space");
	size_t n = check(
		kvfs_snapshot_keys(desc.space, argv[3], key, NULL, 1 << 17),
		argv[3]);
	view.bytes = view.block_stride = kvfs_space_payload(desc.space);
	view.base = calloc(desc.pages = n, view.bytes);
	check(kvfs_pool_register(session, &desc, &pool), "pool");
	for (size_t i = 0, last = (n - 1) / WINDOW; i <= last; i++)
		load(pool, (kvfs_query){desc.space, key, n},
		     (i < 2 ? i * last : i - 1) * WINDOW);
	return fwrite(view.base, view.bytes, n, stdout) != n;
}
