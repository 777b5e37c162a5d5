/* SPDX-License-Identifier: Apache-2.0 */
/*
 * alloc.h - a program in which the n-th allocation fails.
 *
 * Defines malloc and its relatives for the whole process, LMDB, jansson and
 * libc's own calls (strdup, asprintf, fopen) among them; glibc allows that.
 * Sanitizers do the same, so that under one of them there is nothing to test
 * and alloc_skip() says so.
 *
 * OWNS     the counters.
 * LOCKING  atomic: any thread allocates.
 */
#ifndef KV_TESTS_ALLOC_H
#define KV_TESTS_ALLOC_H

#include <malloc.h>
#include <stdatomic.h>
#include <stdio.h>

#include "common/kv.h"

static _Atomic long alloc_left;	  /* how many succeed before one fails */
static _Atomic long alloc_burst;  /* how many fail then */
static _Atomic bool alloc_on;	  /* count and fail */
static _Atomic long alloc_failed; /* since alloc_arm */
static _Atomic long alloc_live;	  /* allocations not yet freed */

/* Let @n allocations succeed, and @burst fail then. */
static inline void alloc_arm(long n, long burst)
{
	alloc_left = n;
	alloc_burst = burst;
	alloc_failed = 0;
	alloc_on = true;
}

/* How many have failed. */
static inline long alloc_disarm(void)
{
	alloc_on = false;
	return alloc_failed;
}

/* Assertions allocate, so not while armed. */
#define alloc_must(condition)                                              \
	do {                                                               \
		if (!(condition)) {                                        \
			alloc_disarm();                                    \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, \
				#condition);                               \
			abort();                                           \
		}                                                          \
	} while (0)

/* @r is one of these results. */
#define alloc_among(r, ...)                                                \
	do {                                                               \
		const int among[] = {__VA_ARGS__};                         \
		size_t at = 0;                                             \
		while (at < KV_ARRAY_LEN(among) && among[at] != (r))       \
			at++;                                              \
		if (at == KV_ARRAY_LEN(among)) {                           \
			alloc_disarm();                                    \
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

static bool fails(void)
{
	long n;

	if (!alloc_on)
		return false;
	n = atomic_fetch_sub(&alloc_left, 1);
	if (n > 0 || n <= -alloc_burst)
		return false;
	alloc_failed++;
	errno = ENOMEM;
	return true;
}

static void *count(void *p)
{
	if (p)
		alloc_live++;
	return p;
}

void *malloc(size_t n)
{
	return fails() ? NULL : count(__libc_malloc(n));
}

void *calloc(size_t n, size_t size)
{
	return fails() ? NULL : count(__libc_calloc(n, size));
}

void *realloc(void *p, size_t n)
{
	if (fails())
		return NULL;
	if (!p)
		return count(__libc_malloc(n));
	return __libc_realloc(p, n);
}

void *memalign(size_t align, size_t n)
{
	return fails() ? NULL : count(__libc_memalign(align, n));
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
	void (*run)(void *arg);	   /* the calls that fail */
	void (*before)(void *arg); /* each run; NULL: nothing */
	void (*after)(void *arg);  /* frees what @run left */
};

/* How many failed, and how many allocations more there are than before. */
static inline long alloc_run(const struct alloc_script *script, void *arg,
			     long n, long burst, long *ret_leaked)
{
	long live = alloc_live, failed;

	if (script->before)
		script->before(arg);
	alloc_arm(n, burst);
	script->run(arg);
	failed = alloc_disarm();
	if (script->after)
		script->after(arg);
	*ret_leaked = alloc_live - live;
	return failed;
}

/*
 * Run @script with its first, second, ... allocation failing, and @burst - 1
 * after that, until all go through.  Returns how many runs had a fault.
 *
 * libc keeps a few things for good, such as one of each thread's stack; what
 * leaks does so every time.
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
