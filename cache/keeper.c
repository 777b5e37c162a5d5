/* SPDX-License-Identifier: Apache-2.0 */
/*
 * keeper.c - once a second: spaces are brought back within their quotas,
 * and the SSD is looked after (health.c).
 *
 * OWNS       the housekeeper thread.  It never does I/O: somebody has to notice
 *            when I/O does not end.
 * LOCKING    cache->lock.
 */
#include "cache/block/block.h"
#include "cache/ssd/ssd.h"
#include "common/thread.h"

static void *housekeeper(void *arg)
{
	struct kv_cache *cache = arg;
	struct kv_housekeeper *keeper = &cache->housekeeper;

	kv_lock(cache);
	while (!keeper->stop) {
		kv_quotas_keep(cache);
		if (cache->ssd.on)
			kv_health_check_locked(cache);
		kv_unlock(cache);
		kv_bounce_trim(cache->bounce);
		kv_lock(cache);
		if (!keeper->stop)
			kv_cond_wait(cache, &keeper->wake, 1000000000u);
	}
	kv_unlock(cache);
	return NULL;
}

int kv_housekeeper_start(struct kv_cache *cache)
{
	struct kv_housekeeper *keeper = &cache->housekeeper;
	int r;

	kv_cond_init(&keeper->wake);
	r = kv_thread_start(&keeper->thread, "kvfs-keep", housekeeper, cache);
	keeper->running = r == 0;
	return r;
}

void kv_housekeeper_stop(struct kv_cache *cache)
{
	struct kv_housekeeper *keeper = &cache->housekeeper;

	if (!keeper->running)
		return;
	kv_lock(cache);
	keeper->stop = true;
	pthread_cond_signal(&keeper->wake);
	kv_unlock(cache);
	pthread_join(keeper->thread, NULL);
	keeper->running = false;
}
