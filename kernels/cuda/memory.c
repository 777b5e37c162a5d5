/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory.c - GPU memory of the library, and registered host memory.
 *
 * OWNS      the reserved addresses and the parts mapped there, one for each
 *           growth.  The list of attached host memory, its registrations, and
 *           the thread that makes them; not the host memory.
 *
 * STATES    of a chunk of host memory:
 *
 *             WAITING -> BUSY         work, the oldest one first
 *                BUSY -> REGISTERED   work
 *                BUSY -> REFUSED      work, for ever
 *                BUSY -> LATER        work: the driver had no memory
 *               LATER -> BUSY         work, after a while
 *          REGISTERED -> WAITING      kv_pinned_stop
 *
 * INVARIANTS
 *   (1) The parts of a memory lie end to end from its base on.
 *   (2) A part that could not be mapped in full is freed again.
 *   (3) Only REGISTERED chunks are copied by the driver without a buffer, and none
 *       after a reset of the context that registered them.
 *   (4) Memory in the list is mapped; kv_pinned_remove returns only when no
 *       chunk is BUSY and all registrations have ended.
 *   (5) This process can write to a chunk of the arena only while the chunk is
 *       BUSY, and only in an open segment.
 *
 * LOCKING   one thread at a time grows or frees a memory of a GPU.  lock guards
 *           the static variables; a leaf, not held across driver calls.
 */
#include <sys/mman.h>

#include "kernels/cuda/gpu.h"
#include "common/array.h"
#include "common/thread.h"

struct part {
	CUmemGenericAllocationHandle handle;
	uint64_t bytes;
};

struct kv_gpu_memory {
	struct kv_gpu *gpu;
	CUdeviceptr base; /* first reserved address; 0: none is reserved */
	uint64_t bytes, max_bytes;
	size_t unit; /* bytes: the driver's granularity */
	struct part *parts;
	size_t n_parts;
};

static CUmemAllocationProp properties_of(const struct kv_gpu *gpu)
{
	return (CUmemAllocationProp){
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, gpu->device},
	};
}

/* Grow @memory by a part of @bytes, which this GPU can read and write. */
static int add_part(struct kv_gpu_memory *memory, uint64_t bytes)
{
	const struct kv_driver *driver = memory->gpu->driver;
	const CUmemAllocationProp properties = properties_of(memory->gpu);
	const CUmemAccessDesc access = {properties.location,
					CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUdeviceptr at = memory->base + memory->bytes;
	struct part part = {.bytes = bytes};
	int r = kv_array_more(&memory->parts, memory->n_parts);

	if (r == 0)
		r = kv_driver_errno(driver->memory_new(&part.handle, bytes,
						       &properties, 0));
	if (r < 0)
		return r;
	r = kv_driver_errno(driver->memory_map(at, bytes, 0, part.handle, 0));
	if (r == 0) {
		r = kv_driver_errno(
			driver->memory_access(at, bytes, &access, 1));
		if (r < 0)
			driver->memory_unmap(at, bytes);
	}
	if (r < 0) {
		driver->memory_free(part.handle);
		return r;
	}
	memory->parts[memory->n_parts++] = part;
	memory->bytes += bytes;
	return 0;
}

/* Unmap and free the memory, which belongs to no context and outlives a reset. */
static void give_up(struct kv_gpu_memory *memory)
{
	const struct kv_driver *driver = memory->gpu->driver;
	struct kv_gpu_entry entry;
	const bool entered = kv_gpu_enter_to_free(memory->gpu, &entry) == 0;
	CUdeviceptr at = memory->base;

	for (size_t i = 0; i < memory->n_parts; i++) {
		driver->memory_unmap(at, memory->parts[i].bytes);
		driver->memory_free(memory->parts[i].handle);
		at += memory->parts[i].bytes;
	}
	if (memory->base != 0)
		driver->address_free(memory->base, memory->max_bytes);
	if (entered)
		kv_gpu_leave(&entry);
	free(memory->parts);
	free(memory);
}

int kv_gpu_memory_new(struct kv_gpu *gpu, uint64_t bytes, uint64_t max_bytes,
		      struct kv_gpu_memory **ret_memory, void **ret_base)
{
	const CUmemAllocationProp properties = properties_of(gpu);
	struct kv_gpu_entry entry;
	struct kv_gpu_memory *memory;
	int r, can_map = 0;

	if (bytes == 0 || bytes > max_bytes || max_bytes > INT64_MAX)
		return -EINVAL;
	if (gpu->driver->device_attribute(
		    &can_map,
		    CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
		    gpu->device) != CUDA_SUCCESS ||
	    !can_map)
		return -EOPNOTSUPP;
	memory = calloc(1, sizeof(*memory));
	if (!memory)
		return -ENOMEM;
	memory->gpu = gpu;
	r = kv_gpu_enter(gpu, &entry);
	if (r < 0) {
		free(memory);
		return r;
	}
	r = kv_driver_errno(gpu->driver->memory_granularity(
		&memory->unit, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
	if (r == 0) {
		memory->max_bytes = kv_round_up(max_bytes, memory->unit);
		r = kv_driver_errno(gpu->driver->address_reserve(
			&memory->base, memory->max_bytes, 0, 0, 0));
		if (r < 0)
			memory->base = 0;
		else
			r = add_part(memory, kv_round_up(bytes, memory->unit));
	}
	if (r < 0) {
		give_up(memory);
	} else {
		*ret_memory = memory;
		*ret_base = (void *)(uintptr_t)memory->base;
	}
	kv_gpu_leave(&entry);
	return r;
}

int kv_gpu_memory_grow(void *arg, uint64_t bytes)
{
	struct kv_gpu_memory *memory = arg;
	struct kv_gpu_entry entry;
	int r;

	if (bytes > memory->max_bytes)
		return -ENOMEM;
	if (bytes <= memory->bytes)
		return 0;
	r = kv_gpu_enter(memory->gpu, &entry);
	if (r < 0)
		return r;
	r = add_part(memory, kv_round_up(bytes - memory->bytes, memory->unit));
	kv_gpu_leave(&entry);
	return r;
}

void kv_gpu_memory_free(void *arg)
{
	struct kv_gpu_memory *memory = arg;
	struct kv_gpu *gpu = memory->gpu;

	give_up(memory);
	kv_gpu_put(gpu);
}

/* ---- registered host memory ---- */

enum state { WAITING, BUSY, REGISTERED, REFUSED, LATER };

/* Seconds until chunks in state LATER are tried again: at first, and at most,
 * after twice as long each time. */
#define RETRY_S 1u
#define RETRY_MAX_S 64u
/* Most microseconds between two registrations. */
#define PAUSE_MAX_US 10000u
/* Flags of registrations: for all contexts, and for kernels. */
#define SHARED (CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP)

struct attached {
	TAILQ_ENTRY(attached) others;
	uint8_t *base;
	uint64_t bytes;
	bool writable;
	bool going; /* guarded by lock; the memory is being removed */
	size_t n;
	uint8_t state[]; /* state of each chunk; guarded by lock */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static TAILQ_HEAD(, attached) list = TAILQ_HEAD_INITIALIZER(list);
static pthread_t worker;
static struct kv_gpu *worker_gpu; /* GPU of the thread; NULL: no thread */
static bool stopping;
static unsigned removals; /* calls of kv_pinned_remove in progress */
static enum kv_pinned_way way_taken;

static uint64_t chunk_bytes(const struct attached *a, size_t i)
{
	return KV_MIN(KV_PINNED_CHUNK, a->bytes - i * KV_PINNED_CHUNK);
}

/* Register a part of an open segment, which is mapped writable only while the
 * driver pins it. */
static CUresult register_writable(const struct kv_driver *driver, void *at,
				  uint64_t bytes)
{
	CUresult result;

	if (mprotect(at, bytes, PROT_READ | PROT_WRITE) < 0)
		return CUDA_ERROR_NOT_PERMITTED;
	result = driver->host_register(at, bytes, SHARED);
	if (mprotect(at, bytes, PROT_READ) == 0)
		return result;
	if (result == CUDA_SUCCESS)
		driver->host_unregister(at);
	return CUDA_ERROR_NOT_PERMITTED;
}

/*
 * Register a chunk.  The library's own memory is writable.  The arena's is tried as
 * read-only if the device claims to register read-only memory; if it does not, or
 * if that is refused, the arena's memory is tried as writable, which only open
 * segments can become.
 */
static enum kv_pinned_way register_chunk(struct kv_gpu *gpu, void *at,
					 uint64_t bytes, bool writable)
{
	const struct kv_driver *driver = gpu->driver;
	struct kv_gpu_entry entry;
	enum kv_pinned_way way = KV_PINNED_WRITABLE;
	CUresult result = CUDA_ERROR_NOT_PERMITTED;

	if (kv_gpu_enter(gpu, &entry) < 0)
		return KV_PINNED_REFUSED;
	if (writable) {
		result = driver->host_register(at, bytes, SHARED);
	} else if (gpu->maps_read_only) {
		way = KV_PINNED_READ_ONLY;
		result = driver->host_register(
			at, bytes, SHARED | CU_MEMHOSTREGISTER_READ_ONLY);
	}
	if (!writable && result != CUDA_SUCCESS &&
	    result != CUDA_ERROR_OUT_OF_MEMORY) {
		way = KV_PINNED_WRITABLE;
		result = register_writable(driver, at, bytes);
	}
	kv_gpu_leave(&entry);
	if (result == CUDA_SUCCESS)
		return way;
	return result == CUDA_ERROR_OUT_OF_MEMORY ? KV_PINNED_NO_MEMORY
						  : KV_PINNED_REFUSED;
}

static void unregister(struct kv_gpu *gpu, void *at)
{
	struct kv_gpu_entry entry;

	if (kv_gpu_enter_to_free(gpu, &entry) < 0)
		return;
	gpu->driver->host_unregister(at);
	kv_gpu_leave(&entry);
}

/* Find a chunk in @state, of memory that is not being removed.  *@ret_i is the
 * chunk's index. */
static struct attached *first_locked(enum state state, size_t *ret_i)
{
	struct attached *a;

	TAILQ_FOREACH(a, &list, others)
		for (size_t i = 0; i < a->n && !a->going; i++)
			if (a->state[i] == state) {
				*ret_i = i;
				return a;
			}
	return NULL;
}

static void *work(void *arg)
{
	unsigned retry_s = RETRY_S;
	uint64_t took_us, retry_ns = 0;
	enum kv_pinned_way way;
	struct timespec until;
	struct attached *a;
	size_t i = 0;

	(void)arg;
	pthread_mutex_lock(&lock);
	while (!stopping) {
		a = first_locked(WAITING, &i);
		if (!a && kv_now_ns() >= retry_ns)
			a = first_locked(LATER, &i);
		if (!a) {
			clock_gettime(CLOCK_REALTIME, &until);
			until.tv_sec += RETRY_S;
			pthread_cond_timedwait(&changed, &lock, &until);
			continue;
		}
		a->state[i] = BUSY;
		pthread_mutex_unlock(&lock);
		took_us = kv_now_ns() / 1000;
		way = register_chunk(worker_gpu, a->base + i * KV_PINNED_CHUNK,
				     chunk_bytes(a, i), a->writable);
		took_us = kv_now_ns() / 1000 - took_us;
		pthread_mutex_lock(&lock);
		if (way == KV_PINNED_NO_MEMORY) {
			a->state[i] = LATER;
			retry_ns =
				kv_now_ns() + retry_s * (uint64_t)1000000000u;
			retry_s = KV_MIN(2 * retry_s, RETRY_MAX_S);
		} else if (way == KV_PINNED_REFUSED) {
			a->state[i] = REFUSED;
		} else {
			a->state[i] = REGISTERED;
			retry_s = RETRY_S;
		}
		if (!a->writable && way_taken != KV_PINNED_READ_ONLY &&
		    way_taken != KV_PINNED_WRITABLE)
			way_taken = way;
		pthread_cond_broadcast(&changed);
		/* Let the engine's launches into the driver, whose lock the
		 * registration had. */
		pthread_mutex_unlock(&lock);
		usleep((useconds_t)KV_MIN(took_us, PAUSE_MAX_US));
		pthread_mutex_lock(&lock);
	}
	pthread_mutex_unlock(&lock);
	return NULL;
}

int kv_pinned_start(struct kv_gpu *gpu)
{
	int r;

	pthread_mutex_lock(&lock);
	stopping = false;
	way_taken = KV_PINNED_NONE;
	r = kv_thread_start(&worker, "kvfs-pin", work, NULL);
	worker_gpu = r < 0 ? NULL : gpu;
	pthread_mutex_unlock(&lock);
	return r;
}

void kv_pinned_stop(void)
{
	struct kv_gpu *gpu = worker_gpu;
	struct attached *a;
	size_t i = 0;

	pthread_mutex_lock(&lock);
	stopping = true;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
	pthread_join(worker, NULL);
	pthread_mutex_lock(&lock);
	while ((a = first_locked(REGISTERED, &i))) {
		a->state[i] = BUSY;
		pthread_mutex_unlock(&lock);
		unregister(gpu, a->base + i * KV_PINNED_CHUNK);
		pthread_mutex_lock(&lock);
		a->state[i] = WAITING;
		pthread_cond_broadcast(&changed);
	}
	/* Another GPU, or a later attempt, may accept refused chunks. */
	while ((a = first_locked(REFUSED, &i)) || (a = first_locked(LATER, &i)))
		a->state[i] = WAITING;
	while (removals > 0)
		pthread_cond_wait(&changed, &lock);
	worker_gpu = NULL;
	pthread_mutex_unlock(&lock);
}

void kv_pinned_add(void *base, uint64_t bytes, bool writable)
{
	size_t n = (bytes + KV_PINNED_CHUNK - 1) / KV_PINNED_CHUNK;
	struct attached *a = calloc(1, sizeof(*a) + n);

	/* Memory without a record is copied through pinned host buffers. */
	if (!a)
		return;
	a->base = base;
	a->bytes = bytes;
	a->writable = writable;
	a->n = n;
	pthread_mutex_lock(&lock);
	TAILQ_INSERT_TAIL(&list, a, others);
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

static struct attached *find_locked(const void *at)
{
	struct attached *a;

	TAILQ_FOREACH(a, &list, others)
		if ((const uint8_t *)at >= a->base &&
		    (const uint8_t *)at < a->base + a->bytes)
			return a;
	return NULL;
}

void kv_pinned_remove(void *base)
{
	struct kv_gpu *gpu;
	struct attached *a;

	pthread_mutex_lock(&lock);
	a = find_locked(base);
	if (!a) {
		pthread_mutex_unlock(&lock);
		return;
	}
	removals++;
	a->going = true;
	while (memchr(a->state, BUSY, a->n))
		pthread_cond_wait(&changed, &lock);
	TAILQ_REMOVE(&list, a, others);
	gpu = worker_gpu;
	pthread_mutex_unlock(&lock);
	for (size_t i = 0; i < a->n; i++)
		if (a->state[i] == REGISTERED)
			unregister(gpu, a->base + i * KV_PINNED_CHUNK);
	free(a);
	pthread_mutex_lock(&lock);
	removals--;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

bool kv_pinned_needs_writable(void)
{
	bool needs;

	pthread_mutex_lock(&lock);
	needs = worker_gpu &&
		(!worker_gpu->maps_read_only || way_taken == KV_PINNED_REFUSED);
	pthread_mutex_unlock(&lock);
	return needs;
}

void kv_pinned_check(const struct kv_gpu *gpu)
{
	struct kv_gpu_entry entry;

	if (worker_gpu != gpu && kv_gpu_enter_to_free(worker_gpu, &entry) == 0)
		kv_gpu_leave(&entry);
}

uint64_t kv_pinned_look(const void *at, uint64_t n, bool *ret_direct)
{
	const struct attached *a;
	uint64_t offset, alike = n;

	*ret_direct = false;
	pthread_mutex_lock(&lock);
	a = find_locked(at);
	if (a) {
		offset = (uint64_t)((const uint8_t *)at - a->base);
		*ret_direct = !a->going && !atomic_load(&worker_gpu->lost) &&
			      a->state[offset / KV_PINNED_CHUNK] == REGISTERED;
		alike = KV_MIN(n, a->bytes - offset);
		alike = KV_MIN(alike,
			       KV_PINNED_CHUNK - offset % KV_PINNED_CHUNK);
	}
	pthread_mutex_unlock(&lock);
	return alike;
}

bool kv_pinned_has(const void *at, uint64_t n)
{
	bool direct = true;

	for (uint64_t done = 0; done < n && direct;)
		done += kv_pinned_look((const uint8_t *)at + done, n - done,
				       &direct);
	return direct;
}

enum kv_pinned_way kv_pinned_get_info(uint64_t *ret_registered,
				      uint64_t *ret_refused)
{
	struct attached *a;
	enum kv_pinned_way way;

	*ret_registered = *ret_refused = 0;
	pthread_mutex_lock(&lock);
	way = way_taken;
	TAILQ_FOREACH(a, &list, others)
		for (size_t i = 0; i < a->n; i++) {
			if (a->state[i] == REGISTERED)
				*ret_registered += chunk_bytes(a, i);
			else if (a->state[i] == REFUSED || a->state[i] == LATER)
				*ret_refused += chunk_bytes(a, i);
		}
	pthread_mutex_unlock(&lock);
	return way;
}
