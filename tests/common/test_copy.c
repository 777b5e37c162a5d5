/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_copy.c - streaming copies of every size and alignment, with the digest of
 * the copied bytes.
 *
 * OWNS      two buffers with guard bytes around what is copied.
 *
 * LOCKING   the test of a changing source writes it from a second thread
 *           without a lock: the test is about this race.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdatomic.h>
#include <stdio.h>
#include <xxhash.h>

#include "common/copy.h"

#define BYTES (3u << 20)
#define GUARD 256
#define FILL 0xa5

struct buffers {
	/* buffers of BYTES bytes, with guard bytes before and after */
	uint8_t *src, *dst;
	struct kv_hash *hash;
};

static int setup(void **state)
{
	static struct buffers b;
	uint64_t x = 88172645463325252u;

	b.src = aligned_alloc(KV_PAGE, BYTES + KV_PAGE);
	b.dst = aligned_alloc(KV_PAGE, BYTES + KV_PAGE);
	for (size_t i = 0; i < BYTES + KV_PAGE; i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		b.src[i] = (uint8_t)(x >> 32);
	}
	*state = &b;
	return kv_hash_new(&b.hash);
}

static int teardown(void **state)
{
	struct buffers *b = *state;

	free(b->src);
	free(b->dst);
	kv_hash_free(b->hash);
	return 0;
}

static const size_t sizes[] = {
	0,     1,     2,     63,    64,	   65,	  127,	 255,
	256,   257,   1023,  1024,  1025,  1087,  1279,	 4095,
	4096,  4097,  8191,  16383, 16384, 16385, 16640, 20000,
	32767, 32768, 32769, 49152, 65535, 65536, 65537, 1u << 20,
};

static struct kv_digest reference(const void *data, size_t n)
{
	XXH128_canonical_t text;
	struct kv_digest digest;

	XXH128_canonicalFromHash(&text, XXH3_128bits(data, n));
	memcpy(digest.b, text.digest, sizeof(digest.b));
	return digest;
}

static void assert_untouched(const uint8_t *at, size_t n)
{
	for (size_t i = 0; i < n; i++)
		assert_int_equal(at[i], FILL);
}

/* Copy @n bytes; source and destination begin @from and @to bytes after the
 * start of a cache line. */
static void check_copy(struct buffers *b, size_t n, size_t to, size_t from,
		       bool hashed)
{
	uint8_t *dst = b->dst + GUARD + to, *src = b->src + GUARD + from;
	struct kv_digest want, got;

	memset(b->dst, FILL, n + to + 2 * GUARD);
	if (hashed) {
		kv_hash_begin(b->hash);
		kv_hash_copy(b->hash, dst, src, n);
		got = kv_hash_end(b->hash);
		want = reference(src, n);
		assert_memory_equal(&got, &want, sizeof(got));
	} else {
		kv_copy_stream(dst, src, n);
	}
	if (n > 0)
		assert_memory_equal(dst, src, n);
	assert_untouched(b->dst, GUARD + to);
	assert_untouched(dst + n, GUARD);
}

static void every_size_and_alignment_is_copied_exactly(void **state)
{
	static const size_t shifts[] = {0, 1, 15, 32, 63};

	for (size_t i = 0; i < KV_ARRAY_LEN(sizes); i++)
		for (size_t t = 0; t < KV_ARRAY_LEN(shifts); t++)
			for (size_t f = 0; f < KV_ARRAY_LEN(shifts); f++)
				check_copy(*state, sizes[i], shifts[t],
					   shifts[f], false);
}

static void every_size_and_alignment_is_hashed_and_copied(void **state)
{
	static const size_t shifts[] = {0, 1, 31, 63};

	for (size_t i = 0; i < KV_ARRAY_LEN(sizes); i++)
		for (size_t t = 0; t < KV_ARRAY_LEN(shifts); t++)
			check_copy(*state, sizes[i], shifts[t],
				   shifts[KV_ARRAY_LEN(shifts) - 1 - t], true);
}

static void a_digest_in_parts_is_that_of_the_whole(void **state)
{
	struct buffers *b = *state;
	struct kv_digest got, want = reference(b->src, 100000);

	kv_hash_begin(b->hash);
	kv_hash_update(b->hash, b->src, 4096);
	kv_hash_copy(b->hash, b->dst, b->src + 4096, 50001);
	kv_hash_update(b->hash, b->src + 54097, 0);
	kv_hash_copy(b->hash, b->dst, b->src + 54097, 100000 - 54097);
	got = kv_hash_end(b->hash);
	assert_memory_equal(&got, &want, sizeof(got));
}

static void begin_forgets_what_was_before(void **state)
{
	struct buffers *b = *state;
	struct kv_digest got, want = reference(b->src, 0);

	kv_hash_update(b->hash, b->src, 12345);
	kv_hash_begin(b->hash);
	got = kv_hash_end(b->hash);
	assert_memory_equal(&got, &want, sizeof(got));
}

static void a_digest_is_as_xxh128sum_prints_it(void **state)
{
	static const uint8_t empty[16] = {0x99, 0xaa, 0x06, 0xd3, 0x01, 0x47,
					  0x98, 0xd8, 0x60, 0x01, 0xc3, 0x24,
					  0x46, 0x8d, 0x49, 0x7f};
	struct buffers *b = *state;
	struct kv_digest got = kv_digest_of("", 0), want;

	assert_memory_equal(got.b, empty, sizeof(empty));
	for (size_t i = 0; i < KV_ARRAY_LEN(sizes); i++) {
		got = kv_digest_of(b->src, sizes[i]);
		want = reference(b->src, sizes[i]);
		assert_memory_equal(&got, &want, sizeof(got));
	}
}

struct scribbler {
	uint8_t *at;
	size_t n;
	atomic_bool stop;
};

#if defined(__SANITIZE_THREAD__)
#define RACES __attribute__((no_sanitize("thread")))
#else
#define RACES
#endif

static RACES void *scribble(void *arg)
{
	struct scribbler *s = arg;

	for (uint8_t round = 0; !s->stop; round++)
		for (size_t i = 0; i < s->n; i += 8)
			((volatile uint8_t *)s->at)[i] = round;
	return NULL;
}

static void
the_digest_is_of_what_was_stored_while_the_source_changes(void **state)
{
	struct buffers *b = *state;
	_cleanup_(kv_freep) uint8_t *src = calloc(1, 1u << 20);
	struct scribbler s = {.at = src, .n = 1u << 20};
	unsigned differ = 0, raced = 0;
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, scribble, &s), 0);
	for (size_t i = 0; i < 400; i++) {
		size_t n = i % 4 ? s.n - 3 : 700;
		uint8_t *dst = b->dst + i % 2 * 3;
		struct kv_digest got, want;

		kv_hash_begin(b->hash);
		kv_hash_copy(b->hash, dst, src, n);
		got = kv_hash_end(b->hash);
		want = reference(dst, n);
		differ += memcmp(&got, &want, sizeof(got)) != 0;
		raced += memcmp(dst, src, n) != 0;
	}
	s.stop = true;
	pthread_join(thread, NULL);
	assert_int_equal(differ, 0);
	assert_true(raced > 0);
}

/* Copy rows, and check the bytes between, before and after them. */
static void copy_rows_once(struct buffers *b, size_t n, size_t rows,
			   size_t dst_next, size_t src_next, size_t shift)
{
	uint8_t *dst = b->dst + GUARD + shift;
	const uint8_t *src = b->src + shift / 2;
	size_t end = (rows - 1) * dst_next + n;

	memset(dst - GUARD, FILL, end + 2 * GUARD);
	kv_copy_rows(dst, dst_next, src, src_next, n, rows);
	kv_copy_fence();
	assert_untouched(dst - GUARD, GUARD);
	for (size_t i = 0; i < rows; i++) {
		assert_memory_equal(dst + i * dst_next, src + i * src_next, n);
		if (i + 1 < rows)
			assert_untouched(dst + i * dst_next + n, dst_next - n);
	}
	assert_untouched(dst + end, GUARD);
}

static void rows_of_every_size_and_distance_are_copied_exactly(void **state)
{
	static const size_t widths[] = {64,   100,  256,  512,	1024,
					1280, 4000, 4096, 8192, 32768};
	static const size_t counts[] = {1, 2, 3, 4, 5, 9};
	static const size_t gaps[] = {0, 1, 64, 4096};

	for (size_t w = 0; w < KV_ARRAY_LEN(widths); w++)
		for (size_t c = 0; c < KV_ARRAY_LEN(counts); c++)
			for (size_t g = 0; g < 16; g++)
				copy_rows_once(*state, widths[w], counts[c],
					       widths[w] + gaps[g % 4],
					       widths[w] + gaps[g / 4],
					       g % 3 ? 0 : 34);
}

static void free_takes_null(void **state)
{
	(void)state;
	kv_hash_free(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_size_and_alignment_is_copied_exactly),
		cmocka_unit_test(every_size_and_alignment_is_hashed_and_copied),
		cmocka_unit_test(a_digest_in_parts_is_that_of_the_whole),
		cmocka_unit_test(begin_forgets_what_was_before),
		cmocka_unit_test(a_digest_is_as_xxh128sum_prints_it),
		cmocka_unit_test(
			the_digest_is_of_what_was_stored_while_the_source_changes),
		cmocka_unit_test(
			rows_of_every_size_and_distance_are_copied_exactly),
		cmocka_unit_test(free_takes_null),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
