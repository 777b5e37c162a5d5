/* SPDX-License-Identifier: Apache-2.0 */
/*
 * object.c - what stands beside an object of the remote tier: which it is, how
 * long, and its digest.
 *
 * OWNS      nothing.
 *
 * LOCKING   none.
 */
#include <stdio.h>

#include "cache/remote/backend.h"

#define DIGEST_DIGITS 32u

static const char *last_part(const char *name)
{
	const char *slash = strrchr(name, '/');

	return slash ? slash + 1 : name;
}

static void print_digest(const struct kv_digest *digest, char *ret)
{
	for (size_t i = 0; i < sizeof(digest->b); i++)
		sprintf(ret + 2 * i, "%02x", digest->b[i]);
}

static int digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static int read_digest(const char *text, struct kv_digest *ret_digest)
{
	for (size_t i = 0; i < sizeof(ret_digest->b); i++) {
		int high = digit(text[2 * i]);
		int low = high < 0 ? -1 : digit(text[2 * i + 1]);

		if (low < 0)
			return -EBADMSG;
		ret_digest->b[i] = (uint8_t)(high << 4 | low);
	}
	return 0;
}

size_t kv_object_note(const struct kv_remote_op *op,
		      char note[KV_OBJECT_NOTE_MAX])
{
	char digest[DIGEST_DIGITS + 1];

	print_digest(&op->digest, digest);
	return (size_t)snprintf(note, KV_OBJECT_NOTE_MAX, "%s %s %llu\n",
				last_part(op->name), digest,
				(unsigned long long)op->length);
}

static int read_length(const char *text, const char *end, uint64_t *ret_length)
{
	uint64_t n = 0;

	if (text >= end || end - text > 19)
		return -EBADMSG;
	for (; text < end; text++) {
		if (*text < '0' || *text > '9')
			return -EBADMSG;
		n = n * 10 + (uint64_t)(*text - '0');
	}
	*ret_length = n;
	return 0;
}

int kv_object_read_note(struct kv_remote_op *op, const char *note, size_t n)
{
	const char *name = last_part(op->name), *end = note + n;
	size_t len = strlen(name);
	int r;

	if (n < len + 1 + DIGEST_DIGITS + 3 || end[-1] != '\n' ||
	    memcmp(note, name, len) != 0 || note[len] != ' ' ||
	    note[len + 1 + DIGEST_DIGITS] != ' ')
		return -EBADMSG;
	note += len + 1;
	r = read_digest(note, &op->digest);
	return r < 0 ? r
		     : read_length(note + DIGEST_DIGITS + 1, end - 1,
				   &op->length);
}
