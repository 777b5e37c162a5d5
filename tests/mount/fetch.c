/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fetch.c - acquire or prefetch blocks within a time limit, from a shell script.
 *
 *   fetch MOUNT SPACE acquire MS KEY...    lease the blocks that come in MS milliseconds
 *   fetch MOUNT SPACE prefetch MS KEY...   prefetch them
 *   fetch MOUNT SPACE hold MS KEY...       lease them until the end of standard input; then
 *                                          fail if a byte of them has changed
 *
 * Prints the length of the prefix that came, and the milliseconds that took, and exits 0;
 * or prints an error and exits 1.
 */
#include <stdio.h>

#include "common/kv.h"
#include "kernels/kvfs.h"

#define KEYS 4096

static kvfs_key keys[KEYS];

/* Copy the leased blocks, print how many there are, and return at the end of the
 * input whether the client can still read the same bytes. */
static bool stay(kvfs_lease *lease, size_t n_keys, long n)
{
	static void *copies[KEYS];
	uint64_t bytes;
	bool same = true;

	for (size_t i = 0; i < n_keys; i++) {
		const void *file = kvfs_lease_file(lease, i, &bytes);

		if (!file)
			continue;
		copies[i] = malloc(bytes);
		memcpy(copies[i], file, bytes);
	}
	printf("%ld\n", n);
	fflush(stdout);
	while (getchar() != EOF)
		;
	for (size_t i = 0; i < n_keys; i++) {
		const void *file = kvfs_lease_file(lease, i, &bytes);

		same &= !copies[i] || memcmp(copies[i], file, bytes) == 0;
		free(copies[i]);
	}
	return same;
}

static long acquire(const kvfs_query *query, const kvfs_opts *opts, bool hold)
{
	kvfs_lease *lease;
	long n = kvfs_acquire(query, 1, opts, &lease);

	if (n < 0)
		return n;
	n = kvfs_lease_wait(lease, KVFS_FOREVER);
	if (hold && !stay(lease, query->n, n))
		n = -EBADMSG;
	kvfs_release(lease);
	return n;
}

static long prefetch(const kvfs_query *query, const kvfs_opts *opts)
{
	kvfs_xfer *xfer;
	long n = 0;
	int r = kvfs_prefetch(query, 1, opts, &xfer);

	if (r < 0)
		return r;
	kvfs_xfer_wait(xfer, KVFS_COPIED, KVFS_FOREVER);
	while (n < (long)query->n && kvfs_xfer_status(xfer, (size_t)n) == 0)
		n++;
	kvfs_xfer_free(xfer);
	return n;
}

static long act(const kvfs_query *query, const char *verb, uint64_t ns)
{
	kvfs_opts opts = KVFS_OPTS_INIT;

	opts.deadline = ns;
	if (strcmp(verb, "acquire") == 0)
		return acquire(query, &opts, false);
	if (strcmp(verb, "hold") == 0)
		return acquire(query, &opts, true);
	return strcmp(verb, "prefetch") == 0 ? prefetch(query, &opts) : -EINVAL;
}

int main(int argc, char **argv)
{
	kvfs_session *session = NULL;
	kvfs_space *space = NULL;
	uint64_t begun;
	int n = 0;
	long r;

	if (argc < 5)
		return 1;
	for (; n < argc - 5 && n < KEYS; n++)
		if (kvfs_key_parse(argv[5 + n], &keys[n]) < 0)
			return 1;
	r = kvfs_open(argv[1], &session);
	if (r == 0)
		r = kvfs_space_open(session, argv[2], NULL, 0, &space);
	if (r < 0) {
		printf("%s\n", strerror((int)-r));
		return 1;
	}
	begun = kv_now_ns();
	r = act(&(kvfs_query){.space = space, .keys = keys, .n = (size_t)n},
		argv[3], strtoull(argv[4], NULL, 10) * 1000000);
	if (r < 0)
		printf("%s\n", strerror((int)-r));
	else
		printf("%ld %llu\n", r,
		       (unsigned long long)(kv_now_ns() - begun) / 1000000);
	kvfs_space_close(space);
	kvfs_close(session);
	return r < 0;
}
