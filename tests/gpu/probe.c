/* SPDX-License-Identifier: Apache-2.0 */
/*
 * probe.c - measure undocumented behaviour of a driver and a GPU: attributes of
 * addresses, the ways to register memory and their cost, the calls that wait for
 * a blocked stream, calls in captures, the cost of copies.  Needs neither library
 * nor daemon.
 *
 *   probe JSON [short]   short: little memory, only to test the program
 *
 * OWNS      the file, one object of JSON.
 *
 * LOCKING   none: a call that may never return has a thread of its own.
 */
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "tests/gpu/gpu.h"
#include "tools/bench/bench.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

#define CHUNK ((uint64_t)16 << 20) /* number of bytes registered at a time */
#define PIECE ((uint64_t)32 << 10)
#define PIECES 1024u

static uint64_t register_bytes = 1ull << 30;
/* milliseconds until a call counts as stuck */
static unsigned patience_ms = 1000;
static FILE *out;

static double seconds_since(uint64_t start)
{
	return (double)(kv_now_ns() - start) / 1e9;
}

/* ---- the device ---- */

static void probe_device(void)
{
	static const struct {
		const char *name;
		int which;
	} attributes[] = {
		{"capability_major", CU_CAPABILITY_MAJOR},
		{"capability_minor", CU_CAPABILITY_MINOR},
		{"multiprocessors", CU_MULTIPROCESSORS},
		{"async_engines", CU_ASYNC_ENGINES},
		{"unified_addressing", CU_UNIFIED_ADDRESSING},
		{"can_use_host_pointer_for_registered_mem", CU_SAME_ADDRESSES},
		{"host_register_supported", CU_HOST_REGISTER},
		{"read_only_host_register_supported",
		 CU_READ_ONLY_HOST_REGISTER},
		{"stream_wait_value", CU_STREAM_MEM_OPS_V1},
		{"virtual_memory", CU_VIRTUAL_MEMORY},
	};
	char name[128] = "";
	int value, version;
	size_t i;

	GPU_OK(cuDeviceGetName, name, sizeof(name), 0);
	GPU_OK(cuDriverGetVersion, &version);
	fprintf(out,
		"{\"stand_in\": %s, \"device\": \"%s\", \"driver\": %d,\n"
		" \"attributes\": {",
		gpu_is_real() ? "false" : "true", name, version);
	for (i = 0; i < KV_ARRAY_LEN(attributes); i++) {
		value = -1;
		(void)gpu.cuDeviceGetAttribute(&value, attributes[i].which, 0);
		fprintf(out, "%s\"%s\": %d", i == 0 ? "" : ", ",
			attributes[i].name, value);
	}
	fprintf(out, "}");
}

/* ---- addresses ---- */

/* Write each attribute as the call's result and the value. */
static void probe_address(const char *what, CUdeviceptr at, const char *comma)
{
	uint64_t id = 0;
	unsigned type = 0, mapped = 0;
	CUresult r[] = {
		gpu.cuPointerGetAttribute(&type, CU_PTR_MEMORY_TYPE, at),
		gpu.cuPointerGetAttribute(&mapped, CU_PTR_MAPPED, at),
		gpu.cuPointerGetAttribute(&id, CU_PTR_BUFFER_ID, at),
	};

	fprintf(out,
		"%s\n  {\"address\": \"%s\", \"type\": [%d, %u], \"mapped\": "
		"[%d, %u], \"buffer_id\": [%d, %lu]}",
		comma, what, r[0], type, r[1], mapped, r[2], id);
}

static void probe_addresses(void)
{
	const CUmemProp prop = {.type = 1, .location = {1, 0}};
	const CUmemAccess access = {{1, 0}, 3};
	CUdeviceptr at = gpu_alloc(CHUNK);
	CUmemHandle handle;

	fputs(",\n \"addresses\": [", out);
	probe_address("allocated", at, "");
	gpu_free(at);
	probe_address("freed", at, ",");
	GPU_OK(cuMemAddressReserve, &at, CHUNK, 0, 0, 0);
	probe_address("reserved", at, ",");
	GPU_OK(cuMemCreate, &handle, CHUNK, &prop, 0);
	GPU_OK(cuMemMap, at, CHUNK, 0, handle, 0);
	GPU_OK(cuMemSetAccess, at, CHUNK, &access, 1);
	probe_address("mapped", at, ",");
	GPU_OK(cuMemUnmap, at, CHUNK);
	probe_address("unmapped", at, ",");
	GPU_OK(cuMemRelease, handle);
	GPU_OK(cuMemAddressFree, at, CHUNK);
	fputs("]", out);
}

/* ---- registering ---- */

struct mode {
	const char *name;
	/* true: F_SEAL_FUTURE_WRITE is set, so only earlier mappings can
	 * write */
	bool sealed;
	/* protection of a mapping when it is made, and its later protection (0:
	 * unchanged) */
	int mapped, after;
	unsigned flags;
};

static const struct mode modes[] = {
	{"writable", false, PROT_READ | PROT_WRITE, 0, CU_REGISTER_PORTABLE},
	{"writable, then read-only", false, PROT_READ | PROT_WRITE, PROT_READ,
	 CU_REGISTER_PORTABLE},
	{"writable, by a read-only registration", false, PROT_READ | PROT_WRITE,
	 0, CU_REGISTER_PORTABLE | CU_REGISTER_READ_ONLY},
	{"read-only", false, PROT_READ, 0, CU_REGISTER_PORTABLE},
	{"read-only, by a read-only registration", false, PROT_READ, 0,
	 CU_REGISTER_PORTABLE | CU_REGISTER_READ_ONLY},
	{"sealed", true, PROT_READ, 0, CU_REGISTER_PORTABLE},
	{"sealed, by a read-only registration", true, PROT_READ, 0,
	 CU_REGISTER_PORTABLE | CU_REGISTER_READ_ONLY},
};

/* Map shared memory like the daemon's arena, and touch all of it. */
static uint8_t *map_arena(const struct mode *mode, uint64_t bytes)
{
	int fd = memfd_create("probe", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	uint8_t *at;

	if (fd < 0 || ftruncate(fd, (off_t)bytes) < 0)
		abort();
	at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED)
		abort();
	memset(at, 7, bytes);
	if (mode->mapped != (PROT_READ | PROT_WRITE)) {
		munmap(at, bytes);
		if (mode->sealed &&
		    fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) < 0)
			abort();
		at = mmap(NULL, bytes, mode->mapped, MAP_SHARED, fd, 0);
		if (at == MAP_FAILED)
			abort();
	}
	close(fd);
	return at;
}

/* Measure how long launches take on the host while another thread registers
 * memory. */
struct stall {
	atomic_bool stop;
	double longest, all;
	uint64_t n;
};

static void *launch_on(void *arg)
{
	struct stall *stall = arg;
	CUstream stream;
	uint64_t start;
	double took;

	GPU_OK(cuCtxSetCurrent, gpu.ctx);
	stream = gpu_stream();
	while (!atomic_load(&stall->stop)) {
		start = kv_now_ns();
		gpu_spin(stream, 0);
		took = seconds_since(start);
		stall->longest = KV_MAX(stall->longest, took);
		stall->all += took;
		stall->n++;
		GPU_OK(cuStreamSynchronize, stream);
		usleep(100);
	}
	GPU_OK(cuStreamDestroy_v2, stream);
	return NULL;
}

/* Return the seconds to copy all bytes, a chunk at a time. */
static double copy_from(uint8_t *at, uint64_t bytes)
{
	CUdeviceptr to = gpu_alloc(CHUNK);
	CUstream stream = gpu_stream();
	uint64_t start = kv_now_ns(), done;
	double took;

	for (done = 0; done < bytes; done += CHUNK)
		GPU_OK(cuMemcpyHtoDAsync_v2, to, at + done, CHUNK, stream);
	GPU_OK(cuStreamSynchronize, stream);
	took = seconds_since(start);
	GPU_OK(cuStreamDestroy_v2, stream);
	gpu_free(to);
	return took;
}

static CUresult register_all(uint8_t *at, uint64_t bytes, unsigned flags,
			     uint64_t *ret_done)
{
	CUresult r = CU_OK;

	for (*ret_done = 0; *ret_done < bytes && r == CU_OK;) {
		r = gpu.cuMemHostRegister_v2(at + *ret_done, CHUNK, flags);
		if (r == CU_OK)
			*ret_done += CHUNK;
	}
	return r;
}

static void probe_mode(const struct mode *mode, const char *comma)
{
	uint64_t bytes = register_bytes, done, at_once, start;
	uint8_t *at = map_arena(mode, bytes);
	struct stall stall = {.n = 0};
	double took, back;
	pthread_t thread;
	CUresult r;

	if (pthread_create(&thread, NULL, launch_on, &stall) != 0)
		abort();
	start = kv_now_ns();
	r = register_all(at, bytes, mode->flags, &done);
	took = seconds_since(start);
	atomic_store(&stall.stop, true);
	pthread_join(thread, NULL);
	fprintf(out, "%s\n  {\"memory\": \"%s\", \"result\": %d", comma,
		mode->name, r);
	if (r == CU_OK && mode->after != 0)
		fprintf(out, ", \"mprotect\": %d",
			mprotect(at, bytes, mode->after));
	if (r == CU_OK) {
		(void)copy_from(at, bytes);
		fprintf(out, ", \"gb_s\": %.2f",
			(double)bytes / copy_from(at, bytes) / 1e9);
	}
	start = kv_now_ns();
	for (at_once = 0; at_once < done; at_once += CHUNK)
		GPU_OK(cuMemHostUnregister, at + at_once);
	back = seconds_since(start);
	if (r == CU_OK)
		fprintf(out,
			", \"ms_per_gib\": %.1f, \"unregister_ms_per_gib\": "
			"%.1f, \"launch_us_beside\": %.1f, "
			"\"longest_launch_us_beside\": %.1f",
			took * 1e3 * (double)(1 << 30) / (double)bytes,
			back * 1e3 * (double)(1 << 30) / (double)bytes,
			stall.all * 1e6 / (double)KV_MAX(stall.n, 1ul),
			stall.longest * 1e6);
	fputs("}", out);
	munmap(at, bytes);
}

static void probe_registering(void)
{
	struct stall stall = {.n = 0};
	pthread_t thread;
	size_t i;

	if (pthread_create(&thread, NULL, launch_on, &stall) != 0)
		abort();
	usleep(100000);
	atomic_store(&stall.stop, true);
	pthread_join(thread, NULL);
	fprintf(out,
		",\n \"launch_us_alone\": %.1f, \"longest_launch_us_alone\": "
		"%.1f,\n \"registering\": [",
		stall.all * 1e6 / (double)KV_MAX(stall.n, 1ul),
		stall.longest * 1e6);
	for (i = 0; i < KV_ARRAY_LEN(modes); i++)
		probe_mode(&modes[i], i == 0 ? "" : ",");
	fputs("]", out);
}

/* ---- driver calls while a stream waits ---- */

/* Objects that the calls use, made before the stream waits. */
static struct {
	CUstream other, spare;
	CUevent event, spare_event;
	CUdeviceptr memory, to_free;
	uint8_t *pinned, *pinned_to_free, *pages, *registered;
	CUmodule module;
	CUfunction fresh;
} need;

static void do_alloc(void)
{
	CUdeviceptr at;

	GPU_OK(cuMemAlloc_v2, &at, 1 << 20);
}

static void do_free(void)
{
	GPU_OK(cuMemFree_v2, need.to_free);
}

static void do_host_alloc(void)
{
	void *at;

	GPU_OK(cuMemHostAlloc, &at, 1 << 20, 0);
}

static void do_host_free(void)
{
	GPU_OK(cuMemFreeHost, need.pinned_to_free);
}

static void do_register(void)
{
	GPU_OK(cuMemHostRegister_v2, need.pages, 1 << 20, CU_REGISTER_PORTABLE);
}

static void do_unregister(void)
{
	GPU_OK(cuMemHostUnregister, need.registered);
}

static void do_load(void)
{
	CUmodule module;

	GPU_OK(cuModuleLoadData, &module, gpu_kernels);
}

static void do_first_launch(void)
{
	uint64_t ns = 0;
	void *parameters[] = {&ns};

	GPU_OK(cuLaunchKernel, need.fresh, 1, 1, 1, 1, 1, 1, 0, need.other,
	       parameters, NULL);
}

static void do_launch(void)
{
	gpu_spin(need.other, 0);
}

static void do_load_copy(void)
{
	GPU_OK(cuMemcpyHtoDAsync_v2, need.memory, need.pinned, PIECE,
	       need.other);
}

static void do_save_copy(void)
{
	GPU_OK(cuMemcpyDtoHAsync_v2, need.pinned, need.memory, PIECE,
	       need.other);
}

static void do_fill(void)
{
	GPU_OK(cuMemsetD8Async, need.memory, 0, PIECE, need.other);
}

static void do_stream_new(void)
{
	(void)gpu_stream();
}

static void do_stream_free(void)
{
	GPU_OK(cuStreamDestroy_v2, need.spare);
}

static void do_record(void)
{
	GPU_OK(cuEventRecord, need.spare_event, need.other);
}

static void do_query(void)
{
	(void)gpu.cuEventQuery(need.spare_event);
}

static void do_wait_event(void)
{
	GPU_OK(cuStreamWaitEvent, need.other, need.event, 0);
}

static const struct {
	const char *call;
	void (*run)(void);
} calls[] = {
	{"cuMemAlloc", do_alloc},
	{"cuMemFree", do_free},
	{"cuMemHostAlloc", do_host_alloc},
	{"cuMemFreeHost", do_host_free},
	{"cuMemHostRegister", do_register},
	{"cuMemHostUnregister", do_unregister},
	{"cuModuleLoadData", do_load},
	{"cuLaunchKernel, the first of a kernel", do_first_launch},
	{"cuLaunchKernel", do_launch},
	{"cuMemcpyHtoDAsync", do_load_copy},
	{"cuMemcpyDtoHAsync", do_save_copy},
	{"cuMemsetD8Async", do_fill},
	{"cuStreamCreateWithPriority", do_stream_new},
	{"cuStreamDestroy", do_stream_free},
	{"cuEventRecord", do_record},
	{"cuEventQuery", do_query},
	{"cuStreamWaitEvent", do_wait_event},
};

static uint8_t *pages_of(uint64_t bytes)
{
	uint8_t *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			   MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		abort();
	memset(at, 1, bytes);
	return at;
}

static void make_needs(void)
{
	need.other = gpu_stream();
	need.spare = gpu_stream();
	need.event = gpu_event();
	need.spare_event = gpu_event();
	need.memory = gpu_alloc(1 << 20);
	need.to_free = gpu_alloc(1 << 20);
	GPU_OK(cuMemHostAlloc, (void **)&need.pinned, 1 << 20, 0);
	GPU_OK(cuMemHostAlloc, (void **)&need.pinned_to_free, 1 << 20, 0);
	need.pages = pages_of(1 << 20);
	need.registered = pages_of(1 << 20);
	GPU_OK(cuMemHostRegister_v2, need.registered, 1 << 20,
	       CU_REGISTER_PORTABLE);
	GPU_OK(cuModuleLoadData, &need.module, gpu_kernels);
	GPU_OK(cuModuleGetFunction, &need.fresh, need.module, "test_spin");
	GPU_OK(cuEventRecord, need.event, need.other);
	GPU_OK(cuCtxSynchronize);
}

struct attempt {
	void (*run)(void);
	atomic_bool returned;
	double seconds;
};

static void *attempt(void *arg)
{
	struct attempt *a = arg;
	uint64_t start;

	GPU_OK(cuCtxSetCurrent, gpu.ctx);
	start = kv_now_ns();
	a->run();
	a->seconds = seconds_since(start);
	atomic_store(&a->returned, true);
	return NULL;
}

/* Make one call while a stream waits for a word, which is set when the call has
 * returned or patience ends. */
static void probe_call(size_t i, uint32_t *word)
{
	struct attempt a = {.run = calls[i].run};
	CUstream waiting = gpu_stream();
	bool returned, ran = false;
	pthread_t thread;
	unsigned ms;

	__atomic_store_n(word, 0, __ATOMIC_RELEASE);
	GPU_OK(cuStreamWaitValue32_v2, waiting, (CUdeviceptr)(uintptr_t)word, 1,
	       0);
	usleep(1000);
	if (pthread_create(&thread, NULL, attempt, &a) != 0)
		abort();
	for (ms = 0; ms < patience_ms && !atomic_load(&a.returned); ms++)
		usleep(1000);
	returned = atomic_load(&a.returned);
	/* Check whether other streams continue during the call. */
	for (ms = 0; returned && ms < patience_ms && !ran; ms++) {
		ran = gpu.cuStreamQuery(need.other) == CU_OK;
		usleep(1000);
	}
	__atomic_store_n(word, 1, __ATOMIC_RELEASE);
	pthread_join(thread, NULL);
	fprintf(out,
		"%s\n  {\"call\": \"%s\", \"returned\": %s, \"us\": %.1f, "
		"\"other_stream_went_on\": %s}",
		i == 0 ? "" : ",", calls[i].call, returned ? "true" : "false",
		a.seconds * 1e6, ran ? "true" : "false");
	GPU_OK(cuStreamSynchronize, waiting);
	GPU_OK(cuStreamDestroy_v2, waiting);
	GPU_OK(cuCtxSynchronize);
}

static void probe_calls(void)
{
	uint32_t *word;
	CUresult r;
	size_t i;

	GPU_OK(cuMemHostAlloc, (void **)&word, 4096, CU_REGISTER_MAPPED);
	*word = 1;
	r = gpu.cuStreamWaitValue32_v2(need.other, (CUdeviceptr)(uintptr_t)word,
				       1, 0);
	fprintf(out, ",\n \"waiting_for_a_value\": %d", r);
	if (r != CU_OK)
		return;
	fputs(",\n \"calls_under_a_waiting_stream\": [", out);
	for (i = 0; i < KV_ARRAY_LEN(calls); i++)
		probe_call(i, word);
	fputs("]", out);
}

/* ---- capture ---- */

static CUresult capture_nothing(CUstream stream)
{
	(void)stream;
	return CU_OK;
}

static CUresult capture_wait_event(CUstream stream)
{
	return gpu.cuStreamWaitEvent(stream, need.event, 0);
}

static CUresult capture_wait_value(CUstream stream)
{
	return gpu.cuStreamWaitValue32_v2(
		stream, (CUdeviceptr)(uintptr_t)need.pinned, 1, 0);
}

static CUresult capture_record_and_query(CUstream stream)
{
	CUevent event = gpu_event();
	CUresult r = gpu.cuEventRecord(event, stream);

	if (r == CU_OK)
		r = gpu.cuEventQuery(event);
	(void)gpu.cuEventDestroy_v2(event);
	return r;
}

static CUresult capture_query_stream(CUstream stream)
{
	return gpu.cuStreamQuery(stream);
}

static CUresult capture_query_other_event(CUstream stream)
{
	(void)stream;
	return gpu.cuEventQuery(need.event);
}

static CUresult capture_alloc(CUstream stream)
{
	CUdeviceptr at;
	CUresult r = gpu.cuMemAlloc_v2(&at, 4096);

	(void)stream;
	if (r == CU_OK)
		(void)gpu.cuMemFree_v2(at);
	return r;
}

static CUresult capture_register(CUstream stream)
{
	CUresult r = gpu.cuMemHostRegister_v2(need.pages, 1 << 20,
					      CU_REGISTER_PORTABLE);

	(void)stream;
	if (r == CU_OK)
		(void)gpu.cuMemHostUnregister(need.pages);
	return r;
}

static const struct {
	const char *what;
	CUresult (*run)(CUstream stream);
} captured[] = {
	{"nothing", capture_nothing},
	{"cuStreamWaitEvent of an event outside", capture_wait_event},
	{"cuStreamWaitValue32", capture_wait_value},
	{"cuEventRecord and cuEventQuery", capture_record_and_query},
	{"cuStreamQuery", capture_query_stream},
	{"cuEventQuery of an event outside", capture_query_other_event},
	{"cuMemAlloc", capture_alloc},
	{"cuMemHostRegister", capture_register},
};

/* Make call @i during a capture in global mode, by a thread in capture mode
 * @mode. */
static void probe_capture_of(size_t i, int mode, const char *comma)
{
	CUstream stream = gpu_stream();
	int before = -1, status = -1, exchanged = mode;
	CUgraph graph = NULL;
	CUresult r, end;
	size_t nodes = 0;

	GPU_OK(cuStreamBeginCapture_v2, stream, CU_CAPTURE_GLOBAL);
	GPU_OK(cuThreadExchangeStreamCaptureMode, &exchanged);
	(void)gpu.cuStreamIsCapturing(stream, &before);
	r = captured[i].run(stream);
	(void)gpu.cuStreamIsCapturing(stream, &status);
	GPU_OK(cuThreadExchangeStreamCaptureMode, &exchanged);
	end = gpu.cuStreamEndCapture(stream, &graph);
	if (graph != NULL) {
		(void)gpu.cuGraphGetNodes(graph, NULL, &nodes);
		(void)gpu.cuGraphDestroy(graph);
	}
	fprintf(out,
		"%s\n  {\"what\": \"%s\", \"thread\": \"%s\", \"result\": %d, "
		"\"capturing_before\": %d, \"capturing_after\": %d, "
		"\"end\": %d, \"nodes\": %zu}",
		comma, captured[i].what,
		mode == CU_CAPTURE_RELAXED ? "relaxed" : "global", r, before,
		status, end, nodes);
	(void)gpu.cuStreamDestroy_v2(stream);
}

static void probe_capture(void)
{
	size_t i;

	fputs(",\n \"capture\": [", out);
	for (i = 0; i < KV_ARRAY_LEN(captured); i++) {
		probe_capture_of(i, CU_CAPTURE_GLOBAL, i == 0 ? "" : ",");
		probe_capture_of(i, CU_CAPTURE_RELAXED, ",");
	}
	fputs("]", out);
}

/* ---- copies ---- */

/* Measure copies of many pieces; @batched: all by one call. */
static void probe_copies_of(bool batched, const char *comma)
{
	static CUdeviceptr to[PIECES], from[PIECES];
	static size_t sizes[PIECES];
	CUdeviceptr memory = gpu_alloc(PIECES * PIECE);
	CUstream stream = gpu_stream();
	CUresult r = CU_OK;
	double given, all;
	uint64_t start;
	uint8_t *host;
	unsigned i, round;

	GPU_OK(cuMemHostAlloc, (void **)&host, PIECES * PIECE, 0);
	for (i = 0; i < PIECES; i++) {
		/* Scatter the pieces: no two neighbours are copied in turn. */
		to[i] = memory + (i * 5 % PIECES) * PIECE;
		from[i] = (uintptr_t)host + (i * 3 % PIECES) * PIECE;
		sizes[i] = PIECE;
	}
	for (round = 0; round < 2; round++) {
		start = kv_now_ns();
		if (batched)
			r = gpu_copy_batch(to, from, sizes, PIECES, stream);
		for (i = 0; i < PIECES && !batched; i++)
			GPU_OK(cuMemcpyHtoDAsync_v2, to[i],
			       (void *)(uintptr_t)from[i], PIECE, stream);
		given = seconds_since(start);
		GPU_OK(cuStreamSynchronize, stream);
		all = seconds_since(start);
	}
	fprintf(out,
		"%s\n  {\"copies\": \"%u of 32 KiB, %s\", \"result\": %d, "
		"\"us_to_give_each\": %.3f, \"us_each\": %.3f}",
		comma, PIECES, batched ? "in one call" : "a call each", r,
		given * 1e6 / PIECES, all * 1e6 / PIECES);
	GPU_OK(cuStreamDestroy_v2, stream);
	GPU_OK(cuMemFreeHost, host);
	gpu_free(memory);
}

static void probe_copies(void)
{
	fputs(",\n \"copying\": [", out);
	probe_copies_of(false, "");
	probe_copies_of(true, ",");
	fputs("]", out);
}

int main(int argc, char **argv)
{
	gpu_begin(argv);
	if (argc < 2 || argc > 3) {
		fputs("usage: probe JSON [short]\n", stderr);
		return 2;
	}
	if (argc == 3) {
		register_bytes = 2 * CHUNK;
		patience_ms = 100;
	}
	if (gpu_open() < 0) {
		fputs("no NVIDIA GPU here: the driver finds none\n", stderr);
		return 1;
	}
	out = fopen(argv[1], "we");
	if (out == NULL) {
		perror(argv[1]);
		return 1;
	}
	/* The riskiest measurement comes last, after the results of the others
	 * are in the file. */
	probe_device();
	probe_addresses();
	probe_registering();
	probe_copies();
	fflush(out);
	make_needs();
	probe_capture();
	fflush(out);
	probe_calls();
	fputs("}\n", out);
	return fclose(out) == 0 ? 0 : 1;
}
