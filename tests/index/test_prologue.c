/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_prologue.c - the first page of a slot.
 *
 * OWNS      nothing.
 *
 * LOCKING   none: one thread.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "index/index.h"

static const uint8_t store[16] = "a store's own id", other[16] = "another's";

static struct kv_prologue sealed(void)
{
	struct kv_prologue prologue;

	memset(&prologue, 0x5a, sizeof(prologue));
	prologue.record.generation = 7;
	kv_prologue_seal(&prologue, store);
	return prologue;
}

static void any_changed_bit_is_ebadmsg(void **state)
{
	struct kv_prologue prologue = sealed();
	uint8_t *bytes = (uint8_t *)&prologue;

	(void)state;
	for (size_t i = 0; i < sizeof(prologue) * 8; i++) {
		bytes[i / 8] ^= (uint8_t)(1 << i % 8);
		assert_int_equal(kv_prologue_check(&prologue, store), -EBADMSG);
		bytes[i / 8] ^= (uint8_t)(1 << i % 8);
	}
	assert_int_equal(kv_prologue_check(&prologue, store), 0);
}

static void a_page_of_zeros_is_ebadmsg(void **state)
{
	struct kv_prologue prologue = {0};
	const uint8_t zeros[16] = {0};

	(void)state;
	assert_int_equal(kv_prologue_check(&prologue, zeros), -EBADMSG);
}

static void another_stores_prologue_is_ebadmsg(void **state)
{
	struct kv_prologue prologue = sealed();

	(void)state;
	assert_int_equal(kv_prologue_check(&prologue, other), -EBADMSG);
}

static void
a_sealed_prologue_is_good_and_says_nothing_that_changes(void **state)
{
	struct kv_prologue prologue = sealed();

	(void)state;
	assert_int_equal(kv_prologue_check(&prologue, store), 0);
	assert_int_equal(prologue.record.generation, 7);
	assert_int_equal(prologue.record.atime, 0);
	assert_int_equal(prologue.record.hits, 0);
	assert_int_equal(prologue.record.pinned, 0);
	assert_int_equal(prologue.version, KV_PROLOGUE_VERSION);
	assert_int_equal(prologue.reserved, 0);
}

/* Users' disks have prologues of these bytes: other bytes need a new format
 * version. */
static void the_bytes_on_disk_are_those_of_version_1(void **state)
{
	struct kv_prologue prologue = {0};

	(void)state;
	for (size_t i = 0; i < sizeof(prologue.record); i++)
		((uint8_t *)&prologue.record)[i] = (uint8_t)i;
	kv_prologue_seal(&prologue, store);
	assert_memory_equal(&prologue, "KVBLOCK1\1\0\0\0\0\0\0\0", 16);
	assert_int_equal(prologue.record.checksum, 0x5b58f71499d7625);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(any_changed_bit_is_ebadmsg),
		cmocka_unit_test(a_page_of_zeros_is_ebadmsg),
		cmocka_unit_test(another_stores_prologue_is_ebadmsg),
		cmocka_unit_test(
			a_sealed_prologue_is_good_and_says_nothing_that_changes),
		cmocka_unit_test(the_bytes_on_disk_are_those_of_version_1),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
