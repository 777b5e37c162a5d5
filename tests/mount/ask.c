/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ask.c - look-ups from a shell script.
 *
 *   ask MOUNT SPACE probe KEY...     how many blocks are present
 *   ask MOUNT SPACE match KEY...     how long the present prefix is
 *   ask MOUNT SPACE acquire KEY...   how many blocks can be leased, for a moment
 *   ask MOUNT SPACE make             open or make the space: its owner and mode
 *   ask MOUNT SPACE share            open or make a space of any owner
 *   ask MOUNT SPACE remote           make a space, shared with other nodes
 *
 * Prints the number and exits 0, or prints an error and exits 1.
 */
#include <stdio.h>
#include <unistd.h>

#include "common/kv.h"
#include "kernels/kvfs.h"

#define KEYS 4096

static kvfs_key keys[KEYS];
static uint8_t states[KEYS];

static long acquire(const kvfs_query *query)
{
	kvfs_lease *lease;
	long n = kvfs_acquire(query, 1, NULL, &lease);

	if (n < 0)
		return n;
	n = kvfs_lease_wait(lease, KVFS_FOREVER);
	kvfs_release(lease);
	return n;
}

#define TENSORS "{\"tensors\":[{\"name\":\"k\",\"dtype\":\"U8\",\"shape\":[4]}]"

static long make(kvfs_session *session, const char *name, const char *verb)
{
	const char *layout = strcmp(verb, "remote") == 0 ? TENSORS
				     ",\"keys\":\"engine\",\"share\":true}"
							 : TENSORS "}";
	const unsigned flags = KVFS_CREATE | 0777 |
			       (strcmp(verb, "make") == 0 ? 0 : KVFS_SHARED);
	kvfs_space *space;
	uint32_t uid, mode;
	int r, i;

	/* On a busy machine kvfs_open returns before it is connected. */
	for (i = 0; i < 1000 && !kvfs_connected(session); i++)
		usleep(10000);
	r = kvfs_connected(session)
		    ? kvfs_space_open(session, name, layout, flags, &space)
		    : -ENOTCONN;
	if (r < 0)
		return r;
	r = kvfs_space_owner(space, &uid, &mode);
	kvfs_space_close(space);
	if (r == 0)
		printf("%u:%03o ", uid, mode);
	return r;
}

static long act(const kvfs_query *query, const char *verb)
{
	if (strcmp(verb, "probe") == 0)
		return kvfs_probe(query, 1, states);
	if (strcmp(verb, "match") == 0)
		return kvfs_match(query, 1);
	return strcmp(verb, "acquire") == 0 ? acquire(query) : -EINVAL;
}

static long ask(int argc, char **argv)
{
	kvfs_session *session;
	kvfs_query query = {.keys = keys, .n = (size_t)argc - 4};
	kvfs_space *space;
	long n;
	int r;

	for (size_t i = 0; i < query.n; i++) {
		r = kvfs_key_parse(argv[4 + i], &keys[i]);
		if (r < 0)
			return r;
	}
	r = kvfs_open(argv[1], &session);
	if (r < 0)
		return r;
	if (strcmp(argv[3], "make") == 0 || strcmp(argv[3], "share") == 0 ||
	    strcmp(argv[3], "remote") == 0) {
		n = make(session, argv[2], argv[3]);
		kvfs_close(session);
		return n;
	}
	n = kvfs_space_open(session, argv[2], NULL, 0, &space);
	if (n == 0) {
		query.space = space;
		n = act(&query, argv[3]);
		kvfs_space_close(space);
	}
	kvfs_close(session);
	return n;
}

int main(int argc, char **argv)
{
	long n = argc < 4 || argc - 4 > KEYS ? -EINVAL : ask(argc, argv);

	if (n < 0) {
		fprintf(stderr, "ask: %s\n", strerror((int)-n));
		return 1;
	}
	printf("%ld\n", n);
	return 0;
}
