/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kv.h - the few definitions that every part of kvfs shares; there is no kv.c.
 *
 * In-tree functions return 0 or a count, or -errno.
 */
#ifndef KV_COMMON_KV_H
#define KV_COMMON_KV_H

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define KV_PAGE 4096u /* unit of O_DIRECT, of slots and of block headers */
#define KV_KEY_MAX 32
#define KV_NAME_MAX 64 /* hex digits of the longest key, without the NUL */
#define KV_SPACE_NAME_MAX 255

#define KV_ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
#define KV_MIN(a, b) ((a) < (b) ? (a) : (b))
#define KV_MAX(a, b) ((a) > (b) ? (a) : (b))

/* Run @f on the variable's address when it leaves scope. */
#define _cleanup_(f) __attribute__((cleanup(f)))

/* Hand over an owning pointer: the variable becomes NULL. */
#define kv_steal(p)                         \
	({                                  \
		__typeof__(p) stolen = (p); \
		(p) = NULL;                 \
		stolen;                     \
	})

/* Return the object whose @member is at @pointer. */
#define kv_container(pointer, type, member) \
	((type *)((char *)(pointer)-offsetof(type, member)))

/* Abort unless this thread holds @mutex, whose owner glibc records. */
#define kv_assert_locked(mutex) \
	assert((mutex)->__data.__owner == kv_thread_id())
pid_t kv_thread_id(void); /* thread.c: gettid(2), cached */

/* A block's key: 16 or 32 bytes; bytes past @len are zero. */
struct kv_key {
	uint8_t b[KV_KEY_MAX];
	uint8_t len;
};

/* XXH3-128 of a block's file, in canonical (big-endian) order. */
struct kv_digest {
	uint8_t b[16];
};

static inline bool kv_key_equal(const struct kv_key *a, const struct kv_key *b)
{
	return a->len == b->len && memcmp(a->b, b->b, sizeof(a->b)) == 0;
}

struct kv_token_ids;

struct kv_meta {
	struct kv_key parent; /* key of the parent; len 0: none or unknown */
	uint32_t position;    /* position of the block in its chain, from 0 */
	uint32_t tokens;      /* number of tokens in the block; 0: unknown */
	int64_t mtime_ns; /* CLOCK_REALTIME of the seal, or set by utimens(2) */
	const struct kv_token_ids *ids; /* token ids of the block; NULL: none */
};

/* Return whether the error @r means too few resources, not damaged data. */
static inline bool kv_is_shortage(int r)
{
	return r == -ENOMEM || r == -EMFILE || r == -ENFILE || r == -ENOSPC;
}

static inline void kv_freep(void *p)
{
	free(*(void **)p);
}

static inline void kv_closep(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

/* Hand over a descriptor: *@fd becomes -1. */
static inline int kv_steal_fd(int *fd)
{
	int own = *fd;

	*fd = -1;
	return own;
}

/* Set *@ret to a * b + c.  Return false on overflow. */
static inline bool kv_mul_add(uint64_t a, uint64_t b, uint64_t c, uint64_t *ret)
{
	return !__builtin_mul_overflow(a, b, ret) &&
	       !__builtin_add_overflow(*ret, c, ret);
}

static inline uint64_t kv_round_up(uint64_t n, uint64_t unit)
{
	return (n + unit - 1) / unit * unit;
}

static inline uint64_t kv_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Convert nanoseconds into the form that system calls take. */
static inline struct timespec kv_timespec(uint64_t ns)
{
	return (struct timespec){.tv_sec = (time_t)(ns / 1000000000u),
				 .tv_nsec = (long)(ns % 1000000000u)};
}

static inline int64_t kv_wall_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ---- users that this process cannot tell apart ----
 *
 * In a user namespace the kernel shows every user without a number there as the
 * overflow user, among them root of the machine. */

/* Return whether @uid, as the kernel reports it, may be any of several users.  If
 * /proc cannot be read, the overflow user may. */
bool kv_user_is_hidden(uint32_t uid);

/* Return whether @text, in the form of /proc/self/uid_map, maps every user. */
bool kv_uid_map_is_whole(const char *text);

#endif
