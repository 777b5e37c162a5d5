/* SPDX-License-Identifier: Apache-2.0 */
/*
 * core.c - the cache's lock, and work that is deferred until it is released.
 *
 * OWNS     cache->deferred: blocks that were removed, acquires that are
 *          settled, flushes that ended, segments that clients must unmap, feeds
 *          with changes.
 *
 * LOCKING  defines cache->lock.  Deferred callbacks run without the lock, on
 *          the thread that released it.
 */
#include "cache/core/core.h"
#include "cache/core/hooks.h"
#include "cache/core/table.h"
#include "common/array.h"

#include <stdarg.h>
#include <stdio.h>

void kv_lock(struct kv_cache *cache)
{
	pthread_mutex_lock(&cache->lock);
}

void kv_unlock(struct kv_cache *cache)
{
	const struct kv_cache_config *config = &cache->config;
	struct kv_deferred deferred;

	cache->deferred.room = cache->room;
	if (cache->room)
		cache->block_hooks->room_locked(cache);
	deferred = cache->deferred;
	memset(&cache->deferred, 0, sizeof(cache->deferred));
	pthread_mutex_unlock(&cache->lock);

	for (size_t i = 0; i < deferred.n_gone && config->gone; i++)
		config->gone(config->arg, deferred.gone[i]);
	for (size_t i = 0; i < deferred.n_retired && config->retire; i++)
		config->retire(config->arg, deferred.retired[i]);
	while (deferred.settled) {
		struct kv_acquire *acquire = deferred.settled;

		deferred.settled = acquire->next_deferred;
		acquire->done(acquire, acquire->arg);
	}
	while (deferred.flushed) {
		struct kv_flush *flush = deferred.flushed;

		deferred.flushed = flush->next;
		flush->done(flush, flush->status);
	}
	while (deferred.woken) {
		struct kv_feed_wait *wait = deferred.woken;

		deferred.woken = wait->next;
		wait->done(wait);
	}
	if (deferred.room && config->room)
		config->room(config->arg);
	free(deferred.gone);
	free(deferred.retired);
}

void kv_cond_wait(struct kv_cache *cache, pthread_cond_t *cond, uint64_t ns)
{
	if (cache->room || cache->deferred.n_gone ||
	    cache->deferred.n_retired || cache->deferred.settled ||
	    cache->deferred.flushed || cache->deferred.woken) {
		kv_unlock(cache);
		kv_lock(cache);
		return; /* the callbacks may have made the condition true */
	}
	kv_cond_wait_until(cond, &cache->lock, kv_now_ns() + ns);
}

/* The mutex is not fair: without the pause this thread would lock it again
 * before a waiter has woken up. */
void kv_yield(struct kv_cache *cache)
{
	kv_unlock(cache);
	nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
	kv_lock(cache);
}

struct kv_segfile *kv_segfile_at(struct kv_cache *cache, uint32_t id)
{
	return id < cache->ssd.n_files ? cache->ssd.files[id] : NULL;
}

/* Without memory for it the notice of a removed block is dropped: the kernel
 * then caches the block's name for at most one second. */
void kv_defer_gone(struct kv_cache *cache, const struct kv_block *block)
{
	struct kv_deferred *deferred = &cache->deferred;

	if (cache->config.gone &&
	    kv_array_more(&deferred->gone, deferred->n_gone) == 0)
		deferred->gone[deferred->n_gone++] = kv_block_id(block);
}

void kv_defer_flushed(struct kv_cache *cache, struct kv_flush *flush,
		      int status)
{
	flush->status = status;
	flush->pending = false;
	flush->next = cache->deferred.flushed;
	cache->deferred.flushed = flush;
}

void kv_defer_retired(struct kv_cache *cache, uint32_t segment)
{
	struct kv_deferred *deferred = &cache->deferred;

	if (kv_array_more(&deferred->retired, deferred->n_retired) == 0)
		deferred->retired[deferred->n_retired++] = segment;
}

void kv_note(struct kv_cache *cache, const char *format, ...)
{
	_cleanup_(kv_freep) char *line = NULL;
	char *all;
	va_list args;

	va_start(args, format);
	if (vasprintf(&line, format, args) < 0)
		line = NULL;
	va_end(args);
	if (!line || asprintf(&all, "%s%s\n", cache->notes ? cache->notes : "",
			      line) < 0)
		return;
	free(cache->notes);
	cache->notes = all;
}

void kv_warn(struct kv_cache *cache, const char *key, const char *format, ...)
{
	_cleanup_(kv_freep) char *line = NULL;
	va_list args;

	va_start(args, format);
	if (vasprintf(&line, format, args) < 0)
		line = NULL;
	va_end(args);
	if (!line)
		return;
	kv_note(cache, "%s=%s", key, line);
	if (cache->config.warn)
		cache->config.warn(cache->config.arg, line);
}

void kv_tenant_name(const struct kv_cache *cache, uint32_t uid,
		    char name[KV_REMOTE_NAME_MAX + 1])
{
	const struct kv_remote_config *config = &cache->config.remote;

	sprintf(name, "%u", uid);
	for (size_t i = 0; i < config->n_tenants; i++)
		if (config->tenants[i].uid == uid)
			strcpy(name, config->tenants[i].name);
}
