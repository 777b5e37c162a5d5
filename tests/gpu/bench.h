/* SPDX-License-Identifier: Apache-2.0 */
/* bench.h - functions that measure the copies with which bench.c compares. */
#ifndef KV_TESTS_GPU_BENCH_H
#define KV_TESTS_GPU_BENCH_H

#include <sys/resource.h>

#include "tests/gpu/memory.h"
#include "tools/bench/bench.h"

#define BLOCKS 127u

static inline void sample_fini(struct kv_bench_sample *sample)
{
	kv_bench_samples_free(sample, 1);
}

/* Pinned host memory, and device memory of the same size. */
struct reference {
	uint64_t bytes;
	uint8_t *host;
	CUdeviceptr device;
	CUstream stream;
};

static inline void reference_open(struct reference *ref, uint64_t bytes)
{
	ref->bytes = bytes;
	GPU_OK(cuMemHostAlloc, (void **)&ref->host, bytes, 0);
	memset(ref->host, 7, bytes);
	ref->device = gpu_alloc(bytes);
	ref->stream = gpu_stream();
}

static inline void reference_close(struct reference *ref)
{
	GPU_OK(cuStreamDestroy_v2, ref->stream);
	gpu_free(ref->device);
	GPU_OK(cuMemFreeHost, ref->host);
}

/* Return the seconds to copy all bytes of @ref, by copies of @stride bytes. */
static inline double reference_copy(struct reference *ref, bool to_device,
				    uint64_t stride)
{
	uint64_t start = kv_now_ns(), at;

	for (at = 0; at < ref->bytes; at += stride)
		if (to_device)
			GPU_OK(cuMemcpyHtoDAsync_v2, ref->device + at,
			       ref->host + at, stride, ref->stream);
		else
			GPU_OK(cuMemcpyDtoHAsync_v2, ref->host + at,
			       ref->device + at, stride, ref->stream);
	GPU_OK(cuStreamSynchronize, ref->stream);
	return (double)(kv_now_ns() - start) / 1e9;
}

/* Return the seconds to copy all bytes in batches of scattered copies of
 * @stride bytes; negative: the driver has no such call. */
static inline double reference_batch(struct reference *ref, uint64_t stride)
{
	size_t n = KV_MAX(ref->bytes / stride, 1), i;
	CUdeviceptr *to = calloc(n, sizeof(*to)),
		    *from = calloc(n, sizeof(*to));
	size_t *sizes = calloc(n, sizeof(*sizes));
	uint64_t start;
	CUresult r;

	for (i = 0; i < n; i++) {
		to[i] = ref->device + (n - 1 - i) * stride;
		from[i] = (uintptr_t)ref->host + i * stride;
		sizes[i] = stride;
	}
	start = kv_now_ns();
	r = gpu_copy_batch(to, from, sizes, n, ref->stream);
	GPU_OK(cuStreamSynchronize, ref->stream);
	free(to);
	free(from);
	free(sizes);
	return r == CU_OK ? (double)(kv_now_ns() - start) / 1e9 : -1;
}

/* Return the seconds to copy all bytes by a kernel on four multiprocessors that
 * reads the host's memory. */
static inline double reference_kernel(struct reference *ref)
{
	uint64_t start = kv_now_ns();

	gpu_copy(ref->stream, 4, ref->device, (uintptr_t)ref->host,
		 ref->bytes & ~15ull);
	GPU_OK(cuStreamSynchronize, ref->stream);
	return (double)(kv_now_ns() - start) / 1e9;
}

/* Return the processor seconds that this process and @daemon have used. */
static inline double processors(pid_t daemon)
{
	struct rusage usage;
	char path[40], line[1024];
	unsigned long user = 0, system = 0;
	FILE *f;

	getrusage(RUSAGE_SELF, &usage);
	snprintf(path, sizeof(path), "/proc/%d/stat", daemon);
	f = fopen(path, "re");
	if (f != NULL && fgets(line, sizeof(line), f) != NULL)
		sscanf(strrchr(line, ')') + 1,
		       " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu",
		       &user, &system);
	if (f != NULL)
		fclose(f);
	return (double)usage.ru_utime.tv_sec + (double)usage.ru_stime.tv_sec +
	       (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6 +
	       (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
}

/* Return how many bytes of the arena to register: 32 GiB, or less on a small
 * machine. */
static inline uint64_t memory_to_register(void)
{
	uint64_t most = gpu_is_real() ? 32ull << 30 : 512ull << 20, kib = 0;
	char line[128];
	FILE *f = fopen("/proc/meminfo", "re");

	while (f != NULL && fgets(line, sizeof(line), f) != NULL)
		if (sscanf(line, "MemAvailable: %lu kB", &kib) == 1)
			break;
	if (f != NULL)
		fclose(f);
	return KV_MIN(most, kib * 1024 / 3);
}

#endif
