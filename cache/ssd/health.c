/* SPDX-License-Identifier: Apache-2.0 */
/*
 * health.c - notice that the SSD does not answer, and stop reading it until it
 * does.
 *
 * OWNS       cache->health.
 *
 * STATES     of the tier, as readers see it, and what makes each step:
 *
 *              ONLINE -> OFFLINE   kv_health_note: ERRORS reads in a row failed
 *              ONLINE -> OFFLINE   kv_health_check_locked: a request is stuck
 *             OFFLINE -> ONLINE    probe_done: a page could be read
 *
 *            While the tier is OFFLINE, blocks on SSD are misses, and one page
 *            a second is read as a probe.  Failed writes set ssd->error.
 *
 * INVARIANTS
 *   (1) While the tier is OFFLINE at most one probe of kv_health_check_locked is
 *       under way.
 *   (2) No thread waits for a request for longer than the ring's patience after
 *       the device has stopped answering.  The request keeps what it uses,
 *       slot, buffer and extent, until it ends.
 *
 * LOCKING    cache->lock.
 */
#include "cache/ssd/ssd.h"

#define ERRORS 8u

static bool is_stuck(const struct kv_cache *cache, uint64_t since)
{
	return since && kv_now_ns() - since > cache->config.io_patience;
}

static struct kv_ring_stuck stuck_at(const struct kv_device *device)
{
	return device->ring ? kv_ring_stuck(device->ring)
			    : (struct kv_ring_stuck){0};
}

struct kv_ring_stuck kv_health_stuck_locked(struct kv_cache *cache, bool all)
{
	struct kv_ring_stuck stuck = {0};

	kv_assert_locked(&cache->lock);
	for (uint32_t i = 0; i < cache->ssd.n_devices; i++) {
		const struct kv_device *device = &cache->ssd.devices[i];
		const struct kv_ring_stuck more = stuck_at(device);

		if (device->failed && !all)
			continue;
		stuck.reads += more.reads;
		stuck.writes += more.writes;
	}
	stuck.writes += is_stuck(cache, cache->health.commit_since);
	stuck.writes += is_stuck(cache, cache->health.zero_since);
	return stuck;
}

static void go_offline(struct kv_cache *cache, const char *why)
{
	if (!cache->health.why)
		cache->stats.ssd_outages++;
	cache->health.why = why;
}

void kv_health_note(struct kv_cache *cache, const struct kv_device *device,
		    int status)
{
	struct kv_health *health = &cache->health;

	kv_lock(cache);
	if (device == cache->ssd.devices)
		health->errors = status == 0 ? 0 : health->errors + 1;
	cache->stats.io_errors += status != 0;
	if (health->errors >= ERRORS)
		go_offline(cache, "offline: reads fail");
	kv_unlock(cache);
}

bool kv_health_offline_locked(const struct kv_cache *cache,
			      const struct kv_device *device)
{
	kv_assert_locked(&cache->lock);
	return device == cache->ssd.devices ? cache->health.why != NULL
					    : device->failed;
}

const struct kv_device *kv_device_of(struct kv_cache *cache,
				     const struct kv_block *block)
{
	const struct kv_segfile *file =
		cache->ssd.n_devices > 1 ? kv_segfile_at(cache, block->file)
					 : NULL;

	return file ? file->device : cache->ssd.devices;
}

struct probe {
	struct kv_io io; /* first member: callbacks cast its address */
	struct kv_cache *cache;
	uint8_t page[KV_PAGE] __attribute__((aligned(KV_PAGE)));
};

/* End a probe that no thread waits for. */
static void probe_done(struct kv_io *io, int status)
{
	struct kv_cache *cache = ((struct probe *)io)->cache;

	kv_lock(cache);
	cache->health.probing = false;
	if (status == 0) {
		cache->health.errors = 0;
		cache->health.why = NULL;
	}
	kv_unlock(cache);
	free(io);
}

/* Prepare a read of a page, each time of another segment file.  Return NULL if
 * there is no file, or no memory. */
static struct probe *probe_new_locked(struct kv_cache *cache,
				      const struct kv_device *device)
{
	const struct kv_ssd *ssd = &cache->ssd;
	const uint32_t turn = cache->health.turn++;
	const struct kv_segfile *file = NULL;
	struct probe *probe = NULL;

	kv_assert_locked(&cache->lock);
	for (uint32_t i = 0; i < ssd->n_files && !file; i++) {
		file = ssd->files[(turn + i) % ssd->n_files];
		if (file && file->device != device)
			file = NULL;
	}
	if (!file || posix_memalign((void **)&probe, KV_PAGE, sizeof(*probe)))
		return NULL;
	probe->cache = cache;
	probe->io = (struct kv_io){
		.op = KV_IO_READ,
		.fd = file->fd,
		.buffer = -1,
		.data = probe->page,
		.offset = turn % file->slots * file->slot_bytes,
		.bytes = KV_PAGE,
		.done = probe_done,
	};
	return probe;
}

bool kv_health_check_locked(struct kv_cache *cache)
{
	struct kv_health *health = &cache->health;
	struct kv_ring_stuck all, here;
	struct probe *probe;
	unsigned n;

	kv_assert_locked(&cache->lock);
	for (uint32_t i = 1; i < cache->ssd.n_devices; i++) {
		struct kv_device *device = &cache->ssd.devices[i];
		const struct kv_ring_stuck stuck = stuck_at(device);

		if (!(stuck.reads + stuck.writes))
			continue;
		(void)kv_device_fail_locked(cache, device, -ETIMEDOUT);
		kv_writes_leave_locked(cache, device);
	}
	all = kv_health_stuck_locked(cache, true);
	here = kv_health_stuck_locked(cache, false);
	n = all.reads + all.writes;
	if (n > health->stuck)
		cache->stats.io_errors += n - health->stuck;
	if (here.reads + here.writes > health->here)
		go_offline(cache, "offline: requests do not end");
	health->stuck = n;
	health->here = here.reads + here.writes;
	if (here.writes > 0) {
		cache->ssd.error = -ETIMEDOUT;
		cache->ssd.failures++;
		kv_flushes_settle_locked(cache, -ETIMEDOUT);
		pthread_cond_broadcast(&cache->ssd.done);
	}
	if (!health->why || health->probing)
		return n > 0;
	probe = probe_new_locked(cache, cache->ssd.devices);
	if (!probe) {
		health->why = NULL;
		return n > 0;
	}
	health->probing = true;
	kv_ring_submit(cache->ssd.devices[0].ring, &probe->io);
	return n > 0;
}

bool kv_health_probe(struct kv_cache *cache, const struct kv_device *device)
{
	struct probe *probe;
	int r;

	kv_lock(cache);
	probe = probe_new_locked(cache, device);
	kv_unlock(cache);
	r = probe ? kv_ring_wait(device->ring, &probe->io) : -ENOENT;
	if (r != -ETIMEDOUT)
		free(probe);
	return r == 0;
}
