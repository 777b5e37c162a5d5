/* SPDX-License-Identifier: Apache-2.0 */
/* backend.h - tests that every backend of the remote tier must pass: start
 * operations, wait for them, and compare the results. */
#ifndef KV_TESTS_CACHE_BACKEND_H
#define KV_TESTS_CACHE_BACKEND_H

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include "cache/remote/backend.h"
#include "common/copy.h"
#include "common/layout.h"

#define WAIT_MS 60000

static const struct kv_remote_driver *driver;
static void *backend;

#define OBJECT "1000/space/00112233445566778899aabbccddeeff"

static struct kv_remote_op op_of(enum kv_remote_call call, const char *name)
{
	struct kv_remote_op op = {.call = call, .status = 1};

	snprintf(op.name, sizeof(op.name), "%s", name);
	return op;
}

/* Reap @n operations, in any order. */
static inline void await(size_t n)
{
	struct kv_remote_op *ended[16];

	while (n > 0) {
		struct pollfd fd = {driver->fd(backend), POLLIN, 0};

		assert_int_equal(poll(&fd, 1, WAIT_MS), 1);
		n -= driver->reap(backend, ended, n < 16 ? n : 16);
	}
}

/* Submit one operation and wait for it.  Return its status. */
static inline int do_op(struct kv_remote_op *op)
{
	driver->submit(backend, &op, 1);
	await(1);
	return op->status;
}

static inline int put(const char *name, enum kv_remote_call call,
		      const void *data, size_t n)
{
	struct kv_remote_op op = op_of(call, name);

	op.data = (uint8_t *)data;
	op.length = n;
	op.digest = kv_digest_of(data, n);
	return do_op(&op);
}

static inline int get(const char *name, void *room, size_t bytes,
		      uint64_t *ret_length)
{
	struct kv_remote_op op = op_of(KV_REMOTE_GET, name);
	struct kv_digest digest;
	int r;

	op.data = room;
	op.room = bytes;
	r = do_op(&op);
	if (r < 0)
		return r;
	*ret_length = op.length;
	digest = kv_digest_of(room, op.length);
	return memcmp(&digest, &op.digest, sizeof(digest)) == 0 ? 0 : -EBADMSG;
}

static inline int status_of(enum kv_remote_call call, const char *name)
{
	struct kv_remote_op op = op_of(call, name);

	return do_op(&op);
}

/* Publish @text as a layout whose object exists while its note is missing: the
 * first object stays. */
static inline void publish_again(const char *note, const char *text)
{
	struct kv_remote_op op = op_of(KV_REMOTE_PUBLISH, "7/s/.layout");
	char room[100];
	uint64_t n = 0;

	assert_int_equal(put("7/s/.layout", KV_REMOTE_PUBLISH, text, 5), 0);
	assert_int_equal(unlink(note), 0);
	assert_int_equal(status_of(KV_REMOTE_EXISTS, op.name), -ENOENT);
	memset(room, 'x', sizeof(room));
	op.data = (uint8_t *)room;
	op.room = sizeof(room);
	op.length = 7;
	op.digest = kv_digest_of(room, 7);
	assert_int_equal(do_op(&op), -EEXIST);
	assert_int_equal(get("7/s/.layout", room, sizeof(room), &n), 0);
	assert_int_equal(n, 5);
	assert_memory_equal(room, text, 5);
}

static inline void test_a_space_is_cleared_but_for_its_layout(void **state)
{
	struct kv_remote_op op = op_of(KV_REMOTE_CLEAR, "1000/space/.layout");
	static char room[KV_LAYOUT_TEXT_MAX];
	uint64_t n = 0;

	(void)state;
	assert_int_equal(put(op.name, KV_REMOTE_PUBLISH, "layout", 6), 0);
	assert_int_equal(put(OBJECT, KV_REMOTE_PUT, "bytes", 5), 0);
	assert_int_equal(put("1000/other/k", KV_REMOTE_PUT, "bytes", 5), 0);
	op.data = (uint8_t *)room;
	op.room = sizeof(room);
	assert_int_equal(do_op(&op), 0);
	assert_int_equal(status_of(KV_REMOTE_EXISTS, OBJECT), -ENOENT);
	assert_int_equal(get(op.name, room, sizeof(room), &n), 0);
	assert_int_equal(n, 6);
	assert_memory_equal(room, "layout", 6);
	assert_int_equal(get("1000/other/k", room, sizeof(room), &n), 0);
	op = op_of(KV_REMOTE_CLEAR, "1000/none/.layout");
	op.data = (uint8_t *)room;
	op.room = sizeof(room);
	assert_int_equal(do_op(&op), -ENOENT);
}

static inline void test_what_is_put_comes_back(void **state)
{
	static const size_t sizes[] = {1, 4096, 100001, 5 << 20};
	uint8_t *data = malloc(5 << 20), *room = malloc(5 << 20);
	struct kv_remote_op op;
	uint64_t n = 0;

	(void)state;
	for (size_t i = 0; i < 5 << 20; i++)
		data[i] = (uint8_t)(i * 7 + (i >> 8));
	assert_int_equal(status_of(KV_REMOTE_EXISTS, OBJECT), -ENOENT);
	assert_int_equal(get(OBJECT, room, 100, &n), -ENOENT);
	for (size_t i = 0; i < KV_ARRAY_LEN(sizes); i++) {
		assert_int_equal(put(OBJECT, KV_REMOTE_PUT, data, sizes[i]), 0);
		op = op_of(KV_REMOTE_EXISTS, OBJECT);
		assert_int_equal(do_op(&op), 0);
		assert_int_equal(op.length, sizes[i]);
		memset(room, 0, 5 << 20);
		assert_int_equal(get(OBJECT, room, 5 << 20, &n), 0);
		assert_int_equal(n, sizes[i]);
		assert_memory_equal(room, data, n);
		op.call = KV_REMOTE_GET;
		op.noted = true;
		op.data = room;
		op.room = 5 << 20;
		memset(room, 0, 5 << 20);
		assert_int_equal(do_op(&op), 0);
		assert_memory_equal(room, data, n);
		assert_int_equal(get(OBJECT, room, sizes[i] - 1, &n), -EFBIG);
	}
	assert_int_equal(status_of(KV_REMOTE_REMOVE, OBJECT), 0);
	assert_int_equal(status_of(KV_REMOTE_REMOVE, OBJECT), -ENOENT);
	assert_int_equal(get(OBJECT, room, 5 << 20, &n), -ENOENT);
	free(data);
	free(room);
}

/* For drivers that read no note in a GET: the caller passes a note that is out
 * of date, so the object must be refused. */
static inline void test_what_is_not_as_noted_is_refused(void **state)
{
	struct kv_remote_op op = op_of(KV_REMOTE_GET, OBJECT);
	char room[16];

	(void)state;
	assert_int_equal(put(OBJECT, KV_REMOTE_PUT, "bytes", 5), 0);
	op.data = (uint8_t *)room;
	op.room = sizeof(room);
	op.noted = true;
	for (op.length = 4; op.length < 7; op.length += 2)
		assert_int_equal(do_op(&op), -EBADMSG);
	assert_int_equal(status_of(KV_REMOTE_REMOVE, OBJECT), 0);
	assert_int_equal(do_op(&op), -ENOENT);
}

static inline void test_the_first_to_publish_wins(void **state)
{
	char room[16];
	uint64_t n = 0;

	(void)state;
	assert_int_equal(put("1000/s/.layout", KV_REMOTE_PUBLISH, "one", 3), 0);
	assert_int_equal(put("1000/s/.layout", KV_REMOTE_PUBLISH, "two!", 4),
			 -EEXIST);
	assert_int_equal(get("1000/s/.layout", room, sizeof(room), &n), 0);
	assert_int_equal(n, 3);
	assert_memory_equal(room, "one", 3);
}

#define MANY 200

static inline void test_many_at_once(void **state)
{
	static struct kv_remote_op ops[MANY];
	static uint8_t data[MANY][3000], room[MANY][3000];
	struct kv_remote_op *all[MANY];
	char name[100];

	(void)state;
	for (size_t i = 0; i < MANY; i++) {
		snprintf(name, sizeof(name), "7/many/%032zx", i);
		memset(data[i], (int)i, sizeof(data[i]));
		ops[i] = op_of(KV_REMOTE_PUT, name);
		ops[i].data = data[i];
		ops[i].length = sizeof(data[i]);
		ops[i].digest = kv_digest_of(data[i], sizeof(data[i]));
		all[i] = &ops[i];
	}
	driver->submit(backend, all, MANY);
	await(MANY);
	for (size_t i = 0; i < MANY; i++) {
		assert_int_equal(ops[i].status, 0);
		snprintf(name, sizeof(name), "7/many/%032zx", i);
		ops[i] = op_of(KV_REMOTE_GET, name);
		ops[i].data = room[i];
		ops[i].room = sizeof(room[i]);
	}
	driver->submit(backend, all, MANY);
	await(MANY);
	for (size_t i = 0; i < MANY; i++) {
		assert_int_equal(ops[i].status, 0);
		assert_memory_equal(room[i], data[i], sizeof(data[i]));
	}
}

static inline void test_what_is_cancelled_ends(void **state)
{
	static struct kv_remote_op ops[MANY];
	struct kv_remote_op *op;

	(void)state;
	for (size_t i = 0; i < MANY; i++) {
		ops[i] = op_of(KV_REMOTE_EXISTS, OBJECT);
		op = &ops[i];
		driver->submit(backend, &op, 1);
		driver->cancel(backend, op);
	}
	await(MANY);
	for (size_t i = 0; i < MANY; i++)
		assert_true(ops[i].status == -ENOENT ||
			    ops[i].status == -ECANCELED);
}

/* The test after these may find the backend pausing for a second. */
#define BACKEND_TESTS                                                         \
	cmocka_unit_test(test_what_is_put_comes_back),                        \
		cmocka_unit_test(test_the_first_to_publish_wins),             \
		cmocka_unit_test(test_many_at_once),                          \
		cmocka_unit_test(test_a_space_is_cleared_but_for_its_layout), \
		cmocka_unit_test(test_what_is_cancelled_ends)

#endif
