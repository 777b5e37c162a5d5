/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backend.c - what all backends use: statuses, notes of objects, and lists of
 * operations that have ended.
 *
 * OWNS      the eventfd of a kv_done.
 *
 * INVARIANTS
 *   (1) The eventfd of a kv_done is readable whenever there are operations.
 *
 * LOCKING   a kv_done is guarded by the lock of its backend.
 */
#include <stdio.h>
#include <sys/eventfd.h>

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

int kv_object_read_note(struct kv_remote_op *op, const char *note, size_t n)
{
	const char *name = last_part(op->name), *end = note + n;
	size_t len = strlen(name);
	uint64_t length = 0;

	if (n < len + 1 + DIGEST_DIGITS + 3 || end[-1] != '\n' ||
	    memcmp(note, name, len) != 0 || note[len] != ' ' ||
	    note[len + 1 + DIGEST_DIGITS] != ' ')
		return -EBADMSG;
	note += len + 1;
	if (kv_unhex(note, sizeof(op->digest.b), op->digest.b) < 0)
		return -EBADMSG;
	note += DIGEST_DIGITS + 1;
	end--;
	if (note >= end || end - note > 19)
		return -EBADMSG;
	for (; note < end; note++) {
		if (*note < '0' || *note > '9')
			return -EBADMSG;
		length = length * 10 + (uint64_t)(*note - '0');
	}
	op->length = length;
	return 0;
}

int kv_done_init(struct kv_done *done)
{
	TAILQ_INIT(&done->ops);
	done->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	return done->event < 0 ? -errno : 0;
}

void kv_done_fini(struct kv_done *done)
{
	kv_closep(&done->event);
}

void kv_done_add(struct kv_done *done, struct kv_remote_op *op, int status)
{
	op->status = status;
	op->under_way = false;
	op->of = NULL;
	TAILQ_INSERT_TAIL(&done->ops, op, link);
	eventfd_write(done->event, 1);
}

size_t kv_done_reap(struct kv_done *done, struct kv_remote_op **ret_ops,
		    size_t max)
{
	struct kv_remote_op *op;
	eventfd_t count;
	size_t n = 0;

	while (n < max && (op = TAILQ_FIRST(&done->ops))) {
		TAILQ_REMOVE(&done->ops, op, link);
		ret_ops[n++] = op;
	}
	if (TAILQ_EMPTY(&done->ops))
		eventfd_read(done->event, &count);
	return n;
}
