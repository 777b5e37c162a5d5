/* SPDX-License-Identifier: Apache-2.0 */
/* test_standin.c - the stand-in driver behaves as the tests rely on. */
#include <setjmp.h>
#include <stdatomic.h>
#include <stdarg.h>
#include <signal.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "tests/gpu/gpu.h"

#define N 65536u
#define TRIES 200

static CUdeviceptr memory;
static uint8_t *pinned; /* 2 * N bytes of host memory, pinned by the driver */
static CUstream a, b;

static int setup(void **state)
{
	(void)state;
	gpu_set("strict=0");
	memory = gpu_alloc(N);
	GPU_OK(cuMemHostAlloc, (void **)&pinned, 2 * N, 0);
	a = gpu_stream();
	b = gpu_stream();
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	gpu.hold(false);
	gpu.forgive();
	gpu_set("strict=0,delay=100,memops=1,pageable=1,devices=1,arch=90,"
		"version=13000");
	GPU_OK(cuCtxSynchronize);
	GPU_OK(cuStreamDestroy_v2, a);
	GPU_OK(cuStreamDestroy_v2, b);
	GPU_OK(cuMemFreeHost, pinned);
	GPU_OK(cuMemFree_v2, memory);
	return 0;
}

/* Return how often stream b does not see bytes that stream a wrote before. */
static unsigned misses(bool ordered)
{
	CUevent written = gpu_event();
	unsigned i, missed = 0;

	for (i = 0; i < TRIES; i++) {
		pinned[0] = (uint8_t)i;
		pinned[N] = (uint8_t)~i;
		GPU_OK(cuMemcpyHtoDAsync_v2, memory, pinned, N, a);
		GPU_OK(cuEventRecord, written, a);
		if (ordered)
			GPU_OK(cuStreamWaitEvent, b, written, 0);
		GPU_OK(cuMemcpyDtoHAsync_v2, pinned + N, memory, N, b);
		GPU_OK(cuCtxSynchronize);
		missed += pinned[N] != (uint8_t)i;
	}
	GPU_OK(cuEventDestroy_v2, written);
	return missed;
}

static void
streams_overtake_each_other_unless_an_event_orders_them(void **state)
{
	(void)state;
#ifndef __SANITIZE_THREAD__ /* ThreadSanitizer would report the intended race */
	assert_true(misses(false) > 0);
#endif
	assert_int_equal(misses(true), 0);
}

static void a_copy_reads_what_is_there_when_it_runs(void **state)
{
	(void)state;
	gpu.hold(true);
	memset(pinned, 1, N);
	GPU_OK(cuMemcpyHtoDAsync_v2, memory, pinned, N, a);
	memset(pinned, 2, N);
	assert_int_equal(gpu.cuStreamQuery(a), CU_NOT_READY);
	assert_int_equal(gpu.pending(), 1);
	gpu.hold(false);
	GPU_OK(cuStreamSynchronize, a);
	GPU_OK(cuMemcpyDtoH_v2, pinned, memory, N);
	assert_int_equal(pinned[0], 2);
}

static void the_legacy_stream_waits_for_blocking_streams_only(void **state)
{
	CUstream blocking;

	(void)state;
	GPU_OK(cuStreamCreateWithPriority, &blocking, 0, 0);
	gpu_spin(blocking, 20000000);
	GPU_OK(cuMemsetD8Async, memory, 7, N, blocking);
	GPU_OK(cuMemcpyDtoH_v2, pinned, memory, N);
	assert_int_equal(pinned[N - 1], 7);
	gpu.hold(true);
	GPU_OK(cuMemsetD8Async, memory, 8, N, a);
	GPU_OK(cuLaunchHostFunc, b, free, NULL);
	GPU_OK(cuStreamSynchronize, b);
	gpu.hold(false);
	GPU_OK(cuStreamDestroy_v2, blocking);
}

static void new_memory_is_poisoned_and_never_where_other_was(void **state)
{
	CUdeviceptr one = gpu_alloc(N), two;

	(void)state;
	GPU_OK(cuMemcpyDtoH_v2, pinned, one, N);
	assert_int_equal(pinned[5], 0xcd);
	gpu_free(one);
	two = gpu_alloc(N);
	assert_true(two != one);
	gpu_free(two);
}

static void
a_copy_to_memory_that_went_is_a_bug_and_breaks_the_device(void **state)
{
	CUdeviceptr gone = gpu_alloc(N);

	(void)state;
	gpu.hold(true);
	GPU_OK(cuMemcpyHtoDAsync_v2, gone, pinned, N, a);
	GPU_OK(cuMemFree_v2, gone);
	gpu.hold(false);
	assert_int_equal(gpu.cuStreamSynchronize(a), CU_ILLEGAL_ADDRESS);
	assert_int_equal(gpu.cuMemAlloc_v2(&gone, N), CU_ILLEGAL_ADDRESS);
	assert_int_equal(gpu.bugs(), 1);
}

static void the_host_cannot_touch_device_memory(void **state)
{
	int status;
	pid_t pid = fork();

	(void)state;
	if (pid == 0) {
		signal(SIGSEGV, SIG_DFL);
		*(volatile char *)memory = 1;
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	/* Sanitizers replace the signal by an exit status. */
	assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) != 0);
}

static uint8_t *mapping(int prot)
{
	void *at = mmap(NULL, N, prot, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	assert_true(at != MAP_FAILED);
	return at;
}

static void read_only_memory_is_registered_only_as_such(void **state)
{
	uint8_t *at = mapping(PROT_READ);

	(void)state;
	assert_int_equal(gpu.cuMemHostRegister_v2(at, N, 0), CU_INVALID_VALUE);
	gpu_set("readonly=0");
	assert_int_equal(gpu.cuMemHostRegister_v2(at, N, CU_REGISTER_READ_ONLY),
			 CU_NOT_SUPPORTED);
	gpu_set("readonly=1");
	GPU_OK(cuMemHostRegister_v2, at, N, CU_REGISTER_READ_ONLY);
	GPU_OK(cuMemcpyHtoDAsync_v2, memory, at, N, a);
	assert_int_equal(gpu.cuMemcpyDtoHAsync_v2(at, memory, N, a),
			 CU_INVALID_VALUE);
	GPU_OK(cuStreamSynchronize, a);
	assert_int_equal(gpu.cuMemHostRegister_v2(at, N, CU_REGISTER_READ_ONLY),
			 CU_ALREADY_REGISTERED);
	GPU_OK(cuMemHostUnregister, at);
	munmap(at, N);
}

static void a_copy_lies_in_one_registration(void **state)
{
	uint8_t *at = mapping(PROT_READ | PROT_WRITE);

	(void)state;
	GPU_OK(cuMemHostRegister_v2, at, N / 2, 0);
	assert_int_equal(gpu.cuMemcpyHtoDAsync_v2(memory, at, N, a),
			 CU_INVALID_VALUE);
	GPU_OK(cuMemHostRegister_v2, at + N / 2, N / 2, 0);
	assert_int_equal(gpu.cuMemcpyHtoDAsync_v2(memory, at, N, a),
			 CU_INVALID_VALUE);
	GPU_OK(cuMemcpyHtoDAsync_v2, memory, at + N / 2, N / 2, a);
	GPU_OK(cuStreamSynchronize, a);
	/* A kernel needs memory that is registered as mapped. */
	gpu_copy(a, 1, memory, (uintptr_t)at, N / 2);
	assert_int_equal(gpu.cuStreamSynchronize(a), CU_ILLEGAL_ADDRESS);
	gpu.forgive();
	GPU_OK(cuMemHostUnregister, at);
	GPU_OK(cuMemHostUnregister, at + N / 2);
	munmap(at, N);
}

static void a_registration_that_goes_under_a_copy_is_a_bug(void **state)
{
	uint8_t *at = mapping(PROT_READ | PROT_WRITE);

	(void)state;
	GPU_OK(cuMemHostRegister_v2, at, N, 0);
	gpu.hold(true);
	GPU_OK(cuMemcpyHtoDAsync_v2, memory, at, N, a);
	GPU_OK(cuMemHostUnregister, at);
	gpu.hold(false);
	assert_int_equal(gpu.cuStreamSynchronize(a), CU_ILLEGAL_ADDRESS);
	munmap(at, N);
}

static void pageable_memory_is_copied_at_once_or_refused(void **state)
{
	uint8_t *at = malloc(N);

	(void)state;
	memset(at, 9, N);
	GPU_OK(cuMemcpyHtoDAsync_v2, memory, at, N, a);
	assert_int_equal(gpu.pending(), 0);
	gpu_set("pageable=0");
	assert_int_equal(gpu.cuMemcpyHtoDAsync_v2(memory, at, N, a),
			 CU_INVALID_VALUE);
	free(at);
}

static void call_it(void *arg)
{
	*(CUresult *)arg = gpu.cuStreamQuery(a);
}

static void a_host_function_may_not_call_the_driver(void **state)
{
	CUresult r = CU_OK;

	(void)state;
	GPU_OK(cuLaunchHostFunc, a, call_it, &r);
	GPU_OK(cuStreamSynchronize, a);
	assert_int_equal(r, CU_NOT_PERMITTED);
	assert_int_equal(gpu.bugs(), 1);
}

static void a_call_fails_when_it_is_told_to(void **state)
{
	CUevent event;

	(void)state;
	gpu_set("fail=cuEventCreate:2:2");
	event = gpu_event();
	GPU_OK(cuEventDestroy_v2, event);
	assert_int_equal(gpu.cuEventCreate(&event, 0), CU_OUT_OF_MEMORY);
	event = gpu_event();
	GPU_OK(cuEventDestroy_v2, event);
	assert_int_equal(gpu.cuEventDestroy_v2(event), CU_INVALID_HANDLE);
	assert_int_equal(gpu.bugs(), 1);
	gpu_set("once=2:999");
	event = gpu_event();
	assert_int_equal(gpu.cuEventQuery(event), 999);
	GPU_OK(cuEventDestroy_v2, event);
}

/* ---- calls that wait or are refused as with a strict driver ---- */

/* A driver call of this thread, which another thread observes. */
struct meanwhile {
	const char *call;
	uint64_t before; /* number of earlier calls of @call */
	atomic_bool other_returned;
	bool let_by;
};

static void *call_any(void *arg)
{
	GPU_OK(cuCtxSetCurrent, gpu.ctx);
	GPU_OK(cuEventDestroy_v2, gpu_event());
	atomic_store(&((struct meanwhile *)arg)->other_returned, true);
	return NULL;
}

/* Once the observed call has begun, call CUDA from another thread; then set the word
 * that the observed call waits for. */
static void *set_word_late(void *arg)
{
	struct meanwhile *meanwhile = arg;
	pthread_t other;

	while (gpu.calls(meanwhile->call) == meanwhile->before)
		usleep(100);
	usleep(20000);
	if (pthread_create(&other, NULL, call_any, meanwhile) != 0)
		abort();
	usleep(20000);
	meanwhile->let_by = atomic_load(&meanwhile->other_returned);
	__atomic_store_n((uint32_t *)(void *)pinned, 1, __ATOMIC_RELEASE);
	pthread_join(other, NULL);
	return NULL;
}

static CUdeviceptr allocated;
static uint8_t *registered;

static void do_launch(void)
{
	gpu_spin(b, 0);
}

static void do_load(void)
{
	CUmodule module;

	GPU_OK(cuModuleLoadData, &module, gpu_kernels);
	GPU_OK(cuModuleGetFunction, &gpu.spin, module, "test_spin");
	gpu.module = module;
}

static void do_alloc(void)
{
	allocated = gpu_alloc(N);
}

static void do_free(void)
{
	GPU_OK(cuMemFree_v2, allocated);
}

static void do_register(void)
{
	GPU_OK(cuMemHostRegister_v2, registered, N, 0);
}

static void do_unregister(void)
{
	GPU_OK(cuMemHostUnregister, registered);
}

/* If @sync, check that @call returns only after stream a has passed a word that
 * another thread sets, and that @call blocks other calls until then.  Else
 * check that @call returns at once. */
static void synchronises(const char *call, void (*run)(void), bool sync)
{
	struct meanwhile meanwhile = {call, gpu.calls(call), false, false};
	uint32_t *word = (void *)pinned;
	pthread_t thread;
	uint32_t was;

	__atomic_store_n(word, 0, __ATOMIC_RELEASE);
	GPU_OK(cuStreamWaitValue32_v2, a, (CUdeviceptr)(uintptr_t)pinned, 1, 0);
	assert_int_equal(
		pthread_create(&thread, NULL, set_word_late, &meanwhile), 0);
	run();
	was = __atomic_load_n(word, __ATOMIC_ACQUIRE);
	pthread_join(thread, NULL);
	if ((was == 1) != sync || meanwhile.let_by == sync)
		fail_msg("%s: %s, another call %s", call,
			 was == 1 ? "waited" : "did not wait",
			 meanwhile.let_by ? "got by" : "waited behind it");
	GPU_OK(cuStreamSynchronize, a);
}

/* Each kind of call waits for the context's work only if its setting says
 * so. */
static void calls_synchronise_where_they_are_told_to(void **state)
{
	static const struct {
		const char *setting, *other, *call;
		void (*run)(void);
	} kinds[] = {
		{"sync=load", "sync=alloc", "cuModuleLoadData", do_load},
		{"sync=launch", NULL, "cuLaunchKernel", do_launch},
		{"sync=alloc", "sync=free+load", "cuMemAlloc_v2", do_alloc},
		{"sync=free", NULL, "cuMemFree_v2", do_free},
		{"sync=register", NULL, "cuMemHostRegister_v2", do_register},
		{"sync=unregister", NULL, "cuMemHostUnregister", do_unregister},
	};
	size_t i;

	(void)state;
	registered = mapping(PROT_READ | PROT_WRITE);
	for (i = 0; i < KV_ARRAY_LEN(kinds); i++) {
		if (kinds[i].other != NULL) {
			gpu_set(kinds[i].other);
			synchronises(kinds[i].call, kinds[i].run, false);
		}
		gpu_set(kinds[i].setting);
		synchronises(kinds[i].call, kinds[i].run, true);
	}
	/* Only the first launch of the kernel waited. */
	gpu_set("sync=launch");
	synchronises("cuLaunchKernel", do_launch, false);
	munmap(registered, N);
}

static void streams_of_a_priority_share_the_hardware_queues(void **state)
{
	CUstream same[2], urgent;
	uint32_t *word = (void *)pinned;
	int i;

	(void)state;
	gpu_set("queues=1");
	for (i = 0; i < 2; i++)
		same[i] = gpu_stream();
	GPU_OK(cuStreamCreateWithPriority, &urgent, CU_STREAM_NONBLOCKING, -5);
	__atomic_store_n(word, 0, __ATOMIC_RELEASE);
	GPU_OK(cuStreamWaitValue32_v2, same[0], (CUdeviceptr)(uintptr_t)pinned,
	       1, 0);
	gpu_spin(same[1], 0);
	gpu_spin(urgent, 0);
	/* stream b was made when each stream had a hardware queue of its own */
	gpu_spin(b, 0);
	GPU_OK(cuStreamSynchronize, urgent);
	GPU_OK(cuStreamSynchronize, b);
	usleep(20000);
	assert_int_equal(gpu.cuStreamQuery(same[1]), CU_NOT_READY);
	__atomic_store_n(word, 1, __ATOMIC_RELEASE);
	for (i = 0; i < 2; i++) {
		GPU_OK(cuStreamSynchronize, same[i]);
		GPU_OK(cuStreamDestroy_v2, same[i]);
	}
	GPU_OK(cuStreamDestroy_v2, urgent);
}

/* Set the second of the two words @arg, then wait until the first one is
 * set. */
static void wait_for_word(void *arg)
{
	uint32_t *words = arg;

	__atomic_store_n(&words[1], 1, __ATOMIC_RELEASE);
	while (__atomic_load_n(&words[0], __ATOMIC_ACQUIRE) == 0)
		usleep(1000);
}

static void one_thread_calls_all_host_functions(void **state)
{
	uint32_t words[2] = {0, 0};
	CUresult r = CU_OK;

	(void)state;
	gpu_set("hostthread=1");
	GPU_OK(cuLaunchHostFunc, a, wait_for_word, words);
	while (__atomic_load_n(&words[1], __ATOMIC_ACQUIRE) == 0)
		usleep(1000);
	GPU_OK(cuLaunchHostFunc, b, call_it, &r);
	usleep(20000);
	assert_int_equal(gpu.cuStreamQuery(b), CU_NOT_READY);
	__atomic_store_n(&words[0], 1, __ATOMIC_RELEASE);
	GPU_OK(cuStreamSynchronize, a);
	GPU_OK(cuStreamSynchronize, b);
	assert_int_equal(r, CU_NOT_PERMITTED);
}

static void streams_and_events_are_of_one_context(void **state)
{
	CUevent here = gpu_event(), there;
	CUcontext other, of;
	CUdevice device;
	CUstream stream;
	uint64_t ns = 0;
	void *parameters[] = {&ns};

	(void)state;
	gpu_set("devices=2");
	GPU_OK(cuDeviceGet, &device, 1);
	GPU_OK(cuDevicePrimaryCtxRetain, &other, device);
	GPU_OK(cuCtxSetCurrent, other);
	stream = gpu_stream();
	there = gpu_event();
	GPU_OK(cuStreamGetCtx, stream, &of);
	assert_ptr_equal(of, other);
	assert_int_equal(gpu.cuEventRecord(here, stream), CU_INVALID_HANDLE);
	assert_int_equal(gpu.cuEventRecord(there, a), CU_INVALID_HANDLE);
	assert_int_equal(gpu.cuLaunchKernel(gpu.spin, 1, 1, 1, 1, 1, 1, 0,
					    stream, parameters, NULL),
			 CU_INVALID_HANDLE);
	/* An event may be recorded in a stream of its own context, and a stream
	 * of another context may wait for the event. */
	GPU_OK(cuEventRecord, there, stream);
	GPU_OK(cuStreamWaitEvent, a, there, 0);
	GPU_OK(cuEventDestroy_v2, there);
	GPU_OK(cuStreamDestroy_v2, stream);
	GPU_OK(cuCtxSetCurrent, gpu.ctx);
	GPU_OK(cuDevicePrimaryCtxRelease_v2, device);
	GPU_OK(cuEventDestroy_v2, here);
}

static int attribute_of(int which, CUdeviceptr at)
{
	uint64_t value = 0;

	GPU_OK(cuPointerGetAttribute, &value, which, at);
	return (int)value;
}

/* Mapped memory belongs to no context, and reserved addresses have attributes. */
static void addresses_are_reserved_without_memory(void **state)
{
	const CUmemProp prop = {.type = 1, .location = {1, 0}};
	const CUmemAccess access = {{1, 0}, 3};
	const size_t bytes = 2 << 20;
	CUmemHandle handle;
	CUdeviceptr at;

	(void)state;
	GPU_OK(cuMemAddressReserve, &at, bytes, 0, 0, 0);
	assert_int_equal(attribute_of(CU_PTR_MAPPED, at), 0);
	assert_int_equal(attribute_of(CU_PTR_MEMORY_TYPE, at), 2);
	GPU_OK(cuCtxSetCurrent, NULL);
	GPU_OK(cuMemCreate, &handle, bytes, &prop, 0);
	GPU_OK(cuMemMap, at, bytes, 0, handle, 0);
	GPU_OK(cuMemSetAccess, at, bytes, &access, 1);
	GPU_OK(cuCtxSetCurrent, gpu.ctx);
	assert_int_equal(attribute_of(CU_PTR_MAPPED, at), 1);
	GPU_OK(cuCtxSetCurrent, NULL);
	GPU_OK(cuMemUnmap, at, bytes);
	GPU_OK(cuMemRelease, handle);
	GPU_OK(cuMemAddressFree, at, bytes);
	GPU_OK(cuCtxSetCurrent, gpu.ctx);
	assert_int_equal(attribute_of(CU_PTR_MAPPED, memory), 1);
}

/* The context stays current, but is of no use until it is retained again; then its
 * handle is the same, and its addresses have other memory. */
static void a_context_that_is_reset_begins_anew(void **state)
{
	CUcontext other, again;
	CUdeviceptr before, after;
	CUmodule module;
	int id;

	(void)state;
	gpu_set("devices=2");
	GPU_OK(cuDevicePrimaryCtxRetain, &other, 1);
	GPU_OK(cuCtxSetCurrent, other);
	before = gpu_alloc(N);
	id = attribute_of(CU_PTR_BUFFER_ID, before);
	GPU_OK(cuModuleLoadData, &module, gpu_kernels);
	GPU_OK(cuDevicePrimaryCtxReset_v2, 1);
	GPU_OK(cuCtxSetCurrent, other);
	assert_int_equal(gpu.cuMemAlloc_v2(&after, N), CU_CONTEXT_IS_DESTROYED);
	GPU_OK(cuDevicePrimaryCtxRetain, &again, 1);
	assert_ptr_equal(again, other);
	after = gpu_alloc(N);
	assert_true(after <= before);
	assert_int_not_equal(attribute_of(CU_PTR_BUFFER_ID, after), id);
	assert_int_equal(gpu.cuModuleUnload(module), CU_INVALID_HANDLE);
	assert_int_equal(gpu.bugs(), 1);
	gpu_free(after);
	GPU_OK(cuCtxSetCurrent, gpu.ctx);
	GPU_OK(cuDevicePrimaryCtxRelease_v2, 1);
	GPU_OK(cuDevicePrimaryCtxRelease_v2, 1);
}

static void an_image_without_code_for_the_device_is_refused(void **state)
{
	CUmodule module;
	int value;

	(void)state;
	gpu_set("arch=70");
	assert_int_equal(gpu.cuModuleLoadData(&module, gpu_kernels),
			 CU_NO_BINARY);
	gpu_set("arch=75,version=9020");
	assert_int_equal(gpu.cuModuleLoadData(&module, gpu_kernels),
			 CU_UNSUPPORTED_PTX);
	gpu_set("version=10000");
	GPU_OK(cuModuleLoadData, &module, gpu_kernels);
	GPU_OK(cuModuleUnload, module);
	GPU_OK(cuFuncGetAttribute, &value, CU_FUNC_MAX_THREADS, gpu.spin);
	assert_int_equal(value, 1024);
}

/* Return a kernel of the plug-in, if nvcc has made it; with @registers, change
 * the number of registers that it declares. */
static CUfunction kernel_of_plugin(uint32_t registers)
{
	/* head of an attribute, which a symbol and a number follow */
	static const char begin[] = {4, 0x2f, 8, 0};
	const char *build = getenv("B");
	CUfunction kernel;
	CUmodule module;
	struct stat st;
	char path[256], *image, *at, *end;
	int fd;

	snprintf(path, sizeof(path), "%s/kernels/cuda/kernels.fatbin",
		 build ? build : "build");
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		skip();
	assert_int_equal(fstat(fd, &st), 0);
	image = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE, fd, 0);
	assert_ptr_not_equal(image, MAP_FAILED);
	close(fd);
	end = image + st.st_size;
	for (at = image; registers > 0 && at != NULL; at++) {
		at = memmem(at, (size_t)(end - at), begin, sizeof(begin));
		if (at == NULL)
			break;
		memcpy(at + 8, &registers, sizeof(registers));
	}
	GPU_OK(cuModuleLoadData, &module, image);
	GPU_OK(cuModuleGetFunction, &kernel, module, "kv_scatter");
	return kernel;
}

static CUresult launch(CUfunction kernel, unsigned threads)
{
	char nothing[4096] = {0};
	void *parameters[] = {nothing};

	return gpu.cuLaunchKernel(kernel, 1, 1, 1, threads, 1, 1, 0, a,
				  parameters, NULL);
}

static void a_kernel_is_launched_as_its_image_allows(void **state)
{
	CUfunction kernel = kernel_of_plugin(0);
	int threads, registers, local;

	(void)state;
	GPU_OK(cuFuncGetAttribute, &threads, CU_FUNC_MAX_THREADS, kernel);
	GPU_OK(cuFuncGetAttribute, &registers, CU_FUNC_REGISTERS, kernel);
	GPU_OK(cuFuncGetAttribute, &local, CU_FUNC_LOCAL_BYTES, kernel);
	assert_int_equal(threads, 256);
	assert_in_range(registers, 8, 64);
	assert_int_equal(local, 0);
	assert_int_equal(launch(kernel, 512), CU_INVALID_VALUE);
	/* more registers than the 65,536 of a multiprocessor */
	kernel = kernel_of_plugin(300);
	assert_int_equal(launch(kernel, 256), CU_OUT_OF_RESOURCES);
}

/* CUDA 12.8 and 13.0 have batch copies with different parameters, 12.6 has none. */
static void a_batch_of_copies_is_one_call(void **state)
{
	CUdeviceptr to[2] = {memory, memory + 1024};
	CUdeviceptr from[2] = {(uintptr_t)pinned, (uintptr_t)pinned + 64};
	size_t sizes[2] = {64, 32};

	(void)state;
	memset(pinned, 5, N);
	gpu_set("version=12060");
	assert_int_equal(gpu_copy_batch(to, from, sizes, 2, a), CU_NOT_FOUND);
	gpu_set("version=12080");
	assert_int_equal(gpu_copy_batch(to, from, sizes, 2, a), CU_OK);
	gpu_set("version=13000");
	assert_int_equal(gpu_copy_batch(to, from, sizes, 2, a), CU_OK);
	assert_int_equal(gpu.calls("cuMemcpyBatchAsync"), 1);
	assert_int_equal(gpu.calls("cuMemcpyBatchAsync_v2"), 1);
	assert_int_equal(gpu_copy_batch(to, from, sizes, 2, CU_LEGACY),
			 CU_INVALID_VALUE);
	GPU_OK(cuStreamSynchronize, a);
	GPU_OK(cuMemcpyDtoH_v2, pinned + N, memory, N);
	assert_int_equal(pinned[N + 1024 + 31], 5);
	assert_int_equal(pinned[N + 1024 + 32], 0xcd);
}

/* ---- captures ---- */

static CUgraphExec end_capture(CUstream stream, size_t nodes)
{
	CUgraphExec exec;
	CUgraph graph;
	size_t n;

	GPU_OK(cuStreamEndCapture, stream, &graph);
	GPU_OK(cuGraphGetNodes, graph, NULL, &n);
	assert_int_equal(n, nodes);
	GPU_OK(cuGraphInstantiateWithFlags, &exec, graph, 0);
	GPU_OK(cuGraphDestroy, graph);
	return exec;
}

static int status_of(CUstream stream)
{
	int status;

	GPU_OK(cuStreamIsCapturing, stream, &status);
	return status;
}

static void what_is_captured_runs_when_the_graph_is_launched(void **state)
{
	uint32_t *word = (void *)pinned;
	CUevent event = gpu_event();
	CUgraphExec exec;

	(void)state;
	GPU_OK(cuMemsetD8Async, memory, 1, N, a);
	GPU_OK(cuStreamSynchronize, a);
	__atomic_store_n(word, 0, __ATOMIC_RELEASE);
	GPU_OK(cuStreamBeginCapture_v2, a, CU_CAPTURE_GLOBAL);
	GPU_OK(cuStreamWaitValue32_v2, a, (CUdeviceptr)(uintptr_t)pinned, 1, 0);
	GPU_OK(cuEventRecord, event, a);
	GPU_OK(cuStreamWaitEvent, b, event, 0);
	assert_int_equal(status_of(b), CU_CAPTURING);
	GPU_OK(cuMemsetD8Async, memory, 2, N, b);
	exec = end_capture(a, 2);
	assert_int_equal(status_of(b), CU_CAPTURING_NONE);
	assert_int_equal(gpu.cuEventQuery(event), CU_CAPTURED_EVENT);
	GPU_OK(cuMemcpyDtoH_v2, pinned + N, memory, N);
	assert_int_equal(pinned[N], 1);
	GPU_OK(cuGraphLaunch, exec, b);
	usleep(20000);
	assert_int_equal(gpu.cuStreamQuery(b), CU_NOT_READY);
	__atomic_store_n(word, 1, __ATOMIC_RELEASE);
	GPU_OK(cuGraphLaunch, exec, b);
	GPU_OK(cuStreamSynchronize, b);
	GPU_OK(cuMemcpyDtoH_v2, pinned + N, memory, N);
	assert_int_equal(pinned[N], 2);
	GPU_OK(cuGraphExecDestroy, exec);
	GPU_OK(cuEventDestroy_v2, event);
}

/* Check that @disturb fails with @error and invalidates the capture. */
static void spoils(CUresult error, CUresult (*disturb)(void))
{
	CUgraph graph;

	GPU_OK(cuStreamBeginCapture_v2, a, CU_CAPTURE_GLOBAL);
	assert_int_equal(disturb(), error);
	assert_int_equal(status_of(a), CU_CAPTURING_INVALID);
	assert_int_equal(gpu.cuStreamEndCapture(a, &graph),
			 CU_CAPTURE_INVALIDATED);
	assert_int_equal(status_of(a), CU_CAPTURING_NONE);
}

static CUresult query_it(void)
{
	return gpu.cuStreamQuery(a);
}

static CUresult allocate(void)
{
	CUdeviceptr at;

	return gpu.cuMemAlloc_v2(&at, N);
}

static CUevent outside;

static CUresult wait_for_what_runs(void)
{
	return gpu.cuStreamWaitEvent(a, outside, 0);
}

static void a_capture_is_spoilt_by_what_it_cannot_have(void **state)
{
	int relaxed = CU_CAPTURE_RELAXED;
	CUgraphExec exec;

	(void)state;
	outside = gpu_event();
	GPU_OK(cuEventRecord, outside, b);
	spoils(CU_CAPTURE_UNSUPPORTED, query_it);
	spoils(CU_CAPTURE_UNSUPPORTED, allocate);
	spoils(CU_CAPTURE_ISOLATION, wait_for_what_runs);
	/* A thread in relaxed mode may allocate. */
	GPU_OK(cuStreamBeginCapture_v2, a, CU_CAPTURE_GLOBAL);
	GPU_OK(cuThreadExchangeStreamCaptureMode, &relaxed);
	gpu_free(gpu_alloc(N));
	GPU_OK(cuThreadExchangeStreamCaptureMode, &relaxed);
	exec = end_capture(a, 0);
	GPU_OK(cuGraphExecDestroy, exec);
	GPU_OK(cuEventDestroy_v2, outside);
}

static void the_legacy_stream_is_none_beside_a_capture(void **state)
{
	CUstream blocking;
	CUgraph graph;
	int status;

	(void)state;
	GPU_OK(cuStreamCreateWithPriority, &blocking, 0, 0);
	GPU_OK(cuStreamBeginCapture_v2, blocking, CU_CAPTURE_RELAXED);
	assert_int_equal(gpu.cuStreamIsCapturing(CU_LEGACY, &status),
			 CU_CAPTURE_IMPLICIT);
	assert_int_equal(gpu.cuMemsetD8Async(memory, 1, N, CU_LEGACY),
			 CU_CAPTURE_IMPLICIT);
	assert_int_equal(gpu.cuStreamEndCapture(blocking, &graph),
			 CU_CAPTURE_INVALIDATED);
	GPU_OK(cuStreamDestroy_v2, blocking);
}

static void a_fork_has_no_driver(void **state)
{
	int status;
	pid_t pid = fork();

	(void)state;
	if (pid == 0)
		_exit(gpu.cuStreamQuery(a) == CU_NOT_INITIALIZED ? 0 : 1);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
		TEST(streams_overtake_each_other_unless_an_event_orders_them),
		TEST(a_copy_reads_what_is_there_when_it_runs),
		TEST(the_legacy_stream_waits_for_blocking_streams_only),
		TEST(new_memory_is_poisoned_and_never_where_other_was),
		TEST(a_copy_to_memory_that_went_is_a_bug_and_breaks_the_device),
		TEST(the_host_cannot_touch_device_memory),
		TEST(read_only_memory_is_registered_only_as_such),
		TEST(a_copy_lies_in_one_registration),
		TEST(a_registration_that_goes_under_a_copy_is_a_bug),
		TEST(pageable_memory_is_copied_at_once_or_refused),
		TEST(a_host_function_may_not_call_the_driver),
		TEST(a_call_fails_when_it_is_told_to),
		TEST(calls_synchronise_where_they_are_told_to),
		TEST(streams_of_a_priority_share_the_hardware_queues),
		TEST(one_thread_calls_all_host_functions),
		TEST(streams_and_events_are_of_one_context),
		TEST(addresses_are_reserved_without_memory),
		TEST(a_context_that_is_reset_begins_anew),
		TEST(an_image_without_code_for_the_device_is_refused),
		TEST(a_kernel_is_launched_as_its_image_allows),
		TEST(a_batch_of_copies_is_one_call),
		TEST(what_is_captured_runs_when_the_graph_is_launched),
		TEST(a_capture_is_spoilt_by_what_it_cannot_have),
		TEST(the_legacy_stream_is_none_beside_a_capture),
		TEST(a_fork_has_no_driver),
	};

	(void)argc;
	gpu_begin(argv);
	if (gpu_is_real()) {
		puts("a real driver is no stand-in");
		return 77;
	}
	if (gpu_open() < 0)
		return 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
