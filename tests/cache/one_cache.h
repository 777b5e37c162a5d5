/* SPDX-License-Identifier: Apache-2.0 */
/*
 * one_cache.h - a cache with both tiers and one space, on a store in a directory
 * of its own.
 */
#ifndef KV_TESTS_CACHE_ONE_CACHE_H
#define KV_TESTS_CACHE_ONE_CACHE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <cmocka.h>

#include "cache/dram/dram.h"
#include "tests/cache/alone.h"
#include "tests/cache/check_arena.h"
#include "tests/tree.h"

struct one {
	char path[64];
	struct kv_cache_config config;
	struct kv_cache *cache;
	struct kv_space *space;
};

static inline void one_open(struct one *f)
{
	char *why = NULL;
	int r = kv_cache_open(&f->config, &f->cache, &why);

	if (r < 0)
		print_error("%s\n", why ? why : "?");
	assert_int_equal(r, 0);
	f->space = kv_space_find(f->cache, "s");
	if (!f->space && !f->config.read_only)
		assert_int_equal(
			kv_space_create(f->cache, "s", 0, 0, 0755, &f->space),
			0);
}

static inline void one_reopen(struct one *f)
{
	kv_cache_close(f->cache);
	one_open(f);
}

static inline int one_set_up(void **state, const char *evict)
{
	struct one *f = calloc(1, sizeof(*f));

	strcpy(f->path, "kvfs-test-XXXXXX");
	assert_non_null(mkdtemp(f->path));
	f->config.store = f->path;
	f->config.dram = 32 << 20;
	f->config.ssd = 64 << 20;
	f->config.ssd_given = true;
	f->config.segment = 8 << 20;
	f->config.evict = evict;
	one_open(f);
	*state = f;
	return 0;
}

static inline int one_tear_down(void **state)
{
	struct one *f = *state;

	kv_lock(f->cache);
	kv_arena_check_locked(f->cache);
	kv_unlock(f->cache);
	kv_cache_close(f->cache);
	tree_remove(f->path);
	free(f);
	return 0;
}

static inline struct kv_key one_key(unsigned n)
{
	struct kv_key key = {.len = 16};

	memset(key.b, 0x5a, 12);
	memcpy(key.b + 12, &n, sizeof(n));
	key.b[0] = (uint8_t)n;
	return key;
}

/* Get block @n; NULL: the cache does not have it. */
static inline struct kv_block *one_get(struct one *f, unsigned n)
{
	struct kv_key key = one_key(n);
	struct kv_block *block;

	return kv_block_get(f->cache, f->space, &key, &block) == 0 ? block
								   : NULL;
}

#endif
