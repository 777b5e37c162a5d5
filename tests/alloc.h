/* SPDX-License-Identifier: Apache-2.0 */
/*
 * alloc.h - inject faults into allocations.
 *
 * This header defines malloc(3) and its relatives for the whole process; LMDB,
 * jansson and libc itself (strdup, asprintf, fopen) call these too.  Sanitizers
 * define their own, so tests are skipped under one: alloc_skip().
 *
 * OWNS     the count of live allocations.
 * LOCKING  atomic: any thread allocates.
 */
#ifndef KV_TESTS_ALLOC_H
#define KV_TESTS_ALLOC_H

#include <malloc.h>
#include <stdio.h>

#include "tests/inject.h"

static _Atomic long alloc_live; /* allocations not yet freed */

/* Assert @condition without allocating memory, because allocations may be set
 * to fail. */
#define alloc_must(condition)                                              \
	do {                                                               \
		if (!(condition)) {                                        \
			inject_disarm();                                   \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, \
				#condition);                               \
			abort();                                           \
		}                                                          \
	} while (0)

/* Assert that the result @r is one of the listed values. */
#define alloc_among(r, ...)                                                \
	do {                                                               \
		const int among[] = {__VA_ARGS__};                         \
		size_t at = 0;                                             \
		while (at < KV_ARRAY_LEN(among) && among[at] != (r))       \
			at++;                                              \
		if (at == KV_ARRAY_LEN(among)) {                           \
			inject_disarm();                                   \
			fprintf(stderr, "%s:%d: " #r " is %d\n", __FILE__, \
				__LINE__, (int)(r));                       \
			abort();                                           \
		}                                                          \
	} while (0)

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ALLOC_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define ALLOC_SANITIZED 1
#endif
#endif

#ifdef ALLOC_SANITIZED
static inline bool alloc_skip(void)
{
	printf("the sanitizer has malloc\n");
	return true;
}
#else
static inline bool alloc_skip(void)
{
	return false;
}

extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);
extern void *__libc_memalign(size_t align, size_t n);
extern void __libc_free(void *p);

static void *count(void *p)
{
	if (p)
		alloc_live++;
	return p;
}

void *malloc(size_t n)
{
	return inject_fails() ? NULL : count(__libc_malloc(n));
}

void *calloc(size_t n, size_t size)
{
	return inject_fails() ? NULL : count(__libc_calloc(n, size));
}

void *realloc(void *p, size_t n)
{
	if (inject_fails())
		return NULL;
	if (!p)
		return count(__libc_malloc(n));
	return __libc_realloc(p, n);
}

void *memalign(size_t align, size_t n)
{
	return inject_fails() ? NULL : count(__libc_memalign(align, n));
}

void *aligned_alloc(size_t align, size_t n)
{
	return memalign(align, n);
}

int posix_memalign(void **ret_p, size_t align, size_t n)
{
	void *p = memalign(align, n);

	if (!p)
		return ENOMEM;
	*ret_p = p;
	return 0;
}

void free(void *p)
{
	if (p)
		alloc_live--;
	__libc_free(p);
}
#endif

struct alloc_script {
	void (*run)(void *arg);	   /* function whose allocations fail */
	void (*before)(void *arg); /* called before each run; NULL: nothing */
	/* called after each run: checks the result and frees the memory */
	void (*after)(void *arg);
};

/* Run @script once.  Return how many allocations failed; *@ret_leaked: how many
 * more allocations are live than before. */
static inline long alloc_run(const struct alloc_script *script, void *arg,
			     long n, long burst, long *ret_leaked)
{
	long live = alloc_live, failed;

	if (script->before)
		script->before(arg);
	inject_arm(ENOMEM, n, burst);
	script->run(arg);
	failed = inject_disarm();
	if (script->after)
		script->after(arg);
	*ret_leaked = alloc_live - live;
	return failed;
}

/*
 * Run @script again and again, with its first, second, ... allocation and the
 * next @burst - 1 ones failing, until no allocation fails.  Return the number
 * of runs with a failure.  libc never frees some allocations, such as those for
 * a thread's stack, so only five leaks in a row fail the test.
 */
static inline long alloc_every(const struct alloc_script *script, void *arg,
			       long burst)
{
	long n = 0, failed, leaked, tries;

	do {
		tries = 5;
		do
			failed = alloc_run(script, arg, n, burst, &leaked);
		while (leaked > 0 && --tries);
		if (!tries) {
			fprintf(stderr, "allocation %ld: %ld leaked\n", n,
				leaked);
			abort();
		}
		n++;
	} while (failed > 0);
	return n - 1;
}

#endif
