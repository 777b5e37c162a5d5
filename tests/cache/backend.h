/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backend.h - call the operations of a backend of the remote tier and wait for
 * them; and tests that every backend must pass.
 */
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

#define WAIT_MS 60000

static const struct kv_remote_driver *driver;
static struct kv_ops *backend;

#define OBJECT "1000/2-space/00112233445566778899aabbccddeeff"

static struct kv_remote_op op_of(enum kv_remote_call call, const char *name)
{
	struct kv_remote_op op = {.call = call, .status = 1, .max = UINT64_MAX};

	snprintf(op.name, sizeof(op.name), "%s", name);
	return op;
}

/* Return a PUT of the @n bytes at @data, which are split into two parts. */
static inline struct kv_remote_op put_of(const char *name, const void *data,
					 size_t n)
{
	struct kv_remote_op op = op_of(KV_REMOTE_PUT, name);

	op.parts[0].iov_base = (void *)data;
	op.parts[0].iov_len = n / 3;
	op.parts[1].iov_base = (uint8_t *)data + n / 3;
	op.parts[1].iov_len = n - n / 3;
	return op;
}

/* Wait until @n operations have ended, in any order. */
static inline void await(size_t n)
{
	while (n > 0) {
		struct pollfd fd = {backend->event, POLLIN, 0};

		assert_int_equal(poll(&fd, 1, WAIT_MS), 1);
		while (kv_ops_reap(backend))
			n--;
	}
}

/* Submit @op, wait for its end and return its status. */
static inline int do_op(struct kv_remote_op *op)
{
	kv_ops_submit(backend, op);
	await(1);
	return op->status;
}

static inline int put(const char *name, const void *data, size_t n)
{
	struct kv_remote_op op = put_of(name, data, n);

	return do_op(&op);
}

static inline int get(const char *name, void *room, size_t bytes,
		      uint64_t *ret_length)
{
	struct kv_remote_op op = op_of(KV_REMOTE_GET, name);
	int r = do_op(&op);

	if (r == 0) {
		assert_true(op.length <= bytes);
		memcpy(room, op.data, op.length);
		*ret_length = op.length;
	}
	free(op.data);
	return r;
}

static inline int status_of(enum kv_remote_call call, const char *name)
{
	struct kv_remote_op op = op_of(call, name);
	int r = do_op(&op);

	free(op.data);
	return r;
}

/* Check that @op ends with @status, and that the error text op.why contains
 * @word. */
static inline void must_fail(struct kv_remote_op op, int status,
			     const char *word)
{
	int r = do_op(&op);

	if (r != status || !strstr(op.why, word))
		fail_msg("%s: %d, \"%s\" instead of %d, \"%s\"", op.name, r,
			 op.why, status, word);
	free(op.data);
}

static inline void test_the_backend_is_there(void **state)
{
	(void)state;
	assert_int_equal(status_of(KV_REMOTE_HEAD, ""), 0);
}

static inline void test_an_object_that_was_put_comes_back(void **state)
{
	static const size_t sizes[] = {1, 4096, 100001, 5 << 20};
	uint8_t *data = malloc(5 << 20), *room = malloc(5 << 20);
	struct kv_remote_op op;
	uint64_t n = 0;

	(void)state;
	for (size_t i = 0; i < 5 << 20; i++)
		data[i] = (uint8_t)(i * 7 + (i >> 8));
	assert_int_equal(status_of(KV_REMOTE_HEAD, OBJECT), -ENOENT);
	assert_int_equal(get(OBJECT, room, 100, &n), -ENOENT);
	for (size_t i = 0; i < KV_ARRAY_LEN(sizes); i++) {
		assert_int_equal(put(OBJECT, data, sizes[i]), 0);
		op = op_of(KV_REMOTE_HEAD, OBJECT);
		assert_int_equal(do_op(&op), 0);
		assert_int_equal(op.length, sizes[i]);
		memset(room, 0, 5 << 20);
		assert_int_equal(get(OBJECT, room, 5 << 20, &n), 0);
		assert_int_equal(n, sizes[i]);
		assert_memory_equal(room, data, n);
	}
	assert_int_equal(status_of(KV_REMOTE_DELETE, OBJECT), 0);
	assert_int_equal(status_of(KV_REMOTE_DELETE, OBJECT), -ENOENT);
	assert_int_equal(get(OBJECT, room, 5 << 20, &n), -ENOENT);
	free(data);
	free(room);
}

static inline void test_without_memory_a_get_is_asked_again(void **state)
{
	struct kv_remote_op op = op_of(KV_REMOTE_GET, OBJECT);
	static uint8_t large[3 << 20];
	char room[8];
	uint64_t n;

	(void)state;
	assert_int_equal(put(OBJECT, large, sizeof(large)), 0);
	assert_int_equal(put("1/2-s/k", "bytes", 5), 0);
	for (int i = 0; i < 20; i++) {
		op.max = sizeof(large) - 1;
		assert_int_equal(do_op(&op), -EAGAIN);
		assert_int_equal(op.length, sizeof(large));
		assert_null(op.data);
		assert_int_equal(get("1/2-s/k", room, sizeof(room), &n), 0);
	}
	op.max = sizeof(large);
	assert_int_equal(do_op(&op), 0);
	free(op.data);
}

static inline void test_a_folder_is_removed_with_all_below_it(void **state)
{
	char room[8], name[100];
	uint64_t n = 0;

	(void)state;
	for (unsigned i = 0; i < 20; i++) {
		snprintf(name, sizeof(name), "1000/2-a/%032x", i);
		assert_int_equal(put(name, "bytes", 5), 0);
	}
	assert_int_equal(put("1000/2-ab/k", "bytes", 5), 0);
	assert_int_equal(status_of(KV_REMOTE_DELETE, "1000/2-a/"), 0);
	for (unsigned i = 0; i < 20; i++) {
		snprintf(name, sizeof(name), "1000/2-a/%032x", i);
		assert_int_equal(status_of(KV_REMOTE_HEAD, name), -ENOENT);
	}
	assert_int_equal(get("1000/2-ab/k", room, sizeof(room), &n), 0);
	assert_int_equal(status_of(KV_REMOTE_DELETE, "1000/2-a/"), -ENOENT);
	assert_int_equal(put("1000/2-a/k", "again", 5), 0);
	assert_int_equal(status_of(KV_REMOTE_DELETE, "1000/"), 0);
	assert_int_equal(status_of(KV_REMOTE_HEAD, "1000/2-ab/k"), -ENOENT);
}

#define MANY 200

static inline void test_many_at_once(void **state)
{
	static struct kv_remote_op ops[MANY];
	static uint8_t data[MANY][3000];
	char name[100];

	(void)state;
	for (size_t i = 0; i < MANY; i++) {
		snprintf(name, sizeof(name), "7/2-many/%032zx", i);
		memset(data[i], (int)i, sizeof(data[i]));
		ops[i] = put_of(name, data[i], sizeof(data[i]));
		kv_ops_submit(backend, &ops[i]);
	}
	await(MANY);
	for (size_t i = 0; i < MANY; i++) {
		assert_int_equal(ops[i].status, 0);
		snprintf(name, sizeof(name), "7/2-many/%032zx", i);
		ops[i] = op_of(KV_REMOTE_GET, name);
		kv_ops_submit(backend, &ops[i]);
	}
	await(MANY);
	for (size_t i = 0; i < MANY; i++) {
		assert_int_equal(ops[i].status, 0);
		assert_int_equal(ops[i].length, sizeof(data[i]));
		assert_memory_equal(ops[i].data, data[i], sizeof(data[i]));
		free(ops[i].data);
	}
}

/* Cancel operations right after their submission, or a little later. */
static inline void test_an_operation_that_is_cancelled_ends(void **state)
{
	static struct kv_remote_op ops[MANY];
	static uint8_t data[200000], room[sizeof(data)];
	struct kv_remote_op *op;
	uint64_t n = 0;

	(void)state;
	memset(data, 'a', sizeof(data));
	assert_int_equal(put(OBJECT, data, sizeof(data)), 0);
	for (size_t i = 0; i < MANY; i++) {
		ops[i] = i % 3 == 2
				 ? put_of(OBJECT, data, sizeof(data))
				 : op_of(i % 3 ? KV_REMOTE_GET : KV_REMOTE_HEAD,
					 OBJECT);
		op = &ops[i];
		kv_ops_submit(backend, op);
		usleep(i % 7 * 300);
		kv_ops_cancel(backend, op);
	}
	await(MANY);
	for (size_t i = 0; i < MANY; i++) {
		assert_true(ops[i].status == 0 || ops[i].status == -ECANCELED);
		if (i % 3 != 2)
			free(ops[i].data);
	}
	assert_int_equal(get(OBJECT, room, sizeof(room), &n), 0);
	assert_int_equal(n, sizeof(data));
	assert_memory_equal(room, data, sizeof(data));
}

/* A GET that runs beside a PUT of the same object gets the old bytes or the new
 * bytes, never a mixture. */
static inline void test_an_object_is_replaced_in_one_step(void **state)
{
	enum { BYTES = 300000, PAIRS = 60 };
	static uint8_t data[2][BYTES];
	struct kv_remote_op writes[2], read;

	(void)state;
	memset(data[0], 'a', BYTES);
	memset(data[1], 'b', BYTES / 2);
	assert_int_equal(put(OBJECT, data[0], BYTES), 0);
	for (int i = 0; i < PAIRS; i++) {
		writes[0] = put_of(OBJECT, data[i % 2], BYTES / (1 + i % 2));
		writes[1] =
			put_of(OBJECT, data[1 - i % 2], BYTES / (2 - i % 2));
		read = op_of(KV_REMOTE_GET, OBJECT);
		kv_ops_submit(backend, &writes[0]);
		kv_ops_submit(backend, &writes[1]);
		kv_ops_submit(backend, &read);
		await(3);
		assert_int_equal(writes[0].status, 0);
		assert_int_equal(writes[1].status, 0);
		assert_int_equal(read.status, 0);
		assert_memory_equal(read.data,
				    data[read.length == BYTES ? 0 : 1],
				    read.length);
		assert_true(read.length == BYTES || read.length == BYTES / 2);
		free(read.data);
	}
}

/* Kept apart from BACKEND_TESTS, because moto (a test server for S3) fails
 * concurrent PUTs of one object. */
#define REPLACE_TEST cmocka_unit_test(test_an_object_is_replaced_in_one_step)
#define BACKEND_TESTS                                                         \
	cmocka_unit_test(test_the_backend_is_there),                          \
		cmocka_unit_test(test_an_object_that_was_put_comes_back),     \
		cmocka_unit_test(test_without_memory_a_get_is_asked_again),   \
		cmocka_unit_test(test_many_at_once),                          \
		cmocka_unit_test(test_a_folder_is_removed_with_all_below_it), \
		cmocka_unit_test(test_an_operation_that_is_cancelled_ends)

#endif
