/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy.c - non-temporal copies, and hashing during a copy.
 *
 * OWNS      a kv_hash: its XXH3 state and its piece buffer.
 *
 * INVARIANTS
 *   (1) kv_hash_copy hashes and stores the same reading of each source byte.
 *   (2) Non-temporal stores are fenced before a public function returns, except
 *       in kv_copy_rows, whose caller calls the fence.
 *
 * LOCKING   a kv_hash belongs to one thread at a time.  The choice of the copy
 *           loop depends on the CPU only, so racing threads choose the same one.
 */
#include "common/copy.h"

#include <stdatomic.h>
#if defined(__x86_64__)
#include <immintrin.h>
#define XXH_DISPATCH_DISABLE_REPLACE
#include <xxh_x86dispatch.h>
/* Static archives of libxxhash lack the two functions that choose code by the
 * CPU. */
#pragma weak XXH3_128bits_dispatch
#pragma weak XXH3_128bits_update_dispatch
#define IF_THERE(f, otherwise) ((f) ? (f) : (otherwise))
#else
#include <xxhash.h>
#define IF_THERE(f, otherwise) (otherwise)
#endif

#define LINE 64
#define RUN (4 * LINE) /* bytes that one step of a copy moves */
#define SIDE 4	       /* rows copied side by side */
/* Bytes hashed in one step: with their source they fit the first-level cache (measured:
 * 1.07 times as fast as pieces of 16 KiB). */
#define PIECE (2 * KV_PAGE)
#define STREAM_MIN 1024 /* fewer bytes gain nothing from non-temporal stores */

/* Copy RUN bytes from @src to @dst, aligned to a cache line, and to @keep
 * unless that is NULL. */
typedef void (*run_fn)(uint8_t *dst, const uint8_t *src, uint8_t *keep);

/* Copy @n bytes, a multiple of RUN; otherwise like run_fn. */
typedef void (*runs_fn)(uint8_t *dst, const uint8_t *src, size_t n,
			uint8_t *keep);

/* Copy rows of @n bytes each, a multiple of RUN, with constant distances
 * between the beginnings of rows. */
struct rows {
	uint8_t *dst;
	const uint8_t *src;
	size_t dst_next, src_next, n, rows;
};
typedef void (*rows_fn)(const struct rows *rows);

struct kv_hash {
	XXH3_state_t *state;
	uint8_t *piece;
};

/* Copy one run after the other, and prefetch a page ahead: further than the CPU would
 * (measured: 1.15 times; while hashing 1.4 times as fast as four pages side by side). */
static inline __attribute__((always_inline)) void
each_run(run_fn run, uint8_t *dst, const uint8_t *src, size_t n, uint8_t *keep)
{
	for (size_t at = 0; at < n; at += RUN) {
		for (size_t i = 0; i < RUN; i += LINE)
			__builtin_prefetch(src + at + KV_PAGE + i);
		run(dst + at, src + at, keep ? keep + at : NULL);
	}
}

/* Read rows side by side if they lie apart.  Adjacent rows are one stream,
 * which is prefetched further ahead than the CPU would (measured: 1.3 and 1.1
 * times). */
static inline __attribute__((always_inline)) void
each_row(run_fn run, const struct rows *rows)
{
	const struct rows r = *rows;
	const bool apart = r.src_next != r.n;
	uint8_t *dst = r.dst;
	const uint8_t *src = r.src;
	size_t left = r.rows;

	for (; apart && left >= SIDE; left -= SIDE) {
		for (size_t off = 0; off < r.n; off += RUN)
			for (size_t i = 0; i < SIDE; i++)
				run(dst + i * r.dst_next + off,
				    src + i * r.src_next + off, NULL);
		dst += SIDE * r.dst_next;
		src += SIDE * r.src_next;
	}
	for (; left > 0; left--) {
		for (size_t off = 0; off < r.n; off += RUN) {
			for (size_t i = 0; i < RUN; i += LINE)
				__builtin_prefetch(src + off + KV_PAGE + i);
			run(dst + off, src + off, NULL);
		}
		dst += r.dst_next;
		src += r.src_next;
	}
}

#if defined(__x86_64__)
#define AVX512 __attribute__((target("avx512f")))
#define AVX2 __attribute__((target("avx2")))

static inline AVX512 void run_avx512(uint8_t *dst, const uint8_t *src,
				     uint8_t *keep)
{
	__m512i a = _mm512_loadu_si512(src);
	__m512i b = _mm512_loadu_si512(src + LINE);
	__m512i c = _mm512_loadu_si512(src + 2 * LINE);
	__m512i d = _mm512_loadu_si512(src + 3 * LINE);

	if (keep) {
		_mm512_storeu_si512(keep, a);
		_mm512_storeu_si512(keep + LINE, b);
		_mm512_storeu_si512(keep + 2 * LINE, c);
		_mm512_storeu_si512(keep + 3 * LINE, d);
	}
	_mm512_stream_si512((__m512i *)dst, a);
	_mm512_stream_si512((__m512i *)(dst + LINE), b);
	_mm512_stream_si512((__m512i *)(dst + 2 * LINE), c);
	_mm512_stream_si512((__m512i *)(dst + 3 * LINE), d);
}

static AVX512 void runs_avx512(uint8_t *dst, const uint8_t *src, size_t n,
			       uint8_t *keep)
{
	each_run(run_avx512, dst, src, n, keep);
}

static AVX512 void rows_avx512(const struct rows *rows)
{
	each_row(run_avx512, rows);
}

static inline AVX2 void run_avx2(uint8_t *dst, const uint8_t *src,
				 uint8_t *keep)
{
	__m256i v[RUN / sizeof(__m256i)];

	for (size_t i = 0; i < KV_ARRAY_LEN(v); i++)
		v[i] = _mm256_loadu_si256((const __m256i *)src + i);
	for (size_t i = 0; keep && i < KV_ARRAY_LEN(v); i++)
		_mm256_storeu_si256((__m256i *)keep + i, v[i]);
	for (size_t i = 0; i < KV_ARRAY_LEN(v); i++)
		_mm256_stream_si256((__m256i *)dst + i, v[i]);
}

static AVX2 void runs_avx2(uint8_t *dst, const uint8_t *src, size_t n,
			   uint8_t *keep)
{
	each_run(run_avx2, dst, src, n, keep);
}

static AVX2 void rows_avx2(const struct rows *rows)
{
	each_row(run_avx2, rows);
}

void kv_copy_fence(void)
{
	_mm_sfence();
}

static runs_fn fastest(void)
{
	if (__builtin_cpu_supports("avx512f"))
		return runs_avx512;
	if (__builtin_cpu_supports("avx2"))
		return runs_avx2;
	return NULL;
}
#else
void kv_copy_fence(void)
{
}

static runs_fn fastest(void)
{
	return NULL;
}
#endif

/* Copy through @keep: @src may change between two readings of it. */
static void copy_plain(uint8_t *dst, const uint8_t *src, size_t n,
		       uint8_t *keep)
{
	if (keep) {
		src = memcpy(keep, src, n);
		/* Without this fence the compiler may read @src again. */
		atomic_signal_fence(memory_order_seq_cst);
	}
	memcpy(dst, src, n);
}

static runs_fn runs(void)
{
	static _Atomic(runs_fn) chosen;
	runs_fn fn = atomic_load_explicit(&chosen, memory_order_relaxed);

	if (!fn) {
		fn = fastest();
		if (!fn)
			fn = copy_plain;
		atomic_store_explicit(&chosen, fn, memory_order_relaxed);
	}
	return fn;
}

/* Copy to @dst and, unless NULL, to @keep, without a store fence. */
static void stream(uint8_t *dst, const uint8_t *src, size_t n, uint8_t *keep)
{
	size_t head = -(uintptr_t)dst % LINE, body, tail;

	if (n < STREAM_MIN) {
		copy_plain(dst, src, n, keep);
		return;
	}
	body = (n - head) / RUN * RUN;
	tail = head + body;
	copy_plain(dst, src, head, keep);
	runs()(dst + head, src + head, body, keep ? keep + head : NULL);
	copy_plain(dst + tail, src + tail, n - tail, keep ? keep + tail : NULL);
}

void kv_copy_stream(void *dst, const void *src, size_t n)
{
	stream(dst, src, n, NULL);
	kv_copy_fence();
}

/* Return a fast copy for rows of whole runs that begin at a cache line, else
 * NULL. */
static rows_fn fast_rows(const struct rows *r)
{
#if defined(__x86_64__)
	if (((uintptr_t)r->dst | r->dst_next) % LINE || r->n % RUN)
		return NULL;
	if (runs() == runs_avx512)
		return rows_avx512;
	if (runs() == runs_avx2)
		return rows_avx2;
#else
	(void)r;
#endif
	return NULL;
}

void kv_copy_rows(void *dst, size_t dst_next, const void *src, size_t src_next,
		  size_t n, size_t rows)
{
	const struct rows all = {dst, src, dst_next, src_next, n, rows};
	const rows_fn fn = rows > 1 ? fast_rows(&all) : NULL;

	if (fn) {
		fn(&all);
		return;
	}
	for (size_t i = 0; i < rows; i++)
		stream(all.dst + i * dst_next, all.src + i * src_next, n, NULL);
}

int kv_hash_new(struct kv_hash **ret_hash)
{
	struct kv_hash *hash = calloc(1, sizeof(*hash));

	if (!hash)
		return -ENOMEM;
	hash->state = XXH3_createState();
	hash->piece = aligned_alloc(KV_PAGE, PIECE);
	if (!hash->state || !hash->piece) {
		kv_hash_free(hash);
		return -ENOMEM;
	}
	kv_hash_begin(hash);
	*ret_hash = hash;
	return 0;
}

void kv_hash_free(struct kv_hash *hash)
{
	if (!hash)
		return;
	XXH3_freeState(hash->state);
	free(hash->piece);
	free(hash);
}

void kv_hash_begin(struct kv_hash *hash)
{
	XXH3_128bits_reset(hash->state);
}

void kv_hash_update(struct kv_hash *hash, const void *data, size_t n)
{
	IF_THERE(XXH3_128bits_update_dispatch, XXH3_128bits_update)
	(hash->state, data, n);
}

void kv_hash_copy(struct kv_hash *hash, void *dst, const void *src, size_t n)
{
	uint8_t *to = dst;
	const uint8_t *from = src;

	while (n > 0) {
		size_t piece = KV_MIN(n, (size_t)PIECE);

		stream(to, from, piece, hash->piece);
		to += piece;
		from += piece;
		n -= piece;
		kv_hash_update(hash, hash->piece, piece);
	}
	kv_copy_fence();
}

static struct kv_digest canonical(XXH128_hash_t value)
{
	XXH128_canonical_t text;
	struct kv_digest digest;

	XXH128_canonicalFromHash(&text, value);
	memcpy(digest.b, text.digest, sizeof(digest.b));
	return digest;
}

struct kv_digest kv_hash_end(struct kv_hash *hash)
{
	return canonical(XXH3_128bits_digest(hash->state));
}

struct kv_digest kv_digest_of(const void *data, size_t n)
{
	return canonical(
		IF_THERE(XXH3_128bits_dispatch, XXH3_128bits)(data, n));
}
