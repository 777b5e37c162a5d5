/* SPDX-License-Identifier: Apache-2.0 */
/*
 * told.c - print the token ids of a space's blocks, for a shell script: per line a key,
 * the ids and the extras, in no order.
 *
 *   told MOUNT SPACE
 *
 * Exits 0, or 1 and prints the reason.
 */
#include <inttypes.h>
#include <stdio.h>

#include "kernels/kvfs.h"
#include "common/kv.h"

#define KEYS 512

static void show(const kvfs_key *key, const kvfs_tokens *tokens)
{
	const uint8_t *extras = tokens->extras;
	char name[65];

	kvfs_key_name(key, name);
	printf("%s ", name);
	for (uint32_t i = 0; i < tokens->n; i++)
		printf("%s%" PRIu32, i ? "," : "", tokens->ids[i]);
	printf(" ");
	for (uint32_t i = 0; i < tokens->extras_len; i++)
		printf("%02x", extras[i]);
	printf("\n");
}

static long tell(kvfs_space *space, const kvfs_key *keys, size_t n)
{
	_Alignas(8) static uint8_t buffer[KVFS_TOKENS_ROOM];
	static kvfs_tokens tokens[KEYS];
	long got = kvfs_space_tokens(space, keys, n, tokens, buffer,
				     sizeof(buffer));

	for (long i = 0; i < got; i++) {
		if (tokens[i].status == 0)
			show(&keys[i], &tokens[i]);
		else if (tokens[i].status != -ENOENT)
			return tokens[i].status;
	}
	return got;
}

static int tell_all(kvfs_space *space)
{
	static kvfs_key keys[KEYS];
	uint64_t cursor = 0;
	long n, got = 0;

	do {
		n = kvfs_space_keys(space, &cursor, keys, KEYS);
		for (long at = 0; n >= 0 && at < n; at += got) {
			got = tell(space, keys + at, (size_t)(n - at));
			if (got < 0)
				return (int)got;
		}
	} while (n >= 0 && cursor != 0);
	return n < 0 ? (int)n : 0;
}

int main(int argc, char **argv)
{
	kvfs_session *session;
	kvfs_space *space;
	int r;

	if (argc != 3)
		return 2;
	r = kvfs_open(argv[1], &session);
	if (r < 0)
		return 1;
	r = kvfs_space_open(session, argv[2], NULL, 0, &space);
	if (r == 0) {
		r = tell_all(space);
		kvfs_space_close(space);
	}
	kvfs_close(session);
	if (r < 0)
		printf("%s\n", strerror(-r));
	return r < 0;
}
