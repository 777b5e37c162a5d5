/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu.c - the CUDA driver, found at run time; GPUs in use; event waits.
 *
 * OWNS      the table of the driver's calls, and the driver's library, which is
 *           never unloaded, because it may have threads.  The list of GPUs in
 *           use, with their contexts and modules.  For each event wait an event
 *           and, if it stands for a caller's event, a stream: only a stream that
 *           waits for the caller's event can stand for that event later.  Free
 *           event waits are kept for reuse.
 *
 * INVARIANTS
 *   (1) A GPU is in the list from the first get until no GPU has users: memory
 *       registered in one context may be used by all.
 *   (2) While the list is not empty, attached memory is being registered.
 *   (3) The stream of an event wait waits for nothing else, so event waits do
 *       not wait for each other.
 *   (4) The work of a free event wait is complete.
 *
 * LOCKING   load_lock is held while the driver is loaded.
 *           opening is held during kv_gpu_get and kv_gpu_put, which make and end
 *           contexts, and take long.  gpu->lock: see gpu.h.
 */
#include <stdio.h>
#include <dlfcn.h>
#include <stdarg.h>
#include <stdatomic.h>

#include "kernels/cuda/gpu.h"

/* ---- the driver ---- */

#define LIBRARY "libcuda.so.1"

static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;
static struct kv_driver table;
static pid_t loaded_by; /* process that loaded the driver; 0: none */

int kv_driver_errno(CUresult result)
{
	switch (result) {
	case CUDA_SUCCESS:
		return 0;
	case CUDA_ERROR_OUT_OF_MEMORY:
		return -ENOMEM;
	case CUDA_ERROR_NOT_INITIALIZED:
	case CUDA_ERROR_STUB_LIBRARY:
	case CUDA_ERROR_NO_DEVICE:
	case CUDA_ERROR_INVALID_DEVICE:
	case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
		return -ENODEV;
	case CUDA_ERROR_INVALID_HANDLE:
		return -EINVAL;
	case CUDA_ERROR_NOT_READY:
		return -EAGAIN;
	default:
		if (result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED &&
		    result <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)
			return -EBUSY;
		return -EIO;
	}
}

/* Translate a failure of cuInit, or to make a context.  -EBUSY may pass. */
static int errno_of_start(CUresult result)
{
	if (result == CUDA_ERROR_DEVICE_UNAVAILABLE ||
	    (result >= CUDA_ERROR_MPS_CONNECTION_FAILED &&
	     result <= CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED))
		return -EBUSY;
	return kv_driver_errno(result);
}

#define UNUSABLE "no driver that can be used: "
#define BUSY " (46: the GPU is in exclusive use; 805 to 809: no MPS server)"

/* Print why the driver or the kernels cannot be used, once for the process: the
 * error @r does not explain the cause.  Return @r. */
__attribute__((format(printf, 2, 3))) static int complain(int r,
							  const char *why, ...)
{
	static atomic_flag printed = ATOMIC_FLAG_INIT;
	char line[512];
	va_list args;

	if (atomic_flag_test_and_set(&printed))
		return r;
	va_start(args, why);
	vsnprintf(line, sizeof(line), why, args);
	va_end(args);
	fprintf(stderr, "libkvfs-cuda: %s\n", line);
	return r;
}

static int driver_load(void)
{
	void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
	CUresult result;
	int n = 0, r;

	if (!library)
		return complain(-ENODEV, UNUSABLE "%s", dlerror());
#define FIND(member, symbol, parameters)                                       \
	*(void **)&table.member = dlsym(library, #symbol);                     \
	if (!table.member)                                                     \
		return complain(-ENODEV, UNUSABLE "the driver has no " #symbol \
						  ", and is too old");
	KV_CUDA_CALLS(FIND)
#undef FIND
	result = table.init(0);
	if (result == CUDA_SUCCESS)
		result = table.device_count(&n);
	if (result != CUDA_SUCCESS) {
		r = errno_of_start(result);
		return complain(r == -EIO ? -ENODEV : r,
				UNUSABLE "error %d" BUSY, result);
	}
	if (n == 0)
		return complain(-ENODEV, UNUSABLE "the driver finds no GPU");
	loaded_by = getpid();
	return 0;
}

int kv_driver_get(const struct kv_driver **ret_driver)
{
	int r = 0;

	pthread_mutex_lock(&load_lock);
	if (loaded_by == 0)
		r = driver_load();
	else if (loaded_by != getpid())
		r = -ENODEV;
	pthread_mutex_unlock(&load_lock);
	if (r == 0)
		*ret_driver = &table;
	return r;
}

/* ---- GPUs ---- */

/* The compiled kernels, a fat binary for cuModuleLoadData, and the same kernels as
 * text (PTX) of an old version, for drivers that cannot read the binary.  In a
 * build without nvcc both are zeros, for the tests' stand-in driver, which
 * contains the kernels. */
extern const unsigned char kv_cuda_image[], kv_cuda_text[];
#ifdef KV_CUDA_IMAGE
__asm__(".pushsection .rodata\n"
	".balign 64\n"
	".globl kv_cuda_image\n"
	".hidden kv_cuda_image\n"
	"kv_cuda_image:\n"
	".incbin \"" KV_CUDA_IMAGE ".fatbin\"\n"
	".globl kv_cuda_text\n"
	".hidden kv_cuda_text\n"
	"kv_cuda_text:\n"
	".incbin \"" KV_CUDA_IMAGE ".ptx\"\n"
	".byte 0\n"
	".popsection\n");
#else
const unsigned char kv_cuda_image[64] = {0}, kv_cuda_text[1] = {0};
#endif

/*
 * A kernel gets one thread block (KV_SCATTER_THREADS) for every eighth
 * multiprocessor.  A block fits beside other kernels: it takes an eighth of a
 * multiprocessor's threads and a quarter of its registers.  Each block has
 * 32 KiB in flight, so 16 of them, on the largest parts, are ten times as fast
 * as the bus.  Four kernels, one for each copy stream, take at most half of the
 * multiprocessors and an eighth of all registers.
 */
#define GRID_SHARE 8
#define BEGIN_WITH 16u /* event waits made when a GPU is first used */

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static LIST_HEAD(, kv_gpu) all = LIST_HEAD_INITIALIZER(all);
static unsigned users; /* number of kv_gpu_get calls without their kv_gpu_put */

static bool is_mapped(const struct kv_gpu *gpu, CUdeviceptr at)
{
	int mapped = 0;
	CUresult result = gpu->driver->pointer_attribute(
		&mapped, CU_POINTER_ATTRIBUTE_MAPPED, at);

	return result == CUDA_SUCCESS && mapped;
}

/* A driver that does not report the witness as mapped cannot tell. */
bool kv_gpu_has(const struct kv_gpu *gpu, CUdeviceptr at)
{
	return is_mapped(gpu, at) || !is_mapped(gpu, gpu->witness);
}

int kv_gpu_enter_to_free(struct kv_gpu *gpu, struct kv_gpu_entry *entry)
{
	unsigned long long id = gpu->witness_id;
	CUresult result = CUDA_SUCCESS;
	CUcontext before;

	entry->gpu = gpu;
	entry->capture_mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	if (atomic_load(&gpu->lost) ||
	    gpu->driver->context_push(gpu->context) != CUDA_SUCCESS)
		return -EIO;
	/* Has the process reset the context?  If it uses the context again, the
	 * handle of the context is the same, and other memory may be at the
	 * address of the witness, but all other handles are stale. */
	if (gpu->witness != 0)
		result = gpu->driver->pointer_attribute(
			&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, gpu->witness);
	if (id != gpu->witness_id || result == CUDA_ERROR_INVALID_VALUE ||
	    result == CUDA_ERROR_INVALID_CONTEXT ||
	    result == CUDA_ERROR_CONTEXT_IS_DESTROYED) {
		atomic_store(&gpu->broken, -EIO);
		atomic_store(&gpu->lost, true);
	} else if (gpu->driver->exchange_capture_mode(&entry->capture_mode) ==
		   CUDA_SUCCESS) {
		return 0;
	}
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
	CUcontext context;

	entry->gpu->driver->exchange_capture_mode(&entry->capture_mode);
	entry->gpu->driver->context_pop(&context);
}

static int attribute(struct kv_gpu *gpu, int which)
{
	int value = 0;
	CUresult result =
		gpu->driver->device_attribute(&value, which, gpu->device);

	return result == CUDA_SUCCESS ? value : 0;
}

/* Return whether the driver refused an image that another driver, or another GPU,
 * could take. */
static bool is_refused(CUresult result)
{
	return result == CUDA_ERROR_INVALID_IMAGE ||
	       result == CUDA_ERROR_NO_BINARY_FOR_GPU ||
	       /* 221: the container lacks the driver's compiler of PTX */
	       (result >= CUDA_ERROR_INVALID_PTX &&
		result <= CUDA_ERROR_JIT_COMPILATION_DISABLED);
}

/* Load the kernels: the compiled image or, if the driver is too old to read it,
 * the text.  -ENODEV: neither fits the driver and the GPU.  -ENOMEM, -EIO. */
static int load_kernels(struct kv_gpu *gpu)
{
	const struct kv_driver *driver = gpu->driver;
	CUresult result = driver->module_load(&gpu->module, kv_cuda_image);
	int version = 0;

	if (is_refused(result))
		result = driver->module_load(&gpu->module, kv_cuda_text);
	if (result != CUDA_SUCCESS)
		gpu->module = NULL;
	if (is_refused(result)) {
		driver->version(&version);
		return complain(
			-ENODEV,
			"the driver does not take the kernels (error %d): they "
			"need one for CUDA 11.0 (R450) or later (this one is "
			"for CUDA %d.%d), and a GPU of compute capability 7.5 "
			"or later",
			result, version / 1000, version % 1000 / 10);
	}
	if (result != CUDA_SUCCESS)
		return kv_driver_errno(result);
	if (driver->module_function(&gpu->scatter, gpu->module, "kv_scatter") !=
		    CUDA_SUCCESS ||
	    driver->module_function(&gpu->gather, gpu->module, "kv_gather") !=
		    CUDA_SUCCESS)
		return -ENODEV;
	return 0;
}

static void event_wait_destroy(struct kv_event_wait *event_wait)
{
	const struct kv_driver *driver = event_wait->gpu->driver;
	struct kv_gpu_entry entry;

	if (kv_gpu_enter_to_free(event_wait->gpu, &entry) == 0) {
		if (event_wait->stream)
			driver->stream_free(event_wait->stream);
		if (event_wait->event)
			driver->event_free(event_wait->event);
		kv_gpu_leave(&entry);
	}
	free(event_wait);
}

static int event_wait_make(struct kv_gpu *gpu,
			   struct kv_event_wait **ret_event_wait)
{
	struct kv_event_wait *event_wait = calloc(1, sizeof(*event_wait));
	int r;

	if (!event_wait)
		return -ENOMEM;
	event_wait->gpu = gpu;
	r = kv_driver_errno(gpu->driver->event_new(&event_wait->event,
						   CU_EVENT_DISABLE_TIMING));
	if (r < 0)
		free(event_wait);
	else
		*ret_event_wait = event_wait;
	return r;
}

static int gpu_prepare(struct kv_gpu *gpu)
{
	struct kv_event_wait *event_wait;
	struct kv_gpu_entry entry;
	int r, processors, least = 0;

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
	/* Engines' streams mostly have the lowest priority.  A copy stream of
	 * the same priority could share their hardware queue, and wait there
	 * behind work that waits for the copies. */
	r = kv_driver_errno(gpu->driver->priority_range(&least, &gpu->urgent));
	gpu->patient = KV_MAX(least - 1, gpu->urgent);
	if (r == 0)
		r = load_kernels(gpu);
	for (unsigned i = 0; i < BEGIN_WITH && r == 0; i++) {
		r = event_wait_make(gpu, &event_wait);
		if (r == 0)
			LIST_INSERT_HEAD(&gpu->event_waits, event_wait, others);
	}
	if (r == 0)
		r = kv_copy_streams_new(gpu);
	kv_gpu_leave(&entry);
	return r;
}

static void gpu_freep(struct kv_gpu **gpup)
{
	struct kv_gpu *gpu = *gpup;
	struct kv_event_wait *event_wait;
	struct kv_gpu_entry entry;

	if (!gpu)
		return;
	while ((event_wait = LIST_FIRST(&gpu->event_waits))) {
		LIST_REMOVE(event_wait, others);
		event_wait_destroy(event_wait);
	}
	/* The objects of a context that cannot be entered any more end with it. */
	if (!gpu->context || kv_gpu_enter_to_free(gpu, &entry) < 0)
		atomic_store(&gpu->lost, true);
	kv_copy_streams_free(gpu);
	if (gpu->module && !gpu->lost)
		gpu->driver->module_unload(gpu->module);
	if (!gpu->lost)
		kv_gpu_leave(&entry);
	if (gpu->context)
		gpu->driver->context_release(gpu->device);
	pthread_cond_destroy(&gpu->put);
	pthread_mutex_destroy(&gpu->lock);
	free(gpu);
}

static int gpu_new(const struct kv_driver *driver, int ordinal,
		   struct kv_gpu **ret_gpu)
{
	_cleanup_(gpu_freep) struct kv_gpu *gpu = calloc(1, sizeof(*gpu));
	CUresult result;
	int r;

	if (!gpu)
		return -ENOMEM;
	gpu->driver = driver;
	gpu->ordinal = ordinal;
	gpu->buffers = (struct kv_gpu_buffers){KV_COPY_STREAM_BUFFER,
					       KV_COPY_STREAM_BUFFERS};
	pthread_mutex_init(&gpu->lock, NULL);
	pthread_cond_init(&gpu->put, NULL);
	if (driver->device_get(&gpu->device, ordinal) != CUDA_SUCCESS)
		return -ENODEV;
	result = driver->context_retain(&gpu->context, gpu->device);
	if (result != CUDA_SUCCESS) {
		gpu->context = NULL;
		return complain(errno_of_start(result),
				"no context on GPU %d: error %d" BUSY, ordinal,
				result);
	}
	r = gpu_prepare(gpu);
	if (r == 0 && LIST_EMPTY(&all))
		r = kv_pinned_start(gpu);
	if (r == 0)
		*ret_gpu = kv_steal(gpu);
	return r;
}

int kv_gpu_get(int ordinal, struct kv_gpu **ret_gpu)
{
	const struct kv_driver *driver = NULL;
	struct kv_gpu *gpu;
	int r = kv_driver_get(&driver);

	if (r < 0)
		return r;
	pthread_mutex_lock(&opening);
	LIST_FOREACH(gpu, &all, others)
		if (gpu->ordinal == ordinal)
			break;
	if (!gpu) {
		r = gpu_new(driver, ordinal, &gpu);
		if (r == 0)
			LIST_INSERT_HEAD(&all, gpu, others);
	}
	if (r == 0) {
		users++;
		*ret_gpu = gpu;
	}
	pthread_mutex_unlock(&opening);
	return r;
}

void kv_gpu_put(void *any)
{
	struct kv_gpu *gpu;

	(void)any;
	pthread_mutex_lock(&opening);
	if (--users == 0) {
		kv_pinned_stop();
		while ((gpu = LIST_FIRST(&all))) {
			LIST_REMOVE(gpu, others);
			gpu_freep(&gpu);
		}
	}
	pthread_mutex_unlock(&opening);
}

/* ---- event waits ---- */

/* Return -EBUSY if @stream is being captured: then work for the stream would
 * become part of a graph, and most calls would invalidate the capture. */
static int check_stream(const struct kv_driver *driver, CUstream stream)
{
	int status = CU_STREAM_CAPTURE_STATUS_NONE;
	int r = kv_driver_errno(driver->stream_capturing(stream, &status));

	return status == CU_STREAM_CAPTURE_STATUS_NONE ? r : -EBUSY;
}

/* Make @event_wait stand for @event, unless @event is complete. */
static int record_event(struct kv_event_wait *event_wait, CUevent event)
{
	const struct kv_driver *driver = event_wait->gpu->driver;
	int r = kv_driver_errno(driver->event_query(event));

	if (r != -EAGAIN)
		return r;
	/* Give the stream a priority that copy streams do not have, if there
	 * are enough priorities: copies that share a hardware queue with the
	 * stream would wait behind the event. */
	r = event_wait->stream
		    ? 0
		    : kv_driver_errno(driver->stream_new(
			      &event_wait->stream, CU_STREAM_NON_BLOCKING,
			      KV_MAX(event_wait->gpu->patient - 1,
				     event_wait->gpu->urgent)));
	if (r < 0) {
		event_wait->stream = NULL;
		return r;
	}
	r = kv_driver_errno(
		driver->stream_wait_event(event_wait->stream, event, 0));
	return r < 0 ? r
		     : kv_driver_errno(driver->event_record(
			       event_wait->event, event_wait->stream));
}

int kv_event_wait_new(void *pool, void *stream, void *event,
		      void **ret_event_wait)
{
	struct kv_gpu *gpu = pool;
	struct kv_gpu_entry entry;
	struct kv_event_wait *event_wait;
	int r;

	if (!stream && !event)
		return -EINVAL;
	r = kv_gpu_enter(gpu, &entry);
	if (r < 0)
		return r;
	pthread_mutex_lock(&gpu->lock);
	event_wait = LIST_FIRST(&gpu->event_waits);
	if (event_wait)
		LIST_REMOVE(event_wait, others);
	pthread_mutex_unlock(&gpu->lock);
	r = event_wait ? 0 : event_wait_make(gpu, &event_wait);
	if (r == 0) {
		r = event ? record_event(event_wait, event)
			  : check_stream(gpu->driver, stream);
		if (r == 0 && !event)
			r = kv_driver_errno(gpu->driver->event_record(
				event_wait->event, stream));
		if (r < 0)
			event_wait_destroy(event_wait);
		else
			*ret_event_wait = event_wait;
	}
	kv_gpu_leave(&entry);
	return r;
}

bool kv_event_wait_is_done(void *arg)
{
	struct kv_event_wait *event_wait = arg;
	struct kv_gpu_entry entry;
	CUresult result;

	if (kv_gpu_enter(event_wait->gpu, &entry) < 0)
		return true;
	result = event_wait->gpu->driver->event_query(event_wait->event);
	kv_gpu_leave(&entry);
	return result != CUDA_ERROR_NOT_READY;
}

void kv_event_wait_free(void *arg)
{
	struct kv_event_wait *event_wait = arg;
	struct kv_gpu *gpu = event_wait->gpu;

	if (kv_event_wait_is_done(event_wait)) {
		pthread_mutex_lock(&gpu->lock);
		LIST_INSERT_HEAD(&gpu->event_waits, event_wait, others);
		pthread_mutex_unlock(&gpu->lock);
		return;
	}
	/* The driver frees stream and event once they have no more work. */
	event_wait_destroy(event_wait);
}

int kv_event_wait_order(void *arg, void *stream)
{
	struct kv_event_wait *event_wait = arg;
	const struct kv_driver *driver = event_wait->gpu->driver;
	struct kv_gpu_entry entry;
	int r;

	if (!stream)
		return -EINVAL;
	r = kv_gpu_enter(event_wait->gpu, &entry);
	if (r < 0)
		return r;
	r = check_stream(driver, stream);
	if (r == 0)
		r = kv_driver_errno(driver->stream_wait_event(
			stream, event_wait->event, 0));
	kv_gpu_leave(&entry);
	return r;
}
