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
#include "common/bytes.h"

#define DIGEST_DIGITS 32u

bool kv_remote_is_answer(int status)
{
	return status == 0 || status == -ENOENT || status == -EEXIST ||
	       status == -EBADMSG || status == -EFBIG || status == -EUSERS;
}

bool kv_remote_is_refusal(enum kv_remote_call call, int status)
{
	if (call == KV_REMOTE_EXISTS || call == KV_REMOTE_GET)
		return false;
	return status == -ENOSPC || status == -EDQUOT || status == -EACCES ||
	       status == -EPERM || status == -EROFS || status == -EOPNOTSUPP;
}

static const char *last_part(const char *name)
{
	const char *slash = strrchr(name, '/');

	return slash ? slash + 1 : name;
}

size_t kv_object_note(const struct kv_remote_op *op,
		      char note[KV_OBJECT_NOTE_MAX])
{
	char digest[DIGEST_DIGITS + 1];

	kv_hex(op->digest.b, sizeof(op->digest.b), digest);
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

	if (n < len + 1 + DIGEST_DIGITS + 3 || end[-1] != '\n' ||
	    memcmp(note, name, len) != 0 || note[len] != ' ' ||
	    note[len + 1 + DIGEST_DIGITS] != ' ')
		return -EBADMSG;
	note += len + 1;
	if (kv_unhex(note, sizeof(op->digest.b), op->digest.b) < 0)
		return -EBADMSG;
	return read_length(note + DIGEST_DIGITS + 1, end - 1, &op->length);
}
