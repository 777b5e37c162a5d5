/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu.c - a GPU in use.
 *
 * OWNS      the list of GPUs in use, their contexts' references, their modules,
 *           and through the parts named in gpu.h what those keep for later.
 *
 * INVARIANTS
 *   (1) A GPU is in the list from the first get to the put with which nobody
 *       uses any GPU: memory registered in one context may be used by all.
 *   (2) While the list is not empty attached memory is being registered.
 *
 * LOCKING   opening, around a get and a put as a whole: they make and end
 *           contexts, which takes long, and nothing else waits for them.
 *           gpu->lock: see gpu.h.
 */
#include <stdio.h>

#include "kernels/cuda/pinned.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/copy_stream.h"
#include "kernels/cuda/event_wait.h"

/* The compiled kernels: a fat binary for cuModuleLoadData.  Zeroes in a build
 * for the stand-in driver, which has the kernels itself. */
extern const unsigned char kv_cuda_image[];
#ifdef KV_CUDA_IMAGE
__asm__(".pushsection .rodata\n"
	".balign 64\n"
	".globl kv_cuda_image\n"
	".hidden kv_cuda_image\n"
	"kv_cuda_image:\n"
	".incbin \"" KV_CUDA_IMAGE "\"\n"
	".popsection\n");
#else
const unsigned char kv_cuda_image[64] = {0};
#define KV_CUDA_MAJOR 0
#define KV_CUDA_MINOR 0
#endif

/*
 * A kernel gets a thread block (KV_SCATTER_THREADS) for every eighth
 * multiprocessor, which fits beside what others run there: an eighth of its
 * threads and a quarter of its registers.  Each block has 32 KiB on their way at
 * a time, so that 16 of them, on the largest parts, are ten times as fast as the
 * bus; and four kernels, which is as many as there are copy streams, take half
 * of the multiprocessors at most, and an eighth of all registers.
 */
#define GRID_SHARE 8

struct in_use {
	LIST_ENTRY(in_use) others;
	struct kv_gpu gpu;
};

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static LIST_HEAD(, in_use) all = LIST_HEAD_INITIALIZER(all);
static unsigned users; /* of any of them */

int kv_gpu_enter_to_free(struct kv_gpu *gpu, struct kv_gpu_entry *entry)
{
	CUcontext before;

	entry->gpu = gpu;
	entry->capture_mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	if (gpu->driver->context_push(gpu->context) != CUDA_SUCCESS)
		return -EIO;
	if (gpu->driver->exchange_capture_mode(&entry->capture_mode) ==
	    CUDA_SUCCESS)
		return 0;
	gpu->driver->context_pop(&before);
	return -EIO;
}

int kv_gpu_enter(struct kv_gpu *gpu, struct kv_gpu_entry *entry)
{
	if (atomic_load(&gpu->broken) != 0)
		return -EIO;
	return kv_gpu_enter_to_free(gpu, entry);
}

void kv_gpu_leave(struct kv_gpu_entry *entry)
{
	const struct kv_driver *driver = entry->gpu->driver;
	CUcontext context;

	driver->exchange_capture_mode(&entry->capture_mode);
	driver->context_pop(&context);
}

void kv_gpu_break(struct kv_gpu *gpu)
{
	atomic_store(&gpu->broken, -EIO);
}

int kv_gpu_host_alloc(struct kv_gpu *gpu, uint64_t bytes, void **ret_host)
{
	int r = kv_driver_errno(gpu->driver->host_alloc(
		ret_host, bytes,
		CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));

	if (r == 0)
		atomic_fetch_add(&gpu->bytes_pinned, bytes);
	return r;
}

void kv_gpu_host_free(struct kv_gpu *gpu, void *host, uint64_t bytes)
{
	if (!host)
		return;
	gpu->driver->host_free(host);
	atomic_fetch_sub(&gpu->bytes_pinned, bytes);
}

/* Once, as nobody who has only the error would know what to do. */
static void complain(const struct kv_driver *driver, CUresult result)
{
	static atomic_flag said = ATOMIC_FLAG_INIT;
	int version = 0;

	if (atomic_flag_test_and_set(&said))
		return;
	driver->version(&version);
	fprintf(stderr,
		"libkvfs-cuda: the driver does not take the kernels (error "
		"%d): they need one for CUDA %d.%d or later (this one is for "
		"CUDA %d.%d), and a GPU of compute capability 7.5 or later\n",
		result, KV_CUDA_MAJOR, KV_CUDA_MINOR, version / 1000,
		version % 1000 / 10);
}

static int attribute(struct kv_gpu *gpu, int which)
{
	int value = 0;

	if (gpu->driver->device_attribute(&value, which, gpu->device) !=
	    CUDA_SUCCESS)
		return 0;
	return value;
}

/* An image that has nothing for this GPU is a device that there is not. */
static int load_kernels(struct kv_gpu *gpu)
{
	const struct kv_driver *driver = gpu->driver;
	CUresult result;

	result = driver->module_load(&gpu->module, kv_cuda_image);
	if (result != CUDA_SUCCESS) {
		gpu->module = NULL;
		complain(driver, result);
		return -ENODEV;
	}
	if (driver->module_function(&gpu->scatter, gpu->module, "kv_scatter") !=
		    CUDA_SUCCESS ||
	    driver->module_function(&gpu->gather, gpu->module, "kv_gather") !=
		    CUDA_SUCCESS)
		return -ENODEV;
	return 0;
}

/* Engines' streams mostly have the least priority: one of ours would share its
 * hardware queue with them, and wait in it behind what they wait for. */
static int find_priorities(struct kv_gpu *gpu)
{
	int least, r;

	r = kv_driver_errno(gpu->driver->priority_range(&least, &gpu->urgent));
	gpu->patient = KV_MAX(least - 1, gpu->urgent);
	return r;
}

static int prepare(struct kv_gpu *gpu)
{
	struct kv_gpu_entry entry;
	int r, processors;

	r = kv_gpu_enter(gpu, &entry);
	if (r < 0)
		return r;
	processors = attribute(gpu, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
	gpu->grid = (unsigned)KV_MAX(processors / GRID_SHARE, 1);
	gpu->same_addresses = attribute(
		gpu,
		CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM);
	gpu->maps_read_only = attribute(
		gpu, CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED);
	r = find_priorities(gpu);
	if (r == 0)
		r = load_kernels(gpu);
	if (r == 0)
		r = kv_copy_streams_new(gpu);
	if (r == 0)
		r = kv_event_waits_new(gpu);
	if (r == 0)
		r = kv_copy_streams_warm_up(gpu);
	kv_gpu_leave(&entry);
	return r;
}

static void in_use_free(struct in_use *in_use)
{
	struct kv_gpu *gpu;
	struct kv_gpu_entry entry;

	if (!in_use)
		return;
	gpu = &in_use->gpu;
	if (gpu->context && kv_gpu_enter_to_free(gpu, &entry) == 0) {
		kv_copy_streams_free(gpu);
		kv_event_waits_free(gpu);
		if (gpu->module)
			gpu->driver->module_unload(gpu->module);
		kv_gpu_leave(&entry);
	}
	if (gpu->context)
		gpu->driver->context_release(gpu->device);
	pthread_cond_destroy(&gpu->put);
	pthread_mutex_destroy(&gpu->lock);
	free(in_use);
}

static void freep(struct in_use **in_use)
{
	in_use_free(*in_use);
}

static int make(const struct kv_driver *driver, int ordinal,
		struct in_use **ret_in_use)
{
	_cleanup_(freep) struct in_use *in_use = calloc(1, sizeof(*in_use));
	struct kv_gpu *gpu;
	int r;

	if (!in_use)
		return -ENOMEM;
	gpu = &in_use->gpu;
	gpu->driver = driver;
	gpu->ordinal = ordinal;
	gpu->buffers = (struct kv_gpu_buffers){KV_COPY_STREAM_BUFFER,
					       KV_COPY_STREAM_BUFFERS};
	pthread_mutex_init(&gpu->lock, NULL);
	pthread_cond_init(&gpu->put, NULL);
	if (driver->device_get(&gpu->device, ordinal) != CUDA_SUCCESS)
		return -ENODEV;
	r = kv_driver_errno(driver->context_retain(&gpu->context, gpu->device));
	if (r < 0) {
		gpu->context = NULL;
		return r;
	}
	r = prepare(gpu);
	if (r == 0 && LIST_EMPTY(&all))
		r = kv_pinned_start(gpu);
	if (r < 0)
		return r;
	*ret_in_use = kv_steal(in_use);
	return 0;
}

static struct in_use *find(int ordinal)
{
	struct in_use *in_use;

	LIST_FOREACH(in_use, &all, others)
		if (in_use->gpu.ordinal == ordinal)
			return in_use;
	return NULL;
}

int kv_gpu_get(int ordinal, struct kv_gpu **ret_gpu)
{
	const struct kv_driver *driver;
	struct in_use *in_use;
	int r = kv_driver_get(&driver);

	if (r < 0)
		return r;
	pthread_mutex_lock(&opening);
	in_use = find(ordinal);
	if (!in_use) {
		r = make(driver, ordinal, &in_use);
		if (r == 0)
			LIST_INSERT_HEAD(&all, in_use, others);
	}
	if (r == 0) {
		users++;
		*ret_gpu = &in_use->gpu;
	}
	pthread_mutex_unlock(&opening);
	return r;
}

void kv_gpu_put(struct kv_gpu *gpu)
{
	struct in_use *in_use;

	(void)gpu;
	pthread_mutex_lock(&opening);
	if (--users == 0) {
		kv_pinned_stop();
		while ((in_use = LIST_FIRST(&all))) {
			LIST_REMOVE(in_use, others);
			in_use_free(in_use);
		}
	}
	pthread_mutex_unlock(&opening);
}
