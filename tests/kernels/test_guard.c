/* SPDX-License-Identifier: Apache-2.0 */
/* The library's guard of a device: required calls in the device's table, and
 * valid results of its calls. */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

#include "kernels/device/device.h"
#include "kernels/kvfs.h"

/* Results and outputs of the device's calls, as set by the test. */
static struct {
	int r;
	void *given, *base;
	int released;
	struct kvfs_pool_info info;
} next;

static int next_open(const struct kvfs_pool_desc *desc, void **ret_pool)
{
	(void)desc;
	*ret_pool = next.given;
	return next.r;
}

static void next_close(void *pool)
{
	(void)pool;
}

static void next_info(void *pool, struct kvfs_pool_info *ret_info)
{
	(void)pool;
	*ret_info = next.info;
}

static int next_copy(void *pool, const struct kvfs_batch *batch)
{
	(void)pool;
	(void)batch;
	return next.r;
}

static void next_attach(void *base, uint64_t bytes, bool writable)
{
	(void)base;
	(void)bytes;
	(void)writable;
}

static bool next_needs_writable(void)
{
	return false;
}

static int next_event_wait(void *pool, void *stream, void *event,
			   void **ret_event_wait)
{
	(void)pool;
	(void)stream;
	(void)event;
	*ret_event_wait = next.given;
	return next.r;
}

static bool next_is_done(void *event_wait)
{
	(void)event_wait;
	return true;
}

static int next_order(void *event_wait, void *stream)
{
	(void)event_wait;
	(void)stream;
	return next.r;
}

static int next_reserve(const char *name, uint64_t bytes, uint64_t max_bytes,
			void **ret_memory, void **ret_base)
{
	(void)name;
	(void)bytes;
	(void)max_bytes;
	*ret_memory = next.given;
	*ret_base = next.base;
	return next.r;
}

static int next_grow(void *memory, uint64_t bytes)
{
	(void)memory;
	(void)bytes;
	return next.r;
}

static void next_release(void *memory)
{
	(void)memory;
	next.released++;
}

static int next_take_fd(void *memory)
{
	(void)memory;
	return next.r;
}

static int next_staging(void *pool, uint64_t bytes, unsigned buffers)
{
	(void)pool;
	(void)bytes;
	(void)buffers;
	return next.r;
}

static const struct kvfs_device whole = {
	.version = KVFS_DEVICE_VERSION,
	.name = "next",
	.open = next_open,
	.close = next_close,
	.info = next_info,
	.load = next_copy,
	.save = next_copy,
	.attach = next_attach,
	.detach = next_close,
	.needs_writable = next_needs_writable,
	.event_wait = next_event_wait,
	.event_wait_is_done = next_is_done,
	.event_wait_free = next_close,
	.order = next_order,
	.reserve = next_reserve,
	.grow = next_grow,
	.release = next_release,
	.take_fd = next_take_fd,
	.staging = next_staging,
};

/* Return why the device cannot be used, or NULL. */
static const char *why_not(const struct kvfs_device *device)
{
	static char why[128];

	if (kv_device_check(device, "next", why, sizeof(why)) == 0)
		return NULL;
	return why;
}

static void a_table_needs_three_calls(void **state)
{
	struct kvfs_device device = {
		.version = KVFS_DEVICE_VERSION,
		.name = "next",
		.info = next_info,
		.load = next_copy,
		.save = next_copy,
	};

	(void)state;
	assert_null(why_not(&device));
	assert_null(why_not(&whole));
	device.info = NULL;
	assert_string_equal(why_not(&device), "the device has no info");
	device.info = next_info;
	device.load = NULL;
	assert_string_equal(why_not(&device), "the device has no load");
	device.load = next_copy;
	device.save = NULL;
	assert_string_equal(why_not(&device), "the device has no save");
}

#define assert_lacks(call, why)                                     \
	do {                                                        \
		struct kvfs_device device = whole;                  \
                                                                    \
		device.call = NULL;                                 \
		if (why)                                            \
			assert_string_equal(why_not(&device), why); \
		else                                                \
			assert_null(why_not(&device));              \
	} while (0)

static void calls_that_go_together_are_all_there_or_none(void **state)
{
	const char *none = NULL;

	(void)state;
	assert_lacks(detach, "the device has attach, but no detach");
	assert_lacks(attach, "the device has detach, but no attach");
	assert_lacks(event_wait_is_done,
		     "the device has event_wait, but no event_wait_is_done");
	assert_lacks(event_wait_free,
		     "the device has event_wait, but no event_wait_free");
	assert_lacks(event_wait,
		     "the device has event_wait_is_done, but no event_wait");
	assert_lacks(grow, "the device has reserve, but no grow");
	assert_lacks(release, "the device has reserve, but no release");
	assert_lacks(reserve, "the device has grow, but no reserve");
	assert_lacks(open, none);
	assert_lacks(close, none);
	assert_lacks(needs_writable, none);
	assert_lacks(order, none);
	assert_lacks(take_fd, none);
	assert_lacks(staging, none);
}

static void what_needs_a_group_does_not_come_without_it(void **state)
{
	struct kvfs_device device = whole;

	(void)state;
	device.attach = NULL;
	device.detach = NULL;
	assert_string_equal(why_not(&device),
			    "the device has needs_writable, but no attach");
	device.needs_writable = NULL;
	device.event_wait = NULL;
	device.event_wait_is_done = NULL;
	device.event_wait_free = NULL;
	assert_string_equal(why_not(&device),
			    "the device has order, but no event_wait");
	device.order = NULL;
	device.reserve = NULL;
	device.grow = NULL;
	device.release = NULL;
	assert_string_equal(why_not(&device),
			    "the device has take_fd, but no reserve");
	device.take_fd = NULL;
	assert_null(why_not(&device));
}

/* Of a device's table with another version, the library reads only the
 * version. */
static void a_table_has_its_version_and_its_name(void **state)
{
	struct kvfs_device device = {.version = KVFS_DEVICE_VERSION + 1,
				     .name = (const char *)16};
	char want[128];

	(void)state;
	snprintf(want, sizeof(want),
		 "the table has version %u of kvfs_device.h, and this library "
		 "version %u",
		 KVFS_DEVICE_VERSION + 1, KVFS_DEVICE_VERSION);
	assert_string_equal(why_not(&device), want);
	device = whole;
	device.name = "host";
	assert_string_equal(why_not(&device),
			    "the table has the name \"host\"");
	device.name = NULL;
	assert_string_equal(why_not(&device), "the table has the name \"\"");
}

static const int no_answers[] = {1,	  EIO,	 INT_MAX,  -EINPROGRESS,
				 -EAGAIN, -4096, -1000000, INT_MIN};

static void what_is_no_answer_is_eio(void **state)
{
	void *out, *base;
	size_t i;

	(void)state;
	next.given = next.base = &next;
	for (i = 0; i < KV_ARRAY_LEN(no_answers); i++) {
		next.r = no_answers[i];
		assert_int_equal(kv_device_result(next.r), -EIO);
		assert_int_equal(kv_device_copy(&whole, NULL, NULL, true),
				 -EIO);
		assert_int_equal(kv_device_copy(&whole, NULL, NULL, false),
				 -EIO);
		assert_int_equal(
			kv_device_event_wait(&whole, NULL, &next, NULL, &out),
			-EIO);
		assert_int_equal(
			kv_device_reserve(&whole, "next", 1, 1, &out, &base),
			-EIO);
	}
	assert_int_equal(kv_device_result(-ENOTRECOVERABLE), -ENOTRECOVERABLE);
	assert_int_equal(kv_device_result(0), 0);
	next.r = 0;
	assert_int_equal(kv_device_copy(&whole, NULL, NULL, true), 0);
}

/* An error other than -EIO would say that the copy has left the block's pages
 * unchanged. */
static void a_copy_that_fails_is_eio_whatever_it_says(void **state)
{
	static const int others[] = {-ENOENT,	 -ESTALE,    -EBADMSG,
				     -ECANCELED, -ETIMEDOUT, -ENOMEM};
	size_t i;

	(void)state;
	for (i = 0; i < KV_ARRAY_LEN(others); i++) {
		next.r = others[i];
		assert_int_equal(kv_device_copy(&whole, NULL, NULL, true),
				 -EIO);
		assert_int_equal(kv_device_copy(&whole, NULL, NULL, false),
				 -EIO);
	}
}

static void what_is_not_given_is_eio(void **state)
{
	void *out = NULL, *base;

	(void)state;
	next.r = 0;
	next.given = NULL;
	next.base = &next;
	next.released = 0;
	assert_int_equal(kv_device_event_wait(&whole, NULL, &next, NULL, &out),
			 -EIO);
	assert_int_equal(kv_device_reserve(&whole, "next", 1, 1, &out, &base),
			 -EIO);
	assert_int_equal(next.released, 0);
	next.given = &next;
	next.base = NULL;
	assert_int_equal(kv_device_reserve(&whole, "next", 1, 1, &out, &base),
			 -EIO);
	assert_int_equal(next.released, 1);
	assert_null(out);
}

static void a_device_without_memory_reserves_none(void **state)
{
	void *out, *base;

	(void)state;
	assert_int_equal(
		kv_device_reserve(&(struct kvfs_device){.name = "bare"}, "bare",
				  1, 1, &out, &base),
		-EOPNOTSUPP);
}

/* The device describes itself; the library adds the other fields. */
static void a_device_tells_what_is_its_own(void **state)
{
	struct kvfs_pool_info info;

	(void)state;
	memset(&next.info, 0x5a, sizeof(next.info));
	next.info.path = NULL;
	next.info.reason = NULL;
	next.info.buffers = 3;
	kv_device_info(&whole, NULL, &info);
	assert_int_equal(info.size, sizeof(info));
	assert_string_equal(info.device, "next");
	assert_string_equal(info.path, "");
	assert_string_equal(info.reason, "");
	assert_int_equal(info.buffers, 3);
	assert_int_equal(info.pages_max, 0);
	assert_null(info.base);
	assert_null(info.lent_reason);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_table_needs_three_calls),
		cmocka_unit_test(calls_that_go_together_are_all_there_or_none),
		cmocka_unit_test(what_needs_a_group_does_not_come_without_it),
		cmocka_unit_test(a_table_has_its_version_and_its_name),
		cmocka_unit_test(what_is_no_answer_is_eio),
		cmocka_unit_test(a_copy_that_fails_is_eio_whatever_it_says),
		cmocka_unit_test(what_is_not_given_is_eio),
		cmocka_unit_test(a_device_without_memory_reserves_none),
		cmocka_unit_test(a_device_tells_what_is_its_own),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
